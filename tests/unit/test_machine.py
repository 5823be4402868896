"""Machines: presets, TOML files and what is wrong with them."""

import dataclasses
import itertools
from importlib import resources

import pytest

from svmcore import Gpu, Machine, Space
from svmcore.errors import InvalidArgumentError
from svmcore.machine import Costs, preset_names

COSTS = (
    "fault_ns",
    "unmap_ns",
    "migrate_latency_ns",
    "migrate_bytes_per_s",
    "peer_latency_ns",
    "peer_bytes_per_s",
    "remote_access_ns",
    "remote_bytes_per_s",
)
CURVES = ("to_device_curve", "to_host_curve", "peer_curve")
LATER = ("fault_batch_ns", "fault_in_batch_ns", "evict_ns", "map_ns")
GOOD = 'name = "mine"\n[[gpu]]\nid = 7\nvram = "1GiB"\n[costs]\n' + "".join(
    f'{key} = {{ value = {i + 1}, source = "measured", note = "n" }}\n'
    for i, key in enumerate(COSTS)
)


def curve(points):
    return f'[costs]\npeer_curve = {{ value = {points}, source = "measured" }}\n'


def written(tmp_path, text):
    path = tmp_path / "machine.toml"
    path.write_text(text)
    return path


def test_presets():
    assert preset_names() == sorted(preset_names())
    assert {"gpu-80g", "mi300a"} <= set(preset_names())
    for name in preset_names():
        machine = Machine.preset(name)
        assert machine.name == name
        assert len(machine.gpus) >= 1
        curves = {key for key in CURVES if getattr(machine.costs, key)}
        assert set(machine.costs.sources) == {*COSTS, *LATER, *curves}
        named = (resources.files("svmcore") / "data" / "machines" / f"{name}.toml").read_text()
        assert all(f"\n{key} = " in named for key in (*COSTS, *LATER)), "no default in a preset"
        assert Space(name).machine == machine
    default = Machine.preset("gpu-80g")
    assert [gpu.vram_pages for gpu in default.gpus] == [80 << 18]
    assert Machine.preset("mi300a").gpus[0].apu


def test_unknown_preset():
    with pytest.raises(InvalidArgumentError, match=r"gpu-81g.*gpu-80g, grace-hopper"):
        Machine.preset("gpu-81g")
    with pytest.raises(InvalidArgumentError, match="gpu-80g"):
        Space("../gpu-80g")


def test_file(tmp_path):
    machine = Machine.from_toml(written(tmp_path, GOOD))
    assert machine.gpus == (Gpu(7, 1 << 18),)
    assert machine.costs.fault_ns == 1
    assert machine.costs.remote_bytes_per_s == 8
    assert machine.costs.assumed == sorted(LATER)  # a default is an assumption
    for where in (tmp_path / "machine.toml", str(tmp_path / "machine.toml"), machine):
        assert Machine.resolve(where) == machine
        assert Space(where).machine.name == "mine"


