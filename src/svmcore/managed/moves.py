"""The page machine: one step on one page, under the rules of a dialect.

Pure: a page and a step in, the new page and its events out. Rule names are those
of ``docs/explain/managed.md``: A1 to A30 the ACL document, D1 to D14 its driver,
C1 to C15 CUDA, R1 to R11 CUDA's order of residency decisions.
"""

from __future__ import annotations

from typing import NamedTuple

from .enums import CudaMemLocationType, Location
from .rules import Rules
from .state import (
    HOST,
    NOBODY,
    Event,
    Page,
    ReadMostly,
    Step,
    Topology,
    bit,
    members,
    processor_of,
)

__all__ = ["Moved", "take_step"]


class Moved(NamedTuple):
    """What one step did to one page."""

    page: Page
    events: tuple[Event, ...] = ()
    faulted: bool = False
    """An access met no sufficient mapping."""
    refused: tuple[str, str] | None = None
    """Kind of failure and rule; the page is then as before."""


def take_step(rules: Rules, nodes: Topology, page: Page, step: Step) -> Moved:
    """Do one step.

    Parameters
    ----------
    rules : Rules
    nodes : Topology
    page : Page
    step : Step

    Complexity
    ----------
    O(processors).
    """
    if step.word == "access":
        return _access(rules, nodes, page, step.by, step.on)
    if step.word == "read_mostly":
        return (
            _set_read_mostly(rules, page)
            if step.on
            else _unset_read_mostly(rules, nodes, page, step)
        )
    if step.word == "preferred_location":
        return (
            _set_preferred(rules, nodes, page, step)
            if step.on
            else _unset_preferred(rules, nodes, page)
        )
    if step.word == "accessed_by":
        return _accessed_by(rules, nodes, page, step)
    if step.word == "prefetch":
        prefetch = _prefetch if rules.prefetch_populates else _prefetch_acl
        return prefetch(rules, nodes, page, step)
    if step.word == "discard":
        return _discard(page) if rules.discards else Moved(page, refused=("unsupported", "C12"))
    if step.word == "fill":
        return _fill(page, step)
    return _evict(rules, nodes, page, step.by)


# ---- mappings ----------------------------------------------------------------------------


def _settled(rules: Rules, nodes: Topology, page: Page, at: int, *, mapping: int) -> Page:
    """The page with its only copy at *at*, mapped by *mapping* and those advised to reach it."""
    mapped = mapping | (_advised_mappings(nodes, page, at) if rules.remote_mappings else 0)
    return page._replace(
        copies=bit(at),
        owner=at,
        mapped=mapped,
        writable=mapped,
        node=_home_node(rules, page, at),
        discarded=False,
    )


def _home_node(rules: Rules, page: Page, at: int) -> int:
    """NUMA node of data that comes to *at*: the preferred one, if the host is preferred (C3)."""
    home = page.preferred
    if rules.advice_guides_faults and at == HOST and home is not None and _names_node(home):
        return home.id
    return page.node


def _names_node(place: Location) -> bool:
    return place.type == CudaMemLocationType.HOST_NUMA


def _advised_mappings(nodes: Topology, page: Page, at: int) -> int:
    """Processors of accessed-by that map memory at *at* (C7).

    A preferred processor never maps memory of another: its touch brings the page (C9).
    """
    if page.read_mostly == ReadMostly.ENABLED or page.discarded:
        return 0
    home = NOBODY if page.preferred is None else processor_of(page.preferred)
    return sum(
        bit(p) for p in members(page.accessed_by) if nodes.reaches(p, at) and (p != home or p == at)
    )


def _mapped_again(rules: Rules, nodes: Topology, page: Page) -> tuple[Page, tuple[Event, ...]]:
    """The page with the mappings of accessed-by added where a single copy lies."""
    if not rules.remote_mappings or not page.copies or page.copies & (page.copies - 1):
        return page, ()
    at = next(members(page.copies))
    added = _advised_mappings(nodes, page, at) & ~page.mapped
    events = tuple(Event("map", at, p) for p in members(added))
    return page._replace(mapped=page.mapped | added, writable=page.writable | added), events


