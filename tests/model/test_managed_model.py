"""Managed memory by properties: against a page-by-page twin, its invariants, CUDA against ACL.

The twin keeps one :class:`Page` a page in a dictionary and folds queries over
it; the memory keeps spans. Both must agree after every step.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from managed_kit import memory
from svmcore.managed import Location, ManagedError
from svmcore.managed.moves import take_step
from svmcore.managed.rules import ACL, CUDA, DIFFERENCES, RULES
from svmcore.managed.state import HOST, Page, ReadMostly, Step, Topology, bit, members

DEVICES = 3
GRANULES = 6
PLACES = (Location.host(), *(Location.device(i) for i in range(DEVICES)))
NODES = (Location.host_numa(0), Location.host_numa(1))
ADVICE = ("read_mostly", "preferred_location", "accessed_by")
SCALARS = (
    "READ_MOSTLY",
    "PREFERRED_LOCATION",
    "PREFERRED_LOCATION_TYPE",
    "PREFERRED_LOCATION_ID",
    "LAST_PREFETCH_LOCATION",
    "LAST_PREFETCH_LOCATION_TYPE",
    "LAST_PREFETCH_LOCATION_ID",
)

spans = st.tuples(st.integers(0, GRANULES - 1), st.integers(1, GRANULES)).map(
    lambda s: (s[0], min(s[1], GRANULES - s[0]))
)
places = st.sampled_from((*PLACES, *NODES))
processors = st.integers(HOST, DEVICES)


def number(place):
    if place is None:
        return -2
    return -1 if place.is_host else place.id


class ManagedMachine(RuleBasedStateMachine):
    """One allocation, and its pages one by one."""

    @initialize(semantics=st.sampled_from(sorted(RULES)), link=st.sampled_from([0, 1]))
    def start(self, semantics, link):
        # Devices of one hive reach each other.
        self.space = memory(semantics, devices=DEVICES, hive=link, nodes=2)
        self.rules = RULES[semantics]
        self.granule = self.space.granule
        self.ptr = self.space.alloc(GRANULES * self.granule)
        self.topology = Topology.of(self.space.machine)
        self.pages = [Page()] * GRANULES
        self.touched = set()

    def play(self, span, step, call):
        """The step on both; the twin stops where a page refuses, as the memory must."""
        first, count = span
        addr, size = self.ptr + first * self.granule, count * self.granule
        refused = False
        for i in range(first, first + count):
            moved = take_step(self.rules, self.topology, self.pages[i], step)
            if moved.refused:
                refused = True
                break
            self.pages[i] = moved.page
            if moved.page.copies:
                self.touched.add(i)
        if refused:
            with pytest.raises(ManagedError):
                call(addr, size)
        else:
            call(addr, size)

    @rule(span=spans, word=st.sampled_from(ADVICE), on=st.booleans(), place=places)
    def advise(self, span, word, on, place):
        if word == "accessed_by" and place in NODES:
            place = PLACES[0]
        ignored = (word, on) in self.space.ignores_place
        step = Step(word, on, None if ignored else place)
        name = word if on else f"unset_{word}"
        self.play(span, step, lambda a, n: self.space.mem_advise(a, n, name, place))

    @rule(span=spans, place=places)
    def prefetch(self, span, place):
        step = Step("prefetch", True, place)
        self.play(span, step, lambda a, n: self.space.mem_prefetch(a, n, place))

    @rule(span=spans, who=processors, write=st.booleans())
    def access(self, span, who, write):
        step = Step("access", write, None, who)
        self.play(span, step, lambda a, n: self.space.access(a, n, by=who - 1, write=write))

    @rule(span=spans)
    def discard(self, span):
        if self.rules.vendor == "cuda":
            step = Step("discard")
            self.play(span, step, lambda a, n: self.space.mem_discard_batch([a], [n]))

    @invariant()
    def pages_agree(self):
        got = [self.space.raw(self.ptr + i * self.granule) for i in range(GRANULES)]
        assert got == self.pages

    @invariant()
    def rules_hold(self):
        for i, page in enumerate(self.pages):
            # Copies never empty after the first touch.
            assert bool(page.copies) == (i in self.touched)
            assert page.mapped | page.writable == page.mapped
            if page.copies.bit_count() > 1:
                assert page.read_mostly == ReadMostly.ENABLED
                assert not page.writable
            if page.copies:
                assert page.copies & bit(page.owner)
            if self.rules.vendor == "acl":
                assert page.mapped == page.copies
                if page.read_mostly:
                    assert page.copies & bit(HOST)  # D8
            for who in members(page.mapped):
                # Whoever maps memory can reach it.
                assert page.copies & self.topology.can[who]

    @invariant()
    def memory_in_use_is_what_the_pages_take(self):
        for device in range(DEVICES):
            copies = sum(page.copies >> device + 1 & 1 for page in self.pages)
            assert self.space.used(device) == copies * self.granule

    @rule(span=spans, slots=st.integers(1, 5))
    def queries_are_a_fold_over_pages(self, span, slots):
        first, count = span
        pages = self.pages[first : first + count]
        addr, size = self.ptr + first * self.granule, count * self.granule

        def common(values):
            folded = {
                Location.host() if self.rules.one_host and v and v.is_host else v for v in values
            }
            return folded.pop() if len(folded) == 1 else None

        preferred = common(page.preferred for page in pages)
        fetched = common(page.last_prefetch for page in pages)
        wanted = [int(all(page.read_mostly == ReadMostly.ENABLED for page in pages))]
        for place in (preferred, fetched):
            told = number(place)
            if self.rules is ACL and place in NODES:
                told = place.id  # the document tells the node
            wanted += [told, place.type if place else 0, place.id if place else 0]
        got = [self.space.mem_range_get_attribute(name, addr, size) for name in SCALARS]
        assert got == wanted
        mask = ~0
        for page in pages:
            mask &= page.accessed_by
        listed = [p - 1 for p in members(mask)] + [-2] * slots
        assert (
            self.space.mem_range_get_attribute("ACCESSED_BY", addr, size, 4 * slots)
            == listed[:slots]
        )


TestManagedMachine = ManagedMachine.TestCase
TestManagedMachine.settings = settings(max_examples=120, stateful_step_count=30)


# ---- SET, then UNSET -----------------------------


def answers(space, ptr):
    scalars = [space.mem_range_get_attribute(name, ptr, space.granule) for name in SCALARS]
    return [*scalars, space.mem_range_get_attribute("ACCESSED_BY", ptr, space.granule, 20)]


@given(
    semantics=st.sampled_from(sorted(RULES)),
    word=st.sampled_from(ADVICE),
    place=st.sampled_from(PLACES),
    before=st.lists(st.tuples(processors, st.booleans()), max_size=4),
)
@settings(max_examples=200)
def test_unset_after_set_restores_every_query(semantics, word, place, before):
    space = memory(semantics, devices=DEVICES)
    ptr = space.alloc(space.granule)
    for who, write in before:
        space.access(ptr, by=who - 1, write=write)
    asked = answers(space, ptr)
    try:
        space.mem_advise(ptr, space.granule, word, place)
    except ManagedError:
        assert (semantics, word) == ("acl", "preferred_location")
    else:
        space.mem_advise(ptr, space.granule, f"unset_{word}", place)
    assert answers(space, ptr) == asked


# ---- memory pressure ---------------------------------------------------------------------------

MIB2 = 2 << 20
BLOCKS = 6
pressing = st.lists(
    st.tuples(
        st.sampled_from(["access", "read_mostly", "unset_read_mostly", "prefetch", "free"]),
        st.integers(0, BLOCKS - 1),
        st.integers(1, 3),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=30,
)


@given(semantics=st.sampled_from(sorted(RULES)), calls=pressing)
@settings(max_examples=200)
def test_devices_never_hold_more_than_they_have(semantics, calls):
    """Two blocks a device, six in use: what is pushed out is not lost, what is held is counted."""
    space = memory(semantics, devices=2, vram_mib=4)
    ptr, other = space.alloc(BLOCKS * MIB2), space.alloc(MIB2)
    touched = set()
    for word, first, count, who, write in calls:
        count = min(count, BLOCKS - first)
        addr, size = ptr + first * MIB2, count * MIB2
        try:
            if word == "access":
                space.access(addr, size, by=who - 1, write=write)
                touched |= set(range(first, first + count))
            elif word == "prefetch":
                space.mem_prefetch(addr, size, who - 1)
            elif word == "free":
                space.free(other)
                other = space.alloc(MIB2)
                space.access(other, MIB2, by="gpu0", write=write)
            else:
                space.mem_advise(addr, size, word, who - 1)
        except ManagedError as error:
            if error.rule != "D13":  # the only refusal here
                raise
        held = [0, 0]
        for number in range(BLOCKS + 1):
            start = other if number == BLOCKS else ptr + number * MIB2
            pages = [space.raw(start), space.raw(start + MIB2 - 4096)]
            assert pages[0] == pages[1]
            assert pages[0].copies or number not in touched
            for device in range(2):
                held[device] += MIB2 * (pages[0].copies >> device + 1 & 1)
        assert held == [space.used(0), space.used(1)]
        assert max(held) <= 2 * MIB2


# ---- CUDA against ACL -----------------------------

TOPOLOGIES = [
    Topology.of(memory("cuda", devices=DEVICES, hive=link, coherent=coherent).machine)
    for link in (0, 1)
    for coherent in (False, True)
]
steps = st.one_of(
    st.builds(Step, st.sampled_from(ADVICE), st.booleans(), st.sampled_from(PLACES), st.just(HOST)),
    st.builds(Step, st.just("prefetch"), st.just(True), st.sampled_from(PLACES), st.just(HOST)),
    st.builds(Step, st.just("access"), st.booleans(), st.none(), processors),
    st.builds(Step, st.just("discard")),
)


def seen(moved):
    """What both dialects can be asked: CUDA's third value of read mostly is none of it."""
    page = moved.page
    enabled = page.read_mostly == ReadMostly.ENABLED
    return page._replace(read_mostly=enabled), moved.faulted, moved.refused


