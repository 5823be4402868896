"""Reports for people: results as lines and tables of text.

Pure functions: a result in, lines and rich tables out. Only this file and the
command line know rich, an extra, which is imported where a table is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..machine import Machine
from ..result import Profile, Result
from ..units import PAGE_SHIFT, PAGE_SIZE, format_size

if TYPE_CHECKING:
    from rich.table import Table

    from ..compare import Comparison, Difference
    from ..plans import Plan

__all__ = [
    "comparison",
    "counted",
    "format_duration",
    "inspection",
    "meaning",
    "printable",
    "profile_report",
    "ranking",
    "replay_report",
    "settings_text",
    "text_table",
]

#: Buffers that a table names; the others are one line.
TOP = 20
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def format_duration(ns: float) -> str:
    """A time for people: ``1287249102`` ns is ``'1.287 s'``, 0 is ``'0 ns'``."""
    for factor, unit in _UNITS:
        if ns >= factor:
            return f"{ns / factor:,.3f} {unit}"
    return f"{ns:.0f} ns"


def counted(number: int, one: str, many: str = "") -> str:
    """A number and its noun: ``'1 page'``, ``'2,000 pages'``; *many* where s is not enough."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def printable(text: str) -> str:
    """*text* without anything that could steer a terminal or break a line."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings as ``key=value`` in their order, switches as on and off."""

    def value(item: Any) -> str:
        if item is None:
            return "default"
        return {True: "on", False: "off"}[item] if isinstance(item, bool) else str(item)

    return " ".join(f"{key}={printable(value(item))}" for key, item in settings.items())


def replay_report(
    result: Result, machine: Machine, *, sure: float = 1.0, mapped: str = ""
) -> list[str | Table]:
    """What a replay did, as lines and tables.

    Parameters
    ----------
    result : Result
    machine : Machine
        The machine that it ran on.
    sure : float
        Confidence of the recognition of the format, 0..1.
    mapped : str
        Where the mappings came from, one phrase.

    Returns
    -------
    list of str or rich.table.Table
    """
    parts: list[str | Table] = [
        *_head(result, machine, sure, mapped),
        "",
        *_counters(result),
    ]
    if result.processors:
        rows = list(result.processors.items())
        parts += ["", _figures("processor", _PROCESSOR_COLUMNS, rows)]
    if result.names:
        parts += ["", *_buffer_tables(result)]
    parts += ["", *_warning(result), *_aligned(_times(result))]
    return parts + [f"note: {printable(note)}" for note in result.notes]


_STAGES = {
    "first_pass": "first pass, for mappings and kind",
    "mapping": "mapping into the space",
    "reading": "reading and decoding",
    "engine": "compiled loop",
    "counting": "counting into tables",
    "report": "report",
    "other": "other",
}


def profile_report(profile: Profile) -> list[str]:
    """Where the real time of a replay went, a line a stage.

    Parameters
    ----------
    profile : Profile

    Returns
    -------
    list of str
    """
    width = max(map(len, _STAGES.values()))
    lines = [f"{'stage':<{width}}  {'seconds':>10}  {'share':>6}  {'records/s':>14}"]
    for name, seconds in [*profile.stages(), ("all", profile.wall_s)]:
        share = seconds / profile.wall_s if profile.wall_s else 0.0
        speed = f"{profile.records / seconds:,.0f}" if seconds else "-"
        title = _STAGES.get(name, name)
        lines.append(f"{title:<{width}}  {seconds:>10.4f}  {share:>6.1%}  {speed:>14}")
    return lines


def _head(result: Result, machine: Machine, sure: float, mapped: str) -> list[str]:
    trace = result.trace
    how = ("by", "raw_faults", "plan")
    own = {key: value for key, value in result.settings.items() if key not in how}
    replayed = {key: result.settings[key] for key in how if key in result.settings}
    gpus = sorted({gpu.vram_pages for gpu in machine.gpus})
    memory = " and ".join(format_size(pages * PAGE_SIZE) for pages in gpus)
    rows = [
        (
            "trace",
            (
                f"{printable(str(trace['path']))} ({trace['format']}, {sure:.0%} sure; "
                f"{trace['kind']} trace), {counted(trace['records'], 'record')}"
            ),
        ),
        ("digest", str(trace["digest"])),
        ("policy", f"{result.policy} {settings_text(own)}"),
        ("replay", settings_text(replayed)),
        ("machine", f"{printable(machine.name)}, {counted(len(machine.gpus), 'GPU')} of {memory}"),
    ]
    if mapped:
        rows.append(("mapped", printable(mapped)))
    return _aligned(rows)


