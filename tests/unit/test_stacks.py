"""Launch stacks: policies by name, costs, geometry, the cliff, shared memory, own policies."""

import json
import runpy
from pathlib import Path

import pytest

import svmcore
from svmcore import stacks
from svmcore.conformance import run_file
from svmcore.errors import InvalidArgumentError
from svmcore.machine import Gpu
from svmcore.stacks.costs import size_cost

MIB = 1 << 20
CONFORMANCE = Path(__file__).parents[1] / "conformance"
OWN = CONFORMANCE / "stack_vectors" / "own_softstack.json"
FAST = stacks.LaunchCosts()
ADDRESS = 0x7F00_0000_0000


def loop(teams, turns=20):
    """Map, launch, unmap: what a program with one buffer does (vector T10)."""
    records = []
    for turn in range(turns):
        t = turn * 1_000_000
        records += [
            stacks.Alloc(t, size=MIB, id=str(turn)),
            stacks.Launch(t, teams=teams, kernel_ns=200_000),
            stacks.Free(t, id=str(turn)),
        ]
    return stacks.LaunchTrace.of(records)


# ---- vectors -----------------------------------------------------------------------------


@pytest.mark.parametrize("reference", [False, True], ids=["compiled", "reference"])
def test_vectors(shared, reference):
    report = run_file(shared / "vectors" / "softstack_cases.json", reference=reference)
    assert (report.steps, report.mismatches, report.details) == (312, 0, [])


@pytest.mark.parametrize("reference", [False, True], ids=["compiled", "reference"])
def test_own_vectors(reference):
    report = run_file(OWN, reference=reference)
    assert (report.steps, report.mismatches, report.details) == (150, 0, [])


def test_own_vectors_are_what_the_script_makes(capsys):
    script = runpy.run_path(str(CONFORMANCE / "make_stack_vectors.py"))
    assert script["main"](["--check"]) == 0, capsys.readouterr().out


def test_a_changed_figure_is_one_mismatch_that_names_it(tmp_path):
    table = json.loads(OWN.read_text())
    row = table["cases"]["equal_times"]["expect"]["free_syncs"]["take_put"]
    row["hits"] += 1
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(table, indent=1))
    report = run_file(path)
    assert (report.steps, report.mismatches) == (150, 1)
    assert "equal_times free_syncs take_put: hits: expected" in report.details[0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.pop("alloc_ns"), "alloc_ns"),
        (lambda t: t["cases"]["equal_times"].pop("trace"), "trace"),
        (lambda t: t["cases"]["equal_times"]["trace"][0].update(op="jump"), "case equal_times"),
        (lambda t: t["cases"]["equal_times"]["expect"].update(later={"none": {}}), "later"),
        (
            lambda t: t["cases"]["equal_times"]["expect"]["free_async"].update(heap={}),
            "case equal_times: stack policy 'heap'",
        ),
    ],
)
def test_a_vector_file_of_another_form_is_refused(tmp_path, change, told):
    table = json.loads(OWN.read_text())
    change(table)
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(table))
    with pytest.raises(InvalidArgumentError, match=told) as error:
        run_file(path)
    assert str(path) in str(error.value)


# ---- policies by name --------------------------------------------------------------------