# ---- read mostly -------------------------------------------------------------------------


def _set_read_mostly(rules: Rules, page: Page) -> Moved:
    """A2, A9, A10, D7, D8; C2: no copy is made, remote mappings go, copies become read-only."""
    if page.read_mostly == ReadMostly.ENABLED:
        return Moved(page)
    copies, owner, events = page.copies, page.owner, []
    if rules.host_copy_at_once:
        if copies and not copies & bit(HOST):
            events.append(Event("copy", owner, HOST))
        elif not copies:
            events.append(Event("populate", target=HOST))
        copies |= bit(HOST)
        owner = HOST
    mapped = (page.mapped & page.copies) | (copies & ~page.copies)
    new = page._replace(
        read_mostly=ReadMostly.ENABLED, copies=copies, owner=owner, mapped=mapped, writable=0
    )
    return Moved(new, tuple(events))


def _unset_read_mostly(rules: Rules, nodes: Topology, page: Page, step: Step) -> Moved:
    """A11 to A16, D3; C4."""
    if page.read_mostly != ReadMostly.ENABLED:
        if rules.collapse == "preferred, any":
            page = page._replace(read_mostly=ReadMostly.DISABLED)
        return Moved(page)
    keeps_state = rules.collapse == "preferred, any"
    off = page._replace(read_mostly=ReadMostly.DISABLED if keeps_state else ReadMostly.UNSET)
    if keeps_state:
        return _collapsed(rules, nodes, off)
    place = step.place
    if rules.collapse == "preferred, location" and page.preferred is not None:
        place = page.preferred
    keep = (
        HOST if place is None or place.type == CudaMemLocationType.INVALID else processor_of(place)
    )
    events = []
    if not page.copies & bit(keep):
        events.append(Event("take", HOST, keep))
    others = page.copies & ~bit(keep)
    if others:
        events.append(Event("free", mask=others))
    return Moved(_settled(rules, nodes, off, keep, mapping=bit(keep)), tuple(events))


def _collapsed(rules: Rules, nodes: Topology, page: Page) -> Moved:
    """C4: one copy stays, the preferred one if there is one, else that of the lowest number.

    Its mapping stays read-only until the next write.
    """
    if not page.copies:
        return Moved(page)
    home = NOBODY if page.preferred is None else processor_of(page.preferred)
    keep = home if home != NOBODY and page.copies & bit(home) else next(members(page.copies))
    others = page.copies & ~bit(keep)
    events: tuple[Event, ...] = (Event("free", mask=others),) if others else ()
    if others:
        page = page._replace(
            copies=bit(keep), owner=keep, mapped=page.mapped & bit(keep), writable=0
        )
    page, mapped = _mapped_again(rules, nodes, page)
    return Moved(page, events + mapped)


# ---- preferred location ------------------------------------------------------------------


def _set_preferred(rules: Rules, nodes: Topology, page: Page, step: Step) -> Moved:
    """A17 to A26, D1, D2, D4; C5, C9."""
    place = step.place
    assert place is not None
    if rules.same_is_nothing and page.preferred == place:
        return Moved(page)
    target = processor_of(place)
    new = page._replace(preferred=place)
    if rules.preferred_allocates == "never":
        return _set_preferred_cuda(rules, nodes, page, new, target)
    if rules.preferred_allocates == "with accessed_by" and not page.accessed_by & bit(target):
        return Moved(new)
    refused = ("conflict", "A19" if target == HOST else "A22") if rules.conflict_is_error else None
    return _allocate_ahead(rules, nodes, page, new, target, refused)


def _set_preferred_cuda(rules: Rules, nodes: Topology, page: Page, new: Page, target: int) -> Moved:
    """Nothing moves; the target loses its remote mappings, the old one gets those advised."""
    if page.read_mostly == ReadMostly.ENABLED:
        return Moved(new)
    if not page.copies & bit(target):
        new = new._replace(mapped=new.mapped & ~bit(target), writable=new.writable & ~bit(target))
    return Moved(*_mapped_again(rules, nodes, new))


