"""Launch stacks: the compiled loop against the readable one, and what always holds."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svmcore import stacks
from svmcore.errors import InvalidArgumentError
from svmcore.stacks import reference

MIB = 1 << 20

POLICIES = [
    "none",
    "unbounded",
    "locked_block(limit=2MiB)",
    "locked_block(limit=inf)",
    "bounded(bound=2MiB)",
    "bounded(fraction=0.2)",
    "take_put(limit=2MiB)",
    "sole_user(limit=2MiB)",
    "exclusive_only(limit=2MiB)",
    "exclusive_only(strict=on, limit=2MiB)",
    "pool(k=1, limit=2MiB)",
    "pool(k=2, when_full=wait, limit=2MiB)",
    "pool(k=3, limit=inf)",
    "per_thread(limit=2MiB)",
    "per_thread(at_thread_end=free, limit=inf)",
    "per_stream(limit=2MiB)",
    "list",
]

# Few values, so that times, sizes and ids meet.
times = st.sampled_from([0, 0, 0, 100, 150, 1000, 5000])
threads = st.integers(0, 3)
sizes = st.sampled_from([1, 1, 2, 3, 4]).map(lambda mib: mib * MIB)
launches = st.fixed_dictionaries(
    {
        "op": st.just("launch"),
        "t": times,
        "thread": threads,
        "stream": st.integers(0, 2),
        "bytes": sizes,
        "kernel_ns": st.sampled_from([0, 1, 100, 200, 3000]),
    }
)
names = st.sampled_from("abc")
allocs = st.fixed_dictionaries(
    {"op": st.just("alloc"), "t": times, "thread": threads, "bytes": sizes, "id": names}
)
frees = st.fixed_dictionaries({"op": st.just("free"), "t": times, "thread": threads, "id": names})
records = st.lists(st.one_of(launches, launches, allocs, frees), min_size=1, max_size=40)

spans = st.sampled_from([0, 1, 10, 100, 450])
costs = st.builds(
    stacks.LaunchCosts,
    alloc=st.sampled_from([((0, 100),), ((0, 0),), ((MIB, 100), (3 * MIB, 101), (4 * MIB, 900))]),
    free=st.sampled_from([((0, 50),), ((0, 0),), ((2 * MIB, 70), (4 * MIB, 10))]),
    host_ns=spans,
    launch_ns=spans,
    kernel_ns=spans,
    wait_ns=spans,
    spin_ns=spans,
    drain_ns=spans,
    turn_ns=spans,
    wake_ns=spans,
    free_waits=st.booleans(),
    driver_lock=st.booleans(),
    fair=st.booleans(),
    concurrent=st.booleans(),
)
capacities = st.sampled_from([3, 4, 6, 9, 64]).map(lambda mib: mib * MIB)


def stack_levels(trace, policy, cost, capacity):
    """The result, and the bytes of all stack blocks after each change, the close included."""
    result = stacks.replay(trace, policy, costs=cost, capacity=capacity, events=True)
    return result, [value for _, _, what, value in result.events if what == "stack"]


@given(records, st.sampled_from(POLICIES), costs, capacities)
def test_compiled_equals_readable(rows, policy, cost, capacity):
    trace = stacks.LaunchTrace.of(rows)
    compiled = stacks.replay(trace, policy, costs=cost, capacity=capacity)
    readable = stacks.replay(trace, policy, costs=cost, capacity=capacity, readable=True)
    assert compiled == readable
    assert compiled == stacks.replay(trace, policy, costs=cost, capacity=capacity)


@given(records, st.sampled_from(POLICIES), costs, capacities)
def test_blocks_are_within_capacity_and_gone_after_close(rows, policy, cost, capacity):
    trace = stacks.LaunchTrace.of(rows)
    # A block that is freed twice would raise here.
    result, levels = stack_levels(trace, policy, cost, capacity)
    assert result.device_peak_bytes <= capacity
    assert result.stack_peak_bytes == max(levels, default=0) <= capacity
    assert min(levels, default=0) >= 0
    assert not levels or levels[-1] == 0
    # A launch hits, allocates, ends its thread, or waits for ever behind one that did.
    rest = result.launches - result.hits - result.stack_allocs - result.fatal
    assert 0 <= rest <= result.stuck
    assert result.stack_allocs <= result.allocs
    live = result.allocs - result.frees
    assert (live == 0) == (result.left_bytes == 0)
    if policy == "none" and not result.fatal:
        assert result.kept_bytes == 0


@given(records, costs, st.sampled_from(["locked_block(limit=2MiB)", "unbounded"]))
def test_locked_block_has_at_most_one_block(rows, cost, policy):
    _, levels = stack_levels(stacks.LaunchTrace.of(rows), policy, cost, 64 * MIB)
    # From one block to the next the old one goes first: every other level is 0.
    assert all(not one or not other for one, other in itertools.pairwise(levels))


@given(records, costs, st.integers(1, 4))
def test_pool_has_at_most_k_blocks(rows, cost, k):
    for row in rows:
        row["bytes"] = MIB
    trace = stacks.LaunchTrace.of(
        [{key: row[key] for key in row if row["op"] != "free" or key != "bytes"} for row in rows]
    )
    _, levels = stack_levels(trace, f"pool(k={k}, when_full=wait)", cost, 256 * MIB)
    assert max(levels, default=0) <= k * MIB
    result, _ = stack_levels(trace, f"pool(k={k})", cost, 256 * MIB)
    assert result.kept_bytes <= k * MIB


@given(records, capacities, costs, st.integers(1, 4), st.integers(0, 4))
def test_more_limit_never_lowers_the_hits_of_one_thread(rows, capacity, cost, limit, more):
    for row in rows:
        row["thread"] = 0
    trace = stacks.LaunchTrace.of(rows)
    low, high = (
        stacks.replay(
            trace, stacks.policy("locked_block", limit=size * MIB), costs=cost, capacity=capacity
        )
        for size in (limit, limit + more)
    )
    if not low.fatal and not high.fatal:
        assert low.hits <= high.hits


@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.lists(st.sampled_from([1, 100, 3000]), min_size=4, max_size=4),
    costs,
)
def test_pool_of_enough_blocks_hits_as_one_a_thread(threads, each, kernels, cost):
    """All threads are busy from the start with blocks of one size: none finds another's idle."""
    trace = stacks.LaunchTrace.of(
        [
            stacks.Launch(thread=thread, stream=thread, teams=1, kernel_ns=kernels[thread])
            for _ in range(each)
            for thread in range(threads)
        ]
    )
    cost = dataclasses.replace(cost, alloc=((0, 10),), driver_lock=False)
    pool, own = (
        stacks.replay(trace, policy, costs=cost, capacity=64 * MIB)
        for policy in (f"pool(k={threads})", "per_thread")
    )
    assert pool.hits == own.hits == threads * (each - 1)


@given(records, st.sampled_from(POLICIES), costs)
def test_order_of_threads_in_the_file_does_not_matter(rows, policy, cost):
    """Each thread's own order counts; how the threads are interleaved in the file does not."""
    by_thread = sorted(rows, key=lambda row: row["thread"])
    one, other = (
        stacks.replay(stacks.LaunchTrace.of(order), policy, costs=cost, capacity=9 * MIB)
        for order in (rows, by_thread)
    )
    assert one == other


def test_a_freed_block_is_not_freed_again():
    class Twice(reference.StackPolicy):
        def acquire(self, request):
            return (yield from self.device.allocate(request.size))

        def release(self, request, block):
            yield from self.device.free(block)
            yield from self.device.free(block)

    trace = stacks.LaunchTrace.of([stacks.Launch()])
    with pytest.raises(InvalidArgumentError, match="freed twice"):
        stacks.replay(trace, Twice)