def test_policies_have_their_parameters():
    assert stacks.policy_names() == [
        "none",
        "unbounded",
        "locked_block",
        "bounded",
        "take_put",
        "sole_user",
        "exclusive_only",
        "pool",
        "per_thread",
        "per_stream",
        "list",
    ]
    assert str(stacks.policy("locked_block")) == "locked_block(limit=128MiB)"
    assert stacks.policy("locked_block(limit=inf)").limit(1) == (1 << 63) - 1
    assert stacks.policy("bounded(fraction=0.25)").limit(64 * MIB) == 16 * MIB
    pool = stacks.policy("pool(k=2)", when_full="wait")
    assert pool.settings == {"k": 2, "when_full": "wait", "limit": 128 * MIB}
    assert stacks.policy(pool, k=5).settings["k"] == 5
    assert str(stacks.policy("locked_block(limit=1000)")) == "locked_block(limit=1000)"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("heap", "stack policy 'heap': expected one of none, unbounded"),
        ("none(limit=1)", "unknown parameter 'limit', expected none, it has no parameter"),
        ("pool(j=1)", "unknown parameter 'j', expected k, when_full, limit"),
        ("pool(k=0)", "k = '0', expected a whole number from 1"),
        ("pool(when_full=panic)", "when_full = 'panic', expected transient or wait"),
        ("locked_block(limit=much)", "limit = 'much', expected bytes, a size as 128MiB, or inf"),
        ("locked_block(limit=-1)", "limit = '-1', expected bytes"),
        ("bounded(fraction=2)", "fraction = '2', expected a part of the device from 0 to 1"),
        ("exclusive_only(strict=very)", "strict = 'very', expected on or off"),
        ("pool(k=1, k=2)", "k is given twice"),
        ("pool(3)", "'3': expected key=value"),
        ("", "expected name or name"),
    ],
)
def test_a_wrong_policy_is_refused(spec, told):
    with pytest.raises(InvalidArgumentError) as error:
        stacks.policy(spec)
    assert told in str(error.value)


def test_what_is_no_policy_is_refused():
    with pytest.raises(InvalidArgumentError, match="a class derived from StackPolicy"):
        stacks.replay(loop(1), object)


# ---- costs and geometry ------------------------------------------------------------------


def test_costs_lie_on_straight_lines_between_points():
    curve = ((10, 100), (20, 200), (40, 100))
    sizes = (0, 10, 15, 20, 30, 40, 99)
    assert [size_cost(curve, size) for size in sizes] == [100, 100, 150, 200, 150, 100, 100]


def test_costs_of_a_machine(tmp_path):
    assert stacks.launch_costs("h200").driver_lock
    assert not stacks.launch_costs("h200").assumed
    assert stacks.launch_costs("gpu-80g").assumed
    assert stacks.launch_costs("h200", wake_ns=1).wake_ns == 1
    text = Path(svmcore.__file__).with_name("data").joinpath("machines/h200.toml").read_text()
    path = tmp_path / "own.toml"
    path.write_text(text.replace("wake_ns = 4600", "wake_ns = 7"))
    assert stacks.launch_costs(path).wake_ns == 7
    assert svmcore.Machine.from_toml(path).name == "h200"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("wake_ns = 4600", "wakes_ns = 1", "unknown key 'wakes_ns', expected alloc, free"),
        ("wake_ns = 4600", "wake_ns = -1", "wake_ns = -1, expected ns, a whole number from 0"),
        ("fair = false", 'fair = "no"', "fair = 'no', expected true or false"),
        ('["1MiB", 48000]', '["2GiB", 48000]', "expected pairs (bytes, ns) of growing size"),
        ('["1MiB", 48000]', '["1 lot", 48000]', "[launch] alloc: expected pairs [size, ns]"),
        ("[launch]", "[[launch]]", "expected one table [launch]"),
    ],
)
def test_a_wrong_table_of_costs_is_refused(tmp_path, old, new, told):
    text = Path(svmcore.__file__).with_name("data").joinpath("machines/h200.toml").read_text()
    assert old in text
    path = tmp_path / "own.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(InvalidArgumentError) as error:
        stacks.launch_costs(path)
    assert told in str(error.value)


def test_machines_that_are_not_there():
    with pytest.raises(InvalidArgumentError, match="expected one of gpu-80g"):
        stacks.launch_costs("h1")
    with pytest.raises(InvalidArgumentError, match="expected a TOML file"):
        stacks.launch_costs("nowhere.toml")


@pytest.mark.parametrize(
    ("sms", "regs", "mib"),
    [
        (132, 32, 1056),
        (132, 64, 528),
        (132, 128, 264),
        (132, 168, 132),
        (132, 255, 132),
        (80, 32, 640),
        (80, 64, 320),
        (80, 128, 160),
        (80, 168, 80),
        (108, 32, 864),
        (108, 64, 432),
        (108, 128, 216),
        (108, 168, 108),
    ],
)
def test_geometry_of_default_launches(sms, regs, mib):
    shape = stacks.geometry(regs_per_thread=regs, num_sms=sms)
    assert shape.size == mib * MIB == shape.warps * 128 * 1024
    assert shape.threads == 8