def _aligned(rows: Iterable[tuple[str, str]]) -> list[str]:
    listed = list(rows)
    width = max((len(name) for name, _ in listed), default=0)
    return [f"{name:<{width}}  {value}" for name, value in listed]


def _counters(result: Result) -> list[str]:
    c = result.counters
    rows = [
        ("faults", f"{c['faults']:,}"),
        ("duplicate faults", f"{c['duplicate_faults']:,}"),
        ("migrations", f"{c['migrations']:,} of {c['migration_attempts']:,} tried"),
        (
            "migrated",
            (
                f"{format_size(c['migrated_bytes'])}: "
                f"{format_size(c['bytes_to_device'])} to devices, "
                f"{format_size(c['bytes_to_host'])} to the host"
            ),
        ),
        ("evictions", f"{c['evictions']:,}, {format_size(c['evicted_bytes'])}"),
        ("remote accesses", f"{c['remote_accesses']:,} of {_touches(c['pages_touched'])}"),
        ("errors", _errors(result)),
    ]
    return _aligned(rows)


def _errors(result: Result) -> str:
    first = result.first_error
    if first is None:
        return "0"
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in result.reasons.items())
    return (
        f"{counted(sum(result.reasons.values()), 'record')} ({reasons}); the first is record "
        f"{first['record']}, address {first['addr']:#x}: {first['reason']} ({first['code']})"
    )


def _touches(number: int) -> str:
    return counted(number, "page touch", "page touches")


def _warning(result: Result) -> list[str]:
    """The line above the modelled time of a replay in which records were fatal."""
    first = result.first_error
    if first is None:
        return []
    common = max(result.reasons, key=lambda reason: result.reasons[reason])
    return [
        (
            f"WARNING: {sum(result.reasons.values()):,} of "
            f"{counted(result.trace['records'], 'record')} ended fatally: first record "
            f"{first['record']} at {first['addr']:#x}, most common reason {common} "
            f"({result.reasons[common]:,}); modelled time covers only what was served"
        )
    ]


def _times(result: Result) -> list[tuple[str, str]]:
    return [
        ("modelled time", format_duration(result.time_ns)),
        (
            "speed",
            (
                f"{result.records_per_s:,.0f} records/s: {result.trace['records']:,} in "
                f"{format_duration(result.wall_s * 1e9)}, the engine "
                f"{format_duration(result.engine_s * 1e9)} of it"
            ),
        ),
    ]