def test_file_with_every_key_of_a_gpu(tmp_path):
    extra = "hive = 3\ndevice = 5\napu = true\nsvm = false\ncoherent = true\ncount = 2\n"
    text = GOOD.replace('vram = "1GiB"\n', 'vram = "1GiB"\n' + extra)
    machine = Machine.from_toml(written(tmp_path, text))
    fields = {"hive": 3, "adev": 5, "apu": True, "svm": False, "coherent": True}
    assert machine.gpus == (Gpu(7, 1 << 18, **fields), Gpu(8, 1 << 18, **fields))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "mine"\n', "", "'name' is missing"),
        ("[[gpu]]\nid = 7\n", "[[gpu]]\n", "'id' is missing"),
        ('vram = "1GiB"\n', "", "'vram' is missing"),
        ("id = 7\n", "id = 7\ncolour = 3\n", "'colour', expected id, vram, hive"),
        ("name", "title = 3\nname", "'title', expected name, gpu, costs"),
        ("fault_ns = {", "fualt_ns = {", "'fualt_ns', expected fault_ns, unmap_ns"),
        ("value = 3, ", "", "migrate_latency_ns.*'value' is missing"),
        ('value = 3, source = "measured", ', "value = 3, ", "migrate_latency_ns.*'source'"),
        ('value = 3, source = "measured"', 'value = 3, source = "guess"', "guess.*published"),
        ("value = 3", "value = 0", "migrate_latency_ns.*more than 0"),
        ("value = 3", "value = -1", "migrate_latency_ns.*more than 0"),
        ("value = 3", "value = true", "migrate_latency_ns.*more than 0"),
        ("value = 3", 'value = "fast"', "migrate_latency_ns.*more than 0"),
        ("value = 3", "value = nan", "migrate_latency_ns.*more than 0"),
        ('note = "n" }\nunmap_ns', 'nota = "n" }\nunmap_ns', "fault_ns.*note"),
        ('"1GiB"', '"1 parsec"', "parsec.*40GiB"),
        ('"1GiB"', "-1", "0 or more bytes"),
        ('"1GiB"', '"100"', "more than 0"),
        ('"1GiB"', "[1]", "vram"),
        ('"1GiB"', "1.5", "vram"),
        ("id = 7", "id = 0", "gpu id 0"),
        ("id = 7", "id = 4294967295", "gpu id 4294967295"),
        ("id = 7", 'id = "seven"', "id"),
        ("id = 7", "id = 7\ncount = 65", "at most 64"),
        ("id = 7", "id = 7\ncount = 0", "count"),
        ("id = 7", 'id = 7\nhive = "x"', "hive"),
        ("id = 7", 'id = 7\napu = "no"', "apu"),
        ("[[gpu]]\n", "[gpu]\n", "gpu"),
        (
            "fault_ns = {",
            "evict_ns = { value = -1, source = 'assumed' }\nfault_ns = {",
            "0 or more",
        ),
        ("fault_ns = {", "map_ns = 3\nfault_ns = {", "map_ns.*source"),
        ("[costs]\n", curve("[[4096, 7], [4096, 8]]"), r"peer_curve: point \[4096, 8\].*above"),
        ("[costs]\n", curve("[[4096, 7], [8192, 6]]"), r"peer_curve: point \[8192, 6\].*above"),
        ("[costs]\n", curve("[[4096]]"), r"peer_curve: point \[4096\]"),
        ("[costs]\n", curve("[]"), "1 to 15 points"),
        ("[costs]\n", curve("7"), "1 to 15 points"),
        ("name", "hive_link = 'wet string'\nname", "wet string.*xgmi, nvlink"),
        ("name", "pcie_peers = 3\nname", "pcie_peers.*true or false"),
        ("[costs]", "[cost]", "'cost', expected name, gpu, costs"),
        ("[costs]", "[[costs]]", "costs"),
        ("name =", "name", "TOML"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, old, new, words):
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        Machine.from_toml(path)
    assert "\n" not in str(caught.value)
    assert "machine" in str(caught.value)


@pytest.mark.parametrize("key", COSTS)
def test_no_cost_is_left_to_chance(tmp_path, key):
    lines = [line for line in GOOD.splitlines() if not line.startswith(key)]
    with pytest.raises(InvalidArgumentError, match=f"'{key}' is missing"):
        Machine.from_toml(written(tmp_path, "\n".join(lines)))


def test_files_that_are_none(tmp_path):
    binary = tmp_path / "binary.toml"
    binary.write_bytes(bytes(range(256)))
    for path in (tmp_path, tmp_path / "absent.toml", binary):
        with pytest.raises(InvalidArgumentError, match="expected a TOML file") as caught:
            Machine.from_toml(path)
        assert str(path) in str(caught.value)
        assert caught.value.code == "EINVAL"


def test_machine_by_hand():
    with pytest.raises(InvalidArgumentError, match="at most 64"):
        Machine("m", tuple(Gpu(i + 1, 1) for i in range(65)))
    with pytest.raises(InvalidArgumentError, match="unique"):
        Machine("m", (Gpu(3, 1), Gpu(3, 1)))
    with pytest.raises(InvalidArgumentError, match="more than 0"):
        Machine("m", (Gpu(3, 0),))
    for number in (0, 0xFFFFFFFF, -1, 1 << 32):
        with pytest.raises(InvalidArgumentError, match="0xfffffffe"):
            Machine("m", (Gpu(number, 1),))
    assert len(Machine("m", tuple(Gpu(i + 1, 1) for i in range(64))).gpus) == 64


def test_a_machine_without_a_gpu():
    space = Space(Machine("host", ()))
    space.map(1 << 30, 4096)
    assert space.access(1 << 30, by="cpu").ok
    with pytest.raises(InvalidArgumentError, match="expected one of cpu"):
        space.access(1 << 30, by="gpu0")


def test_machines_are_frozen_and_comparable():
    machine = Machine.preset("gpu-80g")
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine.name = "x"
    assert machine == Machine.preset("gpu-80g")