def test_geometry_is_capped():
    shape = stacks.geometry(regs_per_thread=32, num_sms=10, max_threads_per_block=128)
    assert (shape.teams, shape.threads) == (160, 4)
    shape = stacks.geometry(regs_per_thread=32, num_sms=10, teams=7, threads=64)
    assert (shape.teams, shape.threads) == (7, 32)
    with pytest.raises(InvalidArgumentError, match="expected at most the 65536"):
        stacks.geometry(regs_per_thread=255, num_sms=10, threads=32)
    with pytest.raises(InvalidArgumentError, match="num_sms = 0, expected 1 or more"):
        stacks.geometry(regs_per_thread=32, num_sms=0)
    with pytest.raises(InvalidArgumentError, match=r"teams 2\.5: expected a whole number"):
        stacks.geometry(regs_per_thread=32, num_sms=1, teams=2.5)


# ---- the cliff ---------------------------------------------------------------------------


def test_the_cliff_lies_between_1024_and_1025_warps():
    assert stacks.replay(loop(128), "locked_block", costs=FAST).hits == 19
    assert stacks.replay(loop(129), "locked_block", costs=FAST).hits == 0
    assert stacks.cliff(loop(128), costs=FAST) is None
    found = stacks.cliff(loop(129), costs=FAST)
    assert (found.limit, found.warps_kept, found.smallest_over) == (128 * MIB, 1024, 129 * MIB)
    assert (found.hits, found.best_hits, found.launches) == (0, 19, 20)
    assert found.enough == 129 * MIB


def test_the_cliff_of_several_threads_and_of_a_bound():
    records = [
        stacks.Launch(turn * 1_000_000, thread, thread, teams=8 << thread)
        for turn in range(3)
        for thread in range(3)
    ]
    found = stacks.cliff(stacks.LaunchTrace.of(records), "bounded(bound=8MiB)", costs=FAST)
    assert (found.limit, found.smallest_over, found.enough) == (8 * MIB, 16 * MIB, 32 * MIB)
    assert found.hits < found.best_hits
    found = stacks.cliff(loop(4), "bounded(fraction=0.5)", costs=FAST, capacity=6 * MIB)
    assert found.limit == 3 * MIB
    assert stacks.cliff(loop(4), "none", costs=FAST) is None


def test_a_sweep_finds_it_too():
    results = stacks.sweep(
        loop(129), "locked_block", options={"costs": FAST}, limit=["128MiB", "129MiB", "inf"]
    )
    assert {name: result.hits for name, result in results.items()} == {
        "locked_block(limit=128MiB)": 0,
        "locked_block(limit=129MiB)": 19,
        "locked_block(limit=inf)": 19,
    }
    with pytest.raises(InvalidArgumentError, match="expected one, as limit="):
        stacks.sweep(loop(1), "pool", k=[1], limit=[1])
    with pytest.raises(InvalidArgumentError, match="k: expected one value or more"):
        stacks.sweep(loop(1), "pool", k=[])


# ---- a policy of one's own ---------------------------------------------------------------


class LastNeed(stacks.StackPolicy):
    """A locked block whose limit follows what the last launch needed."""

    def open(self, device):
        super().open(device)
        self.lock = device.lock()
        self.block = None
        self.need = 0

    def acquire(self, request):
        yield stacks.Take(self.lock)
        self.need = request.size
        block, self.block = self.block, None
        if block is not None and block.size < request.size:
            yield from self.device.free(block)
            block = None
        return block or (yield from self.device.allocate(request.size))

    def release(self, request, block):
        self.block = block
        yield stacks.Give(self.lock)

    def trim(self, *, force):
        yield stacks.Take(self.lock)
        limit = max(stacks.SOFTSTACK_CACHE_LIMIT, self.need)
        if self.block is not None and (force or self.block.size > limit):
            block, self.block = self.block, None
            yield from self.device.free(block)
        yield stacks.Give(self.lock)

    def close(self):
        if self.block is not None:
            yield from self.device.free(self.block)