def text_table(first: str, *columns: str) -> Table:
    """An empty table: *first* is a column of names, the others are figures."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, overflow="fold")
    for name in columns:
        # On a narrow terminal names fold; figures stay whole.
        table.add_column(name, justify="right", no_wrap=True)
    return table


class _Column(NamedTuple):
    """A column of figures of a table."""

    title: str
    key: str
    """Name of the figure in a row."""
    show: Callable[[int], str] = "{:,}".format
    kept: bool = False
    """Shown even where it is 0 in every row."""


def _pages(pages: int) -> str:
    return format_size(pages * PAGE_SIZE)


_PROCESSOR_COLUMNS = (
    _Column("faults", "faults", kept=True),
    _Column("duplicates", "duplicates"),
    _Column("moved in", "pages_in", _pages, kept=True),
    _Column("moved out", "pages_out", _pages, kept=True),
    _Column("page touches", "pages_touched", kept=True),
    _Column("remote", "remote_pages"),
    _Column("fatal", "fatal"),
)
_BUFFER_COLUMNS = (
    _Column("size", "size", format_size, kept=True),
    _Column("records", "records", kept=True),
    _Column("page touches", "pages", kept=True),
    _Column("faults", "faults", kept=True),
    _Column("moved", "moved_pages", _pages, kept=True),
    _Column("remote", "remote_pages"),
    _Column("errors", "errors"),
)


def _figures(
    first: str, columns: Sequence[_Column], rows: Sequence[tuple[str, Mapping[str, int]]]
) -> Table:
    """A table of named rows; columns that are 0 throughout are left out, unless kept."""
    shown = [c for c in columns if c.kept or any(row[c.key] for _, row in rows)]
    table = text_table(first, *(c.title for c in shown))
    for name, row in rows:
        table.add_row(printable(name), *(c.show(row[c.key]) for c in shown))
    return table


def _buffer_tables(result: Result) -> list[str | Table]:
    buffers = result.buffers
    # A buffer that faulted or was moved without a record of its own is no untouched one.
    busy = (buffers["records"] + buffers["faults"] + buffers["moved_pages"]) > 0
    # By moved pages, then page touches; equal ones stay in file order.
    order = np.lexsort((-buffers["pages"].astype("<i8"), -buffers["moved_pages"].astype("<i8")))
    order = order[busy[order]]
    rows = [(result.names[index], _total(buffers[[index]])) for index in order[:TOP]]
    rest = order[TOP:]
    if len(rest):
        rows.append((f"{len(rest):,} more", _total(buffers[rest])))
    parts: list[str | Table] = [_figures("buffer", _BUFFER_COLUMNS, rows)] if rows else []
    untouched = int(np.count_nonzero(~busy))
    if untouched:
        size = int(buffers["size"][~busy].sum())
        parts.append(
            f"untouched: {untouched:,} of {counted(len(buffers), 'buffer')}, {format_size(size)}"
        )
    return parts


def _total(rows: npt.NDArray[np.void]) -> dict[str, int]:
    return {key: int(rows[key].sum()) for key in rows.dtype.names or ()}


# ---- hint plans, ranked ---------------------------------------------------------------------

_RANKED_COLUMNS = (
    _Column("faults", "faults", kept=True),
    _Column("dropped", "duplicate_faults"),
    _Column("migrations", "migrations", kept=True),
    _Column("to devices", "bytes_to_device", format_size, kept=True),
    _Column("to the host", "bytes_to_host", format_size, kept=True),
    _Column("duplicated", "duplicated_bytes", format_size),
    _Column("remote", "remote_accesses"),
    _Column("evictions", "evictions"),
    _Column("errors", "errors"),
    _Column("modelled time", "time_ns", format_duration, kept=True),
)


def ranking(found: Comparison) -> list[str | Table]:
    """Hint plans in rank order as a table, and where two of them part.

    Parameters
    ----------
    found : Comparison
        As :func:`svmcore.compare.compare` gives it.
    """
    plans = found.plans
    trace = plans[0][1].trace
    parts: list[str | Table] = [
        (
            f"{printable(str(trace['path']))} ({trace['format']}, {trace['kind']} trace), "
            f"{counted(trace['records'], 'record')}"
        ),
        "",
        _figures(
            "plan",
            _RANKED_COLUMNS,
            [(plan.name, {**result.counters, "time_ns": result.time_ns}) for plan, result in plans],
        ),
        "",
        *_aligned((printable(plan.name), _basis(plan, result)) for plan, result in plans),
    ]
    for title, part in (
        ("They part at", found.first_difference),
        ("The first touch that fares otherwise is", found.first_fault_difference),
    ):
        if part is not None:
            parts += ["", *_parting(title, part, found.names)]
    notes = dict.fromkeys(note for _, result in plans for note in result.notes)
    return [*parts, "", *(f"note: {printable(note)}" for note in notes)]


def _parting(title: str, part: Difference, names: Sequence[str]) -> list[str]:
    """A record that two plans treat differently, and what came before under one of them."""
    lines = [f"{title} record {part.record}, address {part.page << PAGE_SHIFT:#x}:"]
    width = max(len(printable(name)) for name in names)
    for name, text, evicted, earlier in (
        (names[0], part.text_a, part.evicted_a, part.earlier_a),
        (names[1], part.text_b, part.evicted_b, part.earlier_b),
    ):
        before = "" if earlier is None else f"Before: {earlier.text}"
        for word, told in ((printable(name), text), ("", evicted), ("", before)):
            if told:
                lines.append(f"  {word:<{width}}  {printable(told)}")
    return lines


def _basis(plan: Plan, result: Result) -> str:
    """What a plan's figures stand on."""
    hints = counted(len(plan.hints), "hint")
    sizes = "".join(
        f", {printable(device)} {format_size(size)}" for device, size in plan.capacity.items()
    )
    # A policy's own brackets tell more than its name.
    policy = plan.policy if plan.policy is not None and "(" in plan.policy else result.policy
    settings = settings_text(plan.settings) or ("" if "(" in policy else "defaults")
    given = f", {settings}" if settings else ""
    return f"{printable(policy)} on {printable(result.machine)}{sizes}, {hints}{given}"