def both(topology, page, step):
    return [seen(take_step(rules, topology, page, step)) for rules in (CUDA, ACL)]


@given(topology=st.sampled_from(TOPOLOGIES), steps=st.lists(steps, max_size=25))
@settings(max_examples=400)
def test_cuda_and_acl_differ_only_at_the_rows(topology, steps):
    page = Page()
    for step in steps:
        cuda, acl = both(topology, page, step)
        if cuda != acl:
            rows = [row.rows for row in DIFFERENCES if row.applies(page, step)]
            assert rows, f"{step} on {page}: cuda {cuda}, acl {acl}"
        # Go on from one state, that of ACL where it has the step, so that a difference
        # does not hide the next.
        if step.word != "discard":
            page = take_step(ACL, topology, page, step).page


def reachable():
    """Every state that ACL and CUDA reach from an untouched page in four steps."""
    topology = TOPOLOGIES[0]
    every = [
        *(Step(word, on, place) for word in ADVICE for on in (True, False) for place in PLACES[:3]),
        *(Step("access", write, None, who) for write in (True, False) for who in range(3)),
        *(Step("prefetch", True, place) for place in PLACES[:3]),
    ]
    pages = {Page()}
    fresh = {Page()}
    for _ in range(3):
        fresh = {
            take_step(rules, topology, page, step).page
            for page in fresh
            for step in every
            for rules in (CUDA, ACL)
        } - pages
        pages |= fresh
    return topology, every, pages


def test_every_row_is_seen_and_no_other_difference():
    """All states within three steps, all steps: no difference outside the rows, each row seen."""
    topology, every, pages = reachable()
    differing, agreeing = Counter(), Counter()
    for page in pages:
        for step in (*every, Step("discard")):
            if step.word == "discard" and not page.copies:
                continue
            cuda, acl = both(topology, page, step)
            rows = [row.rows for row in DIFFERENCES if row.applies(page, step)]
            if cuda != acl:
                assert rows, f"{step} on {page}: cuda {cuda}, acl {acl}"
                differing.update(rows)
            elif not rows:
                agreeing[step.word] += 1
    assert set(differing) == {row.rows for row in DIFFERENCES}
    # What no row names is the same: most steps of each kind but prefetch and discard.
    assert {word for word, times in agreeing.items() if times > 100} == {*ADVICE, "access"}