def test_a_policy_of_ones_own_has_no_cliff():
    result = stacks.replay(loop(129), LastNeed, costs=FAST)
    assert (result.policy, result.hits, result.left_bytes) == ("LastNeed", 19, 0)
    same = stacks.replay(loop(128), LastNeed, costs=FAST).to_dict()
    assert same == stacks.replay(loop(128), "locked_block", costs=FAST).to_dict()


class Wrong(stacks.StackPolicy):
    def __init__(self, yields=(), gives=None):
        self.yields = yields
        self.gives = gives

    def acquire(self, request):
        yield from self.yields
        return self.gives


class NoGenerator(stacks.StackPolicy):
    def acquire(self, request):
        return stacks.Block(request.size)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Wrong([7]), "a policy yields 7: expected a step"),
        (Wrong([stacks.Give(stacks.Lock())]), "a lock that is not held: expected Take first"),
        (Wrong(), "policy Wrong: acquire gave None, expected a Block"),
        (NoGenerator, "policy NoGenerator: acquire gave Block"),
    ],
)
def test_a_wrong_policy_of_ones_own_is_told(policy, told):
    space = small_space()
    used = space.system.used("gpu0")
    with pytest.raises(InvalidArgumentError) as error:
        stacks.replay(stacks.LaunchTrace.of([stacks.Launch()]), policy, space=space)
    assert told in str(error.value)
    assert space.system.used("gpu0") == used


def test_what_base_policies_do_not_do():
    with pytest.raises(NotImplementedError):
        stacks.replay(loop(1), stacks.StackPolicy, costs=FAST)


# ---- shared virtual memory on the same device ----------------------------------------------


def small_space():
    machine = svmcore.Machine("small", (Gpu(id=1, vram_pages=(256 * MIB) >> 12),))
    space = svmcore.Space(machine)
    space.map(ADDRESS, 200 * MIB)
    assert space.access(ADDRESS, 200 * MIB, by="gpu0", write=True).ok
    return space


def test_a_cached_block_pushes_pages_out():
    space = small_space()
    trace = stacks.LaunchTrace.of([stacks.Launch(teams=100)])
    result = stacks.replay(trace, "locked_block", space=space)
    assert result.evicted_bytes == 44 * MIB == space.counters()["evicted_bytes"]
    assert sum(size for _, size, at in space.residency(ADDRESS, 200 * MIB) if at == "cpu") == (
        44 * MIB
    )
    # The device was closed: the block's memory is back, the pages stay where they are.
    assert space.system.used("gpu0") == 156 * MIB


def test_who_keeps_a_block_keeps_pages_out():
    """Between two launches the program touches its pages: they come back only without a block."""
    records = [
        stacks.Launch(teams=100),
        stacks.Touch(addr=ADDRESS, size=200 * MIB),
        stacks.Launch(teams=100),
    ]
    trace = stacks.LaunchTrace.of(records)
    pushed = {}
    for policy in ("none", "locked_block"):
        space = small_space()
        pushed[policy] = stacks.replay(trace, policy, space=space).evicted_bytes
    # Without a cache: 44 MiB for each launch. With it, touching 200 MiB in the 156 MiB that
    # the block leaves drives pages out in turn.
    assert pushed["none"] == 88 * MIB
    assert pushed["locked_block"] > pushed["none"]


def test_the_pages_pushed_out_take_their_time():
    trace = stacks.LaunchTrace.of([stacks.Launch(teams=100)])
    alone = stacks.replay(trace, "none", costs=FAST)
    beside = stacks.replay(trace, "none", costs=FAST, space=small_space())
    assert beside.makespan_ns > alone.makespan_ns
    assert beside.hits == alone.hits