# ---- two replays side by side ------------------------------------------------------------

_COMPARED = (
    ("faults", "faults"),
    ("duplicate faults", "duplicate_faults"),
    ("migrations", "migrations"),
    ("moved to devices", "bytes_to_device"),
    ("moved to the host", "bytes_to_host"),
    ("evictions", "evictions"),
    ("remote accesses", "remote_accesses"),
    ("errors", "errors"),
)
#: Buffers that a comparison names, and the least share by which they differ.
_NAMED = 5
_DIFFERENT = 0.01


def comparison(one: Result, other: Result, key: str = "granularity") -> list[str | Table]:
    """Two replays of one trace that differ in one setting, side by side.

    Parameters
    ----------
    one, other : Result
        Of the same trace; ratios are *other* to *one*.
    key : str
        The setting in which they differ.

    Returns
    -------
    list of str or rich.table.Table
        Counters that differ, those that do not in a line, bytes moved by the
        buffers that differ most, and what it means.
    """
    named = [f"{key} {result.settings[key]}" for result in (one, other)]
    table = text_table("", *named, "ratio")
    same: list[str] = []
    for title, name in _COMPARED:
        left, right = one.counters[name], other.counters[name]
        shown = format_size if name.startswith("bytes") else "{:,}".format
        if left == right:
            same.append(f"{title} {shown(left)}")
        else:
            table.add_row(title, shown(left), shown(right), _ratio(left, right))
    table.add_row(
        "modelled time",
        format_duration(one.time_ns),
        format_duration(other.time_ns),
        _ratio(one.time_ns, other.time_ns),
    )
    parts: list[str | Table] = [table]
    if same:
        parts += ["", f"The same in both: {', '.join(same)}."]
    moved = _moved(one), _moved(other)
    order = sorted(
        (i for i, a, b in _pairs(*moved) if abs(a - b) > _DIFFERENT * max(a, b)),
        key=lambda i: -abs(moved[0][i] - moved[1][i]),
    )
    if order:
        buffers = text_table("moved for", *named, "ratio")
        for i in order[:_NAMED]:
            buffers.add_row(
                printable(one.names[i]),
                *(format_size(pages[i] * PAGE_SIZE) for pages in moved),
                _ratio(moved[0][i], moved[1][i]),
            )
        parts += ["", buffers]
        rest = len(one.names) - len(order[:_NAMED])
        if len(order) <= _NAMED and rest:
            parts.append(f"{counted(rest, 'other buffer')}: the same within {_DIFFERENT:.0%}")
    return [*parts, "", meaning(one, other, key)]


def _pairs(one: list[int], other: list[int]) -> Iterable[tuple[int, int, int]]:
    return ((i, a, b) for i, (a, b) in enumerate(zip(one, other, strict=True)))


def _moved(result: Result) -> list[int]:
    return [int(pages) for pages in result.buffers["moved_pages"]]


def _ratio(one: int, other: int) -> str:
    if not one:
        return "1.00" if not other else "-"
    return f"{other / one:,.2f}"


def meaning(one: Result, other: Result, key: str = "granularity") -> str:
    """One sentence that says what the change of a setting does to a trace."""
    a, b = one.counters, other.counters
    faults = f"{_ratio(a['faults'], b['faults'])} times the" if a["faults"] else f"{b['faults']:,}"
    text = f"In one sentence: {key} {other.settings[key]} instead of {one.settings[key]} takes "
    text += f"{faults} faults"
    before, after = a["migrated_bytes"], b["migrated_bytes"]
    if not before or before == after:
        text += f" and moves {'the same' if before == after else format_size(after)} bytes"
    else:
        less = after < before
        text += f" and moves {abs(after - before) / before:.0%} {'fewer' if less else 'more'} bytes"
        gain = [(abs(x - y), i) for i, x, y in _pairs(_moved(one), _moved(other))]
        if gain:
            name = printable(one.names[max(gain)[1]])
            text += (
                f" (the difference lies mostly in {name}, where each fault drags "
                f"{'fewer' if less else 'more'} untouched pages along)"
            )
    if one.time_ns:
        text += f"; it takes {_ratio(one.time_ns, other.time_ns)} times as long, modelled"
    return text + "."


# ---- what a trace holds ------------------------------------------------------------------


