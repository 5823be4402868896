"""Why one record did what it did, as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..units import PAGE_SIZE, format_size
from .text import counted, format_duration, printable

if TYPE_CHECKING:
    from ..explain import Answer, Moved

__all__ = ["answer_report"]

#: Spans that are told one by one.
_SPANS = 6
_VERBS = {"read": "reads", "write": "writes", "atomic": "accesses atomically"}
_CAUSES = {
    "gpu_fault": "for the GPU's fault",
    "cpu_fault": "for the CPU's fault",
    "prefetch": "by the prefetch",
    "user": "by the prefetch",
    "prefetcher": "by the driver's prefetcher",
    "advice": "by the advice",
}


def answer_report(answer: Answer) -> list[str]:
    """What an answer says, in the order in which the driver came to it.

    Parameters
    ----------
    answer : Answer
        As :func:`svmcore.explain.explain` gives it.
    """
    rows = [("page", _page(answer))]
    found = answer.range
    if found is not None:
        rows.append(("range", f"{found.start:#x}, {format_size(found.size)}"))
        width = max(len(name) for name, _, _ in answer.attributes)
        kept = max(len(value) for _, value, _ in answer.attributes)
        rows += [
            ("", f"{name:<{width}}  {value:<{kept}}  {printable(origin)}")
            for name, value, origin in answer.attributes
        ]
    elif answer.decision is not None:
        rows.append(("range", "none yet"))
    rows += _decided(answer)
    rows += _spans("moved", answer.moved)
    rows += _spans("evicted", answer.evicted)
    rows.append(("result", _done(answer)))
    rows.append(("modelled", _cost(answer)))
    if answer.changes:
        rows += _column("before", (change.text for change in answer.changes))
    if answer.touched_by:
        numbers = ", ".join(map(str, answer.touched_by))
        word = "record" if len(answer.touched_by) == 1 else "records"
        rows.append(("touched", f"again by {word} {numbers}: see each with --record"))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {text}".rstrip() for name, text in rows]
    return [_title(answer), "", *lines]


def _title(answer: Answer) -> str:
    where = f"{answer.addr:#x}, {format_size(answer.size)}" if answer.size else f"{answer.addr:#x}"
    if not answer.by:
        return f"record {answer.record}: {answer.kind} of {where}"
    recorded = ", a recorded fault" if answer.kind == "fault" else ""
    return f"record {answer.record}: {answer.by} {_VERBS[answer.access]} {where}{recorded}"


def _page(answer: Answer) -> str:
    held = "" if answer.buffer is None else f" ({printable(answer.buffer)})"
    where = {"absent": "nobody touched it yet"}.get(answer.where, f"in {answer.where}")
    since = next((c for c in reversed(answer.changes) if c.before != c.after), None)
    if since is None or since.after != answer.where:
        return f"{answer.page:#x}{held}, {where}"
    number = f"record {since.record}" if since.hint is None else printable(since.hint)
    return f"{answer.page:#x}{held}, {where} since {number}"


def _decided(answer: Answer) -> list[tuple[str, str]]:
    decision = answer.decision
    if decision is None:
        return []
    passed = [c for c in decision.candidates if not c.chosen]
    rows = _column("passed over", (f"{c.rule}: {c.why}" for c in passed))
    rows.append(("decided by", f"{decision.rule}: {decision.text}"))
    if decision.candidates and decision.candidates[-1].why != decision.text:
        rows.append(("", decision.candidates[-1].why))
    if decision.location is not None:
        rows.append(("place", decision.location))
    if decision.window is not None:
        start, end = decision.window
        rows.append(("window", f"{start:#x}..{end:#x}, {format_size(end - start)}"))
    return rows


def _column(name: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    return [(name if i == 0 else "", printable(text)) for i, text in enumerate(texts)]


def _spans(name: str, rows: Sequence[Moved]) -> list[tuple[str, str]]:
    def told(row: Moved) -> str:
        held = "" if row.buffer is None else f" ({row.buffer})"
        why = _CAUSES.get(row.cause, "")
        if row.cause == "eviction":
            touched = "never" if row.last_touch is None else f"last by record {row.last_touch}"
            why = f"touched {touched}"
        moved = f"{format_size(row.pages * PAGE_SIZE)} of {row.start:#x}{held}"
        return f"{moved} from {row.source} to {row.target}, {why}".rstrip(", ")

    found = _column(name, (told(row) for row in rows[:_SPANS]))
    more = rows[_SPANS:]
    if more:
        size = format_size(sum(row.pages for row in more) * PAGE_SIZE)
        found.append(("", f"and {counted(len(more), 'span')} more, {size}"))
    return found


def _done(answer: Answer) -> str:
    done = answer.done
    if done["code"] != "OK":
        word = "refused" if done["reason"] == "none" else f"fatal, {done['reason']}"
        return f"{word} ({done['code']})"
    if not answer.by:
        return "done"
    parts = [counted(done["faults"], "fault") if done["faults"] else "no fault"]
    if done["duplicates"]:
        parts.append(counted(done["duplicates"], "dropped delivery", "dropped deliveries"))
    if done["moved_pages"]:
        parts.append(f"{counted(done['moved_pages'], 'page')} moved")
    if done["remote_pages"]:
        word = counted(done["remote_pages"], "page")
        parts.append(f"{word} answered from another memory")
    return ", ".join(parts)


def _cost(answer: Answer) -> str:
    parts = ", ".join(f"{name} {format_duration(ns)}" for name, ns in answer.costs.items())
    began = f"from {format_duration(answer.began_ns)} on"
    return f"{format_duration(answer.cost_ns)} {began}" + (f": {parts}" if parts else "")