def _unset_preferred(rules: Rules, nodes: Topology, page: Page) -> Moved:
    """A27: mappings stay; C5: the old location gets the mappings that accessed-by asks for."""
    return Moved(*_mapped_again(rules, nodes, page._replace(preferred=None)))


def _allocate_ahead(
    rules: Rules,
    nodes: Topology,
    page: Page,
    new: Page,
    target: int,
    refused: tuple[str, str] | None,
) -> Moved:
    """Memory and a mapping at *target* before the first access (A18, A21, A23, A26).

    Data elsewhere is a conflict: refused, or a warning with the advice stored.
    """
    if page.read_mostly == ReadMostly.ENABLED:
        if page.copies & bit(target):  # A24: the host always has a copy; A25
            return Moved(new)
        return Moved(_duplicated(new, target), (Event("duplicate", HOST, target),))
    if page.copies & ~bit(target):
        return Moved(page, refused=refused) if refused else Moved(new, (Event("warn"),))
    if page.copies:
        return Moved(new)
    settled = _settled(rules, nodes, new, target, mapping=bit(target))
    return Moved(settled, (Event("alloc", target=target),))


def _duplicated(page: Page, target: int) -> Page:
    """The page with a read-only copy more; every mapping of another's memory goes."""
    copies = page.copies | bit(target)
    return page._replace(
        copies=copies,
        mapped=(page.mapped & page.copies) | bit(target),
        writable=0,
        owner=target if page.owner == NOBODY else page.owner,
    )


# ---- accessed by -------------------------------------------------------------------------


def _accessed_by(rules: Rules, nodes: Topology, page: Page, step: Step) -> Moved:
    """A28 to A30, A18; C7, C8: mappings are added, none is taken away."""
    assert step.place is not None
    new = page.advised(step)
    if not step.on or new == page:
        return Moved(new)
    target = processor_of(step.place)
    if rules.remote_mappings:
        return Moved(*_mapped_again(rules, nodes, new))
    if page.preferred is not None and processor_of(page.preferred) == target:
        return _allocate_ahead(rules, nodes, page, new, target, None)
    return Moved(new)


# ---- accesses ----------------------------------------------------------------------------


def _access(rules: Rules, nodes: Topology, page: Page, who: int, write: bool) -> Moved:
    me = bit(who)
    if page.mapped & me and (not write or page.writable & me):
        # A5. The first write after a discard gives the page contents again (C12).
        return Moved(page._replace(discarded=False) if write and page.discarded else page)
    if page.read_mostly == ReadMostly.ENABLED:
        moved = _write_duplicated(rules, page, who) if write else _read_duplicated(nodes, page, who)
        return moved._replace(faulted=True)
    at, chosen = page.owner, who
    if rules.advice_guides_faults:
        at = nodes.closest(page.copies, who) if page.copies else NOBODY
        chosen = _residency(nodes, page, who, at)
    mapping = me if nodes.reaches(who, chosen) else 0
    if not page.copies:
        new = _settled(rules, nodes, page, chosen, mapping=mapping)
        return Moved(new, (Event("populate", target=chosen),), True)
    if chosen == at:
        events = () if at == who else (Event("map", at, who),)
        # A read of discarded contents gets a read-only mapping (C12).
        writes = 0 if page.discarded and not write else mapping
        new = page._replace(
            mapped=page.mapped | mapping,
            writable=page.writable | writes,
            discarded=page.discarded and not write,
        )
        return Moved(new, events, True)
    new = _settled(rules, nodes, page, chosen, mapping=mapping)
    if not page.discarded:
        return Moved(new, _carried(rules, nodes, "migrate", at, chosen), True)
    if not write:
        # Nothing to copy; the contents stay unknown, so does the need to write first.
        new = new._replace(mapped=mapping, writable=0, discarded=True)
    return Moved(new, (Event("populate", target=chosen), Event("free", mask=bit(at))), True)