def inspection(table: Mapping[str, Any]) -> list[str | Table]:
    """What a trace holds, as lines and tables.

    Parameters
    ----------
    table : mapping
        The keys that ``svmcore inspect --json`` prints.
    """
    span = table["time_span_ns"]
    lines = table["lines"]
    mappings = table["mappings"]
    rows = [
        (
            "trace",
            (
                f"{printable(table['path'])} ({table['format']}, {table['confidence']:.0%} sure; "
                f"{table['kind']} trace)"
            ),
        ),
        ("digest", table["digest"]),
        ("size", f"{format_size(table['bytes'])}, {_lines(lines['lines'])}"),
        ("read", _amounts({name: n for name, n in lines.items() if name != "lines"})),
        ("records", f"{table['records']:,}: {_amounts(table['kinds'])}"),
        ("processors", _amounts(table["processors"])),
        ("time span", "none" if span is None else format_duration(span[1] - span[0])),
        ("touches", _amounts(table["accesses"])),
        (
            "touched",
            (
                f"{counted(table['touched_pages'], 'different page')}, "
                f"{format_size(table['touched_pages'] * PAGE_SIZE)}; "
                f"{_touches(table['page_touches'])}"
            ),
        ),
        ("mappings", f"{mappings['count']:,}, {format_size(mappings['bytes'])}"),
    ]
    if table["compute_ns"]:
        rows.append(("compute", f"{format_duration(table['compute_ns'])}, told by the records"))
    if table["operators"]:
        rows.append(("operators", f"{table['operators']:,}"))
    if table["gpu_ids"]:
        names = (f"gpu{i} is {gpu:#x}" for i, gpu in enumerate(table["gpu_ids"]))
        rows.append(("GPU ids", ", ".join(names)))
    if table["counts"]:
        rows.append(("met", _amounts(table["counts"])))
    parts: list[str | Table] = list(_aligned(rows))
    if mappings["top"]:
        largest = text_table("mapping", "start", "size", "records", "page touches")
        for row in mappings["top"]:
            largest.add_row(
                printable(row["name"]),
                f"{row['start']:#x}",
                format_size(row["size"]),
                f"{row['records']:,}",
                f"{row['pages']:,}",
            )
        rest = mappings["count"] - len(mappings["top"])
        parts += ["", largest]
        if rest:
            parts.append(f"and {counted(rest, 'smaller mapping')}")
    return parts + [f"note: {printable(note)}" for note in table["notes"]]


def state_inspection(table: Mapping[str, Any]) -> list[str | Table]:
    """What a state file holds, as lines and tables.

    Parameters
    ----------
    table : mapping
        The keys that ``svmcore inspect --json`` prints for one.
    """
    machine, policy, replay = (table[key] for key in ("machine", "policy", "replay"))
    gpus = Counter(gpu["vram_pages"] * PAGE_SIZE for gpu in machine["gpus"])
    sizes = ", ".join(f"{n} x {format_size(size)}" for size, n in gpus.items())
    rows = [
        (
            "state",
            (
                f"{printable(table['path'])} (format {table['format_version']}, "
                f"svmcore {printable(table['written_by'])}; every digest is right)"
            ),
        ),
        ("Spec hash", table["spec_digest"]),
        ("size", f"{format_size(table['bytes'])}, {counted(len(table['members']), 'member')}"),
        ("machine", f"{printable(machine['name'])}: {sizes}"),
        ("policy", f"{printable(policy['name'])}: {settings_text(policy['settings'])}"),
    ]
    if table["now_ns"] is not None:
        rows.append(("clock", format_duration(table["now_ns"])))
    counters = {name: number for name, number in table["counters"].items() if number}
    if counters:
        rows.append(("counted", _amounts(counters)))
    if replay is not None:
        words = {
            key: value for key, value in replay.items() if key not in ("done", "digest", "names")
        }
        rows += [
            ("replay", f"{counted(replay['done'], 'record')} done; {settings_text(words)}"),
            ("of trace", f"digest {replay['digest']}"),
        ]
    members = text_table("member", "rows", "bytes", "digest")
    for member in table["members"]:
        members.add_row(
            member["name"], f"{member['rows']:,}", f"{member['bytes']:,}", member["digest"]
        )
    return [*_aligned(rows), "", members]


def _lines(number: int) -> str:
    return counted(number, "line or row", "lines or rows")


def _amounts(numbers: Mapping[str, int]) -> str:
    shown: Sequence[str] = [
        f"{name.replace('_', ' ')} {number:,}" for name, number in numbers.items() if number
    ]
    return ", ".join(shown) or "none"
