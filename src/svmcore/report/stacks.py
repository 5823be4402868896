"""Reports of launch stacks: tables of text, the timeline, modelled beside measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, NotSupportedError
from ..stacks import Cliff, LaunchTrace, StackResult
from ..stacks.measured import Agreement
from ..traces.writers import whole_file
from ..units import format_size
from .text import counted, format_duration, printable, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

__all__ = [
    "check_plot",
    "cliff_lines",
    "measured_report",
    "plot_measured",
    "plot_timeline",
    "report",
]

#: File types of a plot.
PLOTS = (".svg", ".png", ".pdf")
#: Kernels and policies that a timeline shows at most.
MOST_KERNELS, MOST_POLICIES = 20_000, 12


def report(
    trace: LaunchTrace, results: Mapping[str, StackResult], cliffs: Sequence[Cliff], head: str
) -> list[str | Table]:
    """What each policy did with a trace, as lines and a table.

    Parameters
    ----------
    trace : LaunchTrace
    results : mapping of str to StackResult
        By the policy's name as it was given.
    cliffs : sequence of Cliff
    head : str
        Machine and device, one phrase.

    Returns
    -------
    list of str or rich.table.Table
    """
    extra = [
        (title, key, show)
        for title, key, show in (
            ("lock wait", "lock_wait_ns", format_duration),
            ("retries", "retries", "{:,}".format),
            ("failed", "user_failures", "{:,}".format),
            ("fatal", "fatal", "{:,}".format),
            ("stuck", "stuck", "{:,}".format),
            ("pushed out", "evicted_bytes", format_size),
        )
        if any(getattr(result, key) for result in results.values())
    ]
    table = text_table(
        "policy", "hits", "allocs", "peak", "kept", *(title for title, _, _ in extra), "us/launch"
    )
    for name, result in results.items():
        table.add_row(
            printable(name),
            f"{result.hits:,}",
            f"{result.stack_allocs:,}",
            format_size(result.stack_peak_bytes),
            format_size(result.kept_bytes),
            *(show(getattr(result, key)) for _, key, show in extra),
            f"{result.us_per_launch:,.1f}",
        )
    amounts = (
        counted(trace.launches, "launch", "launches"),
        counted(len(trace) - trace.launches, "other record"),
        counted(len(trace.threads), "host thread"),
    )
    lines: list[str | Table] = [
        f"{printable(trace.name)} ({trace.form}): {', '.join(amounts)}",
        head,
        "",
        table,
        "",
    ]
    lines += cliff_lines(cliffs, trace.stack_bytes)
    lines += [f"note: {number:,} x {what}" for what, number in trace.repaired.items()]
    if lines[-1] == "":
        lines.pop()
    return lines


def cliff_lines(cliffs: Sequence[Cliff], stack_bytes: int) -> list[str]:
    """Cliffs, a line for those that are alike: the limit, what is over it, what more brings."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for one in cliffs:
        figures = (one.limit, one.smallest_over, one.hits, one.best_hits, one.launches, one.enough)
        alike.setdefault(figures, []).append(one.policy.partition("(")[0])
    lines = []
    for (limit, over, hits, best, launches, enough), names in alike.items():
        warps = counted(over // stack_bytes, "warp")
        lines.append(
            f"cliff: {', '.join(dict.fromkeys(names))}: the limit of {format_size(limit)} keeps "
            f"blocks of up to {limit // stack_bytes:,} warps, launches here have {warps} "
            f"({format_size(over)}): {hits:,} of {launches:,} hit; "
            f"a limit of {format_size(enough)} brings {best:,}."
        )
    return lines


def measured_report(found: Agreement) -> list[str | Table]:
    """Modelled beside measured, a row a policy, stream and number of threads."""
    table = text_table("policy", "stream", "threads", "rows", "median error")
    numbers: dict[Any, int] = {}
    for row, _ in found.rows:
        numbers[row.group] = numbers.get(row.group, 0) + 1
    for group, error in found.groups().items():
        policy, own, threads = group
        table.add_row(
            policy,
            "own" if own else "shared",
            str(threads),
            str(numbers[group]),
            f"{100 * error:.1f} %",
        )
    right, total, wrong = found.pairs()
    lines: list[str | Table] = [table, ""]
    lines.append(
        f"median error {100 * found.median_error:.1f} % over {counted(len(found.rows), 'row')}, "
        f"at most {100 * max(found.groups().values()):.1f} % within a policy, stream and threads"
    )
    lines.append(
        f"{right:,} of {counted(total, 'pair')} of policies that differ by more than 20 % "
        "are in the right order"
    )
    lines += [
        f"not in order: {one.policy} and {other.policy}, "
        f"{'own' if one.own_stream else 'shared'} stream, {counted(one.threads, 'thread')}, "
        f"{one.stack_mib} MiB, {one.kernel_us} us"
        for one, other in wrong
    ]
    return lines


# ---- plots -------------------------------------------------------------------------------


def check_plot(path: str | Path) -> None:
    """Refuse a plot that cannot be made, before any work is done.

    Raises
    ------
    InvalidArgumentError
        If the file's type is not known.
    NotSupportedError
        If matplotlib is not installed.
    """
    if Path(path).suffix.lower() not in PLOTS:
        raise InvalidArgumentError(f"plot {path}: expected a file of type {', '.join(PLOTS)}")
    _figure()


def _figure(width: float = 9, height: float = 5) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotSupportedError(
            "a plot needs the extra plot: expected matplotlib, pip install 'svmcore[plot]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, path: str | Path) -> None:
    kind = Path(path).suffix.lower()[1:]
    import matplotlib as mpl

    with whole_file(str(path)) as file, mpl.rc_context({"svg.hashsalt": "svmcore"}):
        # No date: the same input gives the same file.
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[kind]
        figure.savefig(file, format=kind, dpi=120, metadata=metadata)


def plot_timeline(results: Mapping[str, StackResult], path: str | Path) -> None:
    """Kernels of each host thread and the bytes of all blocks over time, a panel a policy.

    Parameters
    ----------
    results : mapping of str to StackResult
        Results with their timeline.
    path : str or Path
        SVG, PNG or PDF; written whole or not at all.

    Raises
    ------
    InvalidArgumentError, NotSupportedError
        As :func:`check_plot`; also for more than 12 policies or 20,000 kernels.
    """
    check_plot(path)
    kernels = max((_count(result, "kernel") for result in results.values()), default=0)
    if not results or len(results) > MOST_POLICIES or kernels > MOST_KERNELS:
        raise InvalidArgumentError(
            f"timeline of {counted(len(results), 'policy', 'policies')} and "
            f"{counted(kernels, 'kernel')}: expected at most {MOST_POLICIES} and {MOST_KERNELS:,}"
        )
    figure = _figure(10, 1.8 * len(results) + 0.6)
    axes = figure.subplots(len(results), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, result) in zip(axes, results.items(), strict=True):
        rows: dict[int, list[tuple[float, float]]] = {}
        steps = [(0.0, 0.0)]
        for time, thread, what, value in result.events:
            if what == "kernel":
                rows.setdefault(thread, []).append((time / 1e6, (value - time) / 1e6))
            else:
                steps.append((time / 1e6, value / (1 << 20)))
        for thread, bars in rows.items():
            axis.broken_barh(bars, (thread - 0.4, 0.8), facecolors=f"C{thread % 10}")
        axis.set_title(printable(name), loc="left", fontsize=9)
        axis.set_ylabel("thread")
        axis.set_yticks(sorted(rows))
        memory = axis.twinx()
        steps.append((result.end_ns / 1e6, steps[-1][1]))
        memory.step(
            [time for time, _ in steps], [mib for _, mib in steps], where="post", color="0.3"
        )
        memory.set_ylim(bottom=0)
        memory.set_ylabel("blocks, MiB")
    axes[-1].set_xlabel("modelled time, ms")
    _save(figure, path)


def _count(result: StackResult, what: str) -> int:
    return sum(event[2] == what for event in result.events)


def plot_measured(found: Agreement, path: str | Path) -> None:
    """Modelled against measured us a launch, a colour a policy.

    Raises
    ------
    InvalidArgumentError, NotSupportedError
        As :func:`check_plot`.
    """
    check_plot(path)
    figure = _figure(7, 6)
    axis = figure.subplots()
    policies = sorted({row.policy for row, _ in found.rows})
    for number, name in enumerate(policies):
        for own, marker in ((False, "o"), (True, "^")):
            points = [
                (row.us_per_launch, us)
                for row, us in found.rows
                if row.policy == name and row.own_stream == own
            ]
            if points:
                axis.scatter(
                    [x for x, _ in points],
                    [y for _, y in points],
                    s=18,
                    marker=marker,
                    color=f"C{number}",
                    label=f"{name}, {'own' if own else 'shared'} stream",
                )
    ends = [us for row, modelled in found.rows for us in (row.us_per_launch, modelled)]
    span = (min(ends) * 0.8, max(ends) * 1.25)
    axis.plot(span, span, color="0.3", linewidth=0.8)
    for factor in (0.8, 1.2):
        axis.plot(span, [factor * end for end in span], color="0.7", linewidth=0.8, linestyle="--")
    axis.set(xscale="log", yscale="log", xlim=span, ylim=span)
    axis.set_xlabel("measured, us a launch")
    axis.set_ylabel("modelled, us a launch (lines: equal, 20 % apart)")
    axis.legend(fontsize=8)
    _save(figure, path)