def _carried(
    rules: Rules, nodes: Topology, kind: str, source: int, target: int
) -> tuple[Event, ...]:
    """The move of a page; CUDA stages it through the host between devices without a link."""
    staged = HOST not in (source, target) and not nodes.reaches(target, source)
    if staged and rules.advice_guides_faults:
        return (Event(kind, source, HOST), Event(kind, HOST, target))
    return (Event(kind, source, target),)


def _residency(nodes: Topology, page: Page, who: int, at: int) -> int:
    """Where CUDA serves a fault on a page that is not duplicated (R3 to R11)."""
    home = NOBODY if page.preferred is None else processor_of(page.preferred)
    guided = home != NOBODY and nodes.reaches(who, home)
    if who == home:  # R3
        return who
    if at == NOBODY:  # R6
        return home if guided else who
    if page.accessed_by & bit(who) and nodes.reaches(who, at):  # R7
        return at
    if at != who and guided:  # R9
        return home
    return who  # R11


def _read_duplicated(nodes: Topology, page: Page, who: int) -> Moved:
    """A3, A4; C2: the reader gets a copy of its own."""
    if not page.copies:
        new = page._replace(copies=bit(who), mapped=bit(who), owner=who)
        return Moved(new, (Event("populate", target=who),))
    if page.copies & bit(who):
        return Moved(page._replace(mapped=page.mapped | bit(who)))
    source = nodes.closest(page.copies, who)
    new = _duplicated(page, who)
    if HOST in (source, who) or nodes.reaches(who, source):
        return Moved(new, (Event("duplicate", source, who),))
    # Devices that do not reach each other: staged through the host, which keeps its copy.
    new = new._replace(copies=new.copies | bit(HOST))
    return Moved(new, (Event("duplicate", source, HOST), Event("duplicate", HOST, who)))


def _write_duplicated(rules: Rules, page: Page, who: int) -> Moved:
    """A6; C3: the writer is left alone. A write of the host moves to its preferred node."""
    events = []
    if not page.copies or (page.discarded and not page.copies & bit(who)):
        events.append(Event("populate", target=who))
    elif not page.copies & bit(who):
        events.append(Event("take", page.owner, who))
    others = page.copies & ~bit(who)
    if others:
        events.append(Event("free", mask=others))
    new = page._replace(
        read_mostly=ReadMostly.UNSET if rules.write_cancels else page.read_mostly,
        copies=bit(who),
        mapped=bit(who),
        writable=bit(who),
        owner=who,
        node=_home_node(rules, page, who),
        discarded=False,
    )
    return Moved(new, tuple(events))


# ---- prefetch, discard, eviction -----------------------------------------------------------


def _prefetch(rules: Rules, nodes: Topology, page: Page, step: Step) -> Moved:
    """C6, C10: every page goes to the target, whatever is advised."""
    place = step.place
    assert place is not None
    target = processor_of(place)
    asked = page._replace(last_prefetch=place)
    duplicating = page.read_mostly == ReadMostly.ENABLED
    if page.copies and duplicating and not page.discarded:
        return _prefetch_duplicated(nodes, asked, target, place)
    rehomed = _rehomed(page, target, place)
    if page.copies & bit(target) and not rehomed:
        new, mapped = _mapped_again(rules, nodes, asked._replace(discarded=False))
        me = bit(target)
        writes = 0 if duplicating else me
        return Moved(new._replace(mapped=new.mapped | me, writable=new.writable | writes), mapped)
    if not page.copies:
        events: tuple[Event, ...] = (Event("populate", target=target),)
    elif page.discarded:
        # Contents that nobody needs are not copied; the prefetch ends that (C12).
        events = (Event("populate", target=target), Event("free", mask=page.copies))
    else:
        events = rehomed or _carried(rules, nodes, "move", page.owner, target)
    new = _settled(rules, nodes, asked._replace(discarded=False), target, mapping=bit(target))
    if _names_node(place):
        new = new._replace(node=place.id)
    return Moved(new._replace(writable=0) if duplicating else new, events)