def test_two_spaces_of_a_node_make_room():
    space = small_space()
    other = space.system.space()
    other.map(ADDRESS, 40 * MIB)
    assert other.access(ADDRESS, 40 * MIB, by="gpu0", write=True).ok
    trace = stacks.LaunchTrace.of([stacks.Launch(teams=200), stacks.Launch(teams=300)])
    result = stacks.replay(trace, "none", space=other)
    assert result.fatal == 1  # 300 MiB of 256
    assert space.system.used("gpu0") <= 56 * MIB


def test_space_for_maps_what_is_touched():
    touches = [
        stacks.Touch(addr=ADDRESS + 5, size=4096),
        stacks.Touch(addr=ADDRESS, size=1),
        stacks.Touch(addr=ADDRESS + 4096, size=3 * 4096),
    ]
    trace = stacks.LaunchTrace.of([*touches, stacks.Launch()])
    space = stacks.space_for(trace, capacity="16MiB")
    result = stacks.replay(trace, "list", space=space)
    assert result.fatal == 0
    assert space.residency(ADDRESS, 4 * 4096) == [(ADDRESS, 4 * 4096, "gpu0")]
    with pytest.raises(InvalidArgumentError, match="capacity"):
        stacks.space_for(trace, capacity=0)


def test_memory_of_a_space_is_free_again_in_the_end():
    space = small_space()
    before = space.system.used("gpu0")
    trace = stacks.LaunchTrace.of([stacks.Alloc(size=MIB, id="kept"), stacks.Launch()])
    assert stacks.replay(trace, "list", space=space).left_bytes == MIB
    assert space.system.used("gpu0") == before
    strange = stacks.LaunchTrace.of([*[stacks.Launch()] * 2, stacks.Touch(addr=4096, size=1)])
    with pytest.raises(InvalidArgumentError, match=r"touch 0x1000 of 1 bytes: EFAULT"):
        stacks.replay(strange, "list", space=space)
    assert space.system.used("gpu0") == before


def test_touches_need_a_space():
    trace = stacks.LaunchTrace.of([stacks.Touch(addr=ADDRESS, size=1)])
    for readable in (False, True):
        with pytest.raises(InvalidArgumentError, match="expected a space"):
            stacks.replay(trace, "none", readable=readable)
    with pytest.raises(InvalidArgumentError, match="'gpu7': expected one of cpu, gpu0"):
        stacks.replay(trace, "none", space=small_space(), gpu="gpu7")


# ---- results -----------------------------------------------------------------------------


def test_time_a_launch_does_not_count_the_close():
    result = stacks.replay(loop(8), "locked_block")
    assert result.us_per_launch == result.end_ns / 1000 / 20
    assert result.makespan_ns > result.end_ns


def test_a_trace_without_launches():
    result = stacks.replay(stacks.LaunchTrace.of([stacks.Free(id="a")]), "locked_block")
    assert (result.launches, result.us_per_launch, result.makespan_ns) == (0, 0.0, 0)


def test_machine_objects_and_capacities():
    by_name = stacks.replay(loop(8), "pool", machine="h200")
    by_object = stacks.replay(loop(8), "pool", machine=svmcore.Machine.preset("h200"))
    assert by_name == by_object
    other = svmcore.Machine("mine", (Gpu(id=1, vram_pages=1024),))
    assert stacks.replay(loop(8), "pool", machine=other).fatal == 1
    assert stacks.replay(loop(8), "pool", machine=other, capacity="1GiB") == by_name
    with pytest.raises(InvalidArgumentError, match="capacity 0: expected 1 byte or more"):
        stacks.replay(loop(8), "pool", capacity=0)
    endless = stacks.LaunchTrace.of([stacks.Launch(kernel_ns=1 << 60)] * 8)
    with pytest.raises(InvalidArgumentError, match="to fit into 64 bits"):
        stacks.replay(endless, "pool")


def test_compare_names_results_as_they_were_asked_for():
    results = stacks.compare(loop(8), ["none", "pool(k=2)"], costs=FAST)
    assert list(results) == ["none", "pool(k=2)"]
    assert results["pool(k=2)"].policy == "pool(k=2, when_full=transient, limit=128MiB)"