def test_assumed_costs():
    every = (*COSTS, *LATER)
    assert Costs().assumed == sorted(every)
    assert Costs(sources=dict.fromkeys(every, "measured")).assumed == []
    assert Costs(sources={**dict.fromkeys(every, "published"), "fault_ns": "assumed"}).assumed == [
        "fault_ns"
    ]
    assert Costs(peer_curve=((4096, 1.0),), sources=dict.fromkeys(every, "measured")).assumed == [
        "peer_curve"
    ]
    assert Costs().assumed_of(["map_ns", "fault_ns"]) == ["fault_ns", "map_ns"]


def test_costs_enter_the_modelled_time():
    page, base = 4096, 1 << 40
    quick, slow = Costs(fault_ns=1000), Costs(fault_ns=51_000)
    times = []
    for costs in (quick, slow):
        space = Space(Machine("m", (Gpu(1, 1 << 20),), costs))
        space.map(base, 512 * page)
        times.append(space.access(base, 512 * page).ready_ns)
    assert times[1] - times[0] == 50_000
    # 512 pages at 1 GB/s: 2097 us, and the latency.
    space = Space(
        Machine("m", (Gpu(1, 1 << 20),), Costs(migrate_latency_ns=7000, migrate_bytes_per_s=1e9))
    )
    space.map(base, 512 * page)
    assert space.prefetch(base, 512 * page, "gpu0") == 7000 + 2_097_152


def test_missing_constant_lists_the_known(tmp_path):
    text = "\n".join(line for line in GOOD.splitlines() if not line.startswith("unmap_ns"))
    with pytest.raises(
        InvalidArgumentError, match=r"'unmap_ns' is missing.*fault_ns.*remote_bytes"
    ):
        Machine.from_toml(written(tmp_path, text))


def test_links_between_processors():
    two = Machine.preset("h200-x2")
    assert [two.link(0, 1), two.link(2, 0), two.link(1, 2), two.link(2, 2)] == [
        "pcie",
        "pcie",
        "nvlink",
        "local",
    ]
    assert Machine.preset("mi300x-8").link(1, 8) == "xgmi"
    assert Machine.preset("grace-hopper").link(0, 1) == "coherent"
    assert Machine.preset("mi300a").link(1, 0) == "coherent"
    cards = (Gpu(1, 9, adev=4), Gpu(2, 9, adev=4), Gpu(3, 9, hive=1))
    assert Machine("m", cards).link(1, 2) == "local"
    assert Machine("m", cards).link(1, 3) == "none"
    assert Machine("m", cards, pcie_peers=True).link(1, 3) == "peer"
    for a, b in ((0, 4), (-1, 0)):
        with pytest.raises(InvalidArgumentError, match=r"processor .*, expected 0 to 3"):
            Machine("m", cards).link(a, b)


def test_capacity_of_a_device():
    two = Machine.preset("h200-x2")
    small = two.with_capacity({"gpu1": (2 << 20) + 5})
    assert [gpu.vram_pages for gpu in small.gpus] == [two.gpus[0].vram_pages, 512]
    assert small.with_capacity({"gpu1": 141 * 10**9}) == two
    for bad, words in (({"gpu2": 4096}, "'gpu2'.*gpu0, gpu1"), ({"gpu0": -1}, "-1 bytes")):
        with pytest.raises(InvalidArgumentError, match=words):
            two.with_capacity(bad)


def test_transfers_follow_their_curve():
    linear = Costs(migrate_latency_ns=1000, migrate_bytes_per_s=1e9)
    assert [linear.transfer_ns(n) for n in (0, 1, 4096)] == [1000, 1001, 5096]
    bent = dataclasses.replace(linear, to_device_curve=((4096, 2000.0), (8192, 2000.0)))
    assert [bent.transfer_ns(n) for n in (0, 2048, 4096, 6000, 8192, 9192)] == [
        1000,
        1500,
        2000,
        2000,
        2000,
        3000,
    ]
    assert bent.transfer_ns(4096, "to_host") == 5096
    with pytest.raises(InvalidArgumentError, match="to_device, to_host or peer"):
        bent.transfer_ns(1, "sideways")


@pytest.mark.parametrize("name", preset_names())
def test_measured_points_are_on_the_curves(name):
    costs = Machine.preset(name).costs
    for way in ("to_device", "to_host", "peer"):
        for nbytes, ns in getattr(costs, f"{way}_curve"):
            assert abs(costs.transfer_ns(nbytes, way) - ns) <= 1
        sizes = [0, *(4096 << i for i in range(20))]
        times = [costs.transfer_ns(size, way) for size in sizes]
        assert all(one <= other for one, other in itertools.pairwise(times))