def _prefetch_duplicated(nodes: Topology, page: Page, target: int, place: Location) -> Moved:
    """C10: the target gets a copy; a host copy on another node moves."""
    moved = _read_duplicated(nodes, page, target)
    new = moved.page._replace(node=place.id) if _names_node(place) else moved.page
    return Moved(new, moved.events or _rehomed(page, target, place))


def _rehomed(page: Page, target: int, place: Location) -> tuple[Event, ...]:
    """The move of a host copy to the NUMA node that a prefetch names."""
    if target == HOST and page.copies & bit(HOST) and _names_node(place) and page.node != place.id:
        return (Event("move", HOST, HOST),)
    return ()


def _prefetch_acl(rules: Rules, nodes: Topology, page: Page, step: Step) -> Moved:
    """D13: untouched pages are skipped, device to device does nothing."""
    place = step.place
    assert place is not None
    target = processor_of(place)
    new = page._replace(last_prefetch=place)
    if not page.copies:
        return Moved(new)
    if page.read_mostly == ReadMostly.ENABLED:
        if target == HOST:
            return Moved(page, refused=("read_mostly_to_host", "D13"))
        if page.copies & bit(target):
            return Moved(new)
        return Moved(_duplicated(new, target), (Event("duplicate", HOST, target),))
    if page.owner == HOST == target:
        if not _names_node(place):
            return Moved(page, refused=("host_to_host", "D13"))
        return Moved(new._replace(node=place.id), _rehomed(page, HOST, place))
    if target == page.owner or HOST not in (target, page.owner):
        return Moved(new)
    if _names_node(place):
        new = new._replace(node=place.id)
    settled = _settled(rules, nodes, new, target, mapping=bit(target))
    return Moved(settled, (Event("move", page.owner, target),))


def _discard(page: Page) -> Moved:
    """C12: contents are lost, duplicates collapse, mappings of others go, writes fault once."""
    if not page.copies or page.discarded:
        return Moved(page)
    home = NOBODY if page.preferred is None else processor_of(page.preferred)
    keep = home if home != NOBODY and page.copies & bit(home) else next(members(page.copies))
    others = page.copies & ~bit(keep)
    new = page._replace(
        copies=bit(keep), owner=keep, mapped=page.mapped & bit(keep), writable=0, discarded=True
    )
    return Moved(new, (Event("free", mask=others),) if others else ())


def _fill(page: Page, step: Step) -> Moved:
    """D9, D10: the host writes every copy (*on*), or frees the device copies and takes over."""
    if page.copies and (step.on or page.read_mostly != ReadMostly.ENABLED):
        return Moved(page)  # written where the copies are
    others = page.copies & ~bit(HOST)
    events: tuple[Event, ...] = (Event("free", mask=others),) if others else ()
    if not page.copies:
        events = (Event("populate", target=HOST),)
    host = bit(HOST)
    new = page._replace(
        read_mostly=ReadMostly.UNSET, copies=host, owner=HOST, mapped=host, writable=host
    )
    return Moved(new, events)


def _evict(rules: Rules, nodes: Topology, page: Page, device: int) -> Moved:
    """Memory pressure: a copy more is dropped, the only one goes to the host (C10, D14)."""
    if not page.copies & bit(device):
        return Moved(page)
    others = page.copies & ~bit(device)
    if others:
        new = page._replace(
            copies=others,
            mapped=page.mapped & others,
            writable=page.writable & others,
            owner=next(members(others)) if page.owner == device else page.owner,
        )
        return Moved(new, (Event("free", mask=bit(device)),))
    # Under read mostly nobody may write then: CUDA maps nothing, in ACL the host has a copy (D8).
    mapping = 0 if rules.remote_mappings else bit(HOST)
    discarded = page.discarded
    new = _settled(rules, nodes, page, HOST, mapping=mapping)._replace(discarded=discarded)
    return Moved(new, (Event("evict", device, HOST),))
