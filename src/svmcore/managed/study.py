"""What advice would do to the buffers of a trace, vendor by vendor, and the lint of rule A8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..advice import words_of_attribute
from ..errors import InvalidArgumentError
from ..machine import Machine
from ..records import UNKNOWN, Access, Kind, processor_name
from ..traces import Mapping as Buffer
from ..traces import Trace
from .factory import managed_memory
from .playing import COUNTED, Hint, Play, machine_for, opened, play_trace, processor_of_name

__all__ = ["DIALECTS", "EFFECTS", "WRITE_SHARE", "advice_study"]

#: Dialects that are told apart; ``kfd`` does as ``hip`` does once its pages are mapped.
DIALECTS: Final = ("cuda", "acl", "acl-driver", "hip")
#: Share of writes above which read mostly is the wrong advice (rule A8).
WRITE_SHARE: Final = 0.1

#: What each dialect does with advice, at once and later.
EFFECTS: Final[dict[str, dict[str, str]]] = {
    "read_mostly": {
        "cuda": "nothing now; readers get copies; a write drops the others, the advice stays",
        "acl": "host copy now; readers get copies; a write drops the others and the advice",
        "acl-driver": "host copy now; readers get copies; a write drops the others and the advice",
        "hip": "a flag that can be asked for; pages migrate as without",
    },
    "preferred_location": {
        "cuda": "nothing now; faults of those who reach the place leave the data there",
        "acl": "allocates and maps there now, refused where data is elsewhere; faults ignore it",
        "acl-driver": "stored; allocates only with accessed-by of the same place; faults ignore it",
        "hip": "stored; faults go there if the toucher reaches it",
    },
    "accessed_by": {
        "cuda": "maps what is there and keeps it mapped; nothing moves to the reader",
        "acl": "stored; allocates only with the same preferred location",
        "acl-driver": "stored; allocates only with the same preferred location",
        "hip": "access in place: the reader maps the data where it is",
    },
}


@dataclass
class _Use:
    """How the records of a trace use one buffer."""

    reads: int = 0
    writes: int = 0
    #: Touches of each processor code.
    by: dict[int, int] | None = None
    #: Advice that the trace itself gives on it.
    advised: frozenset[str] = frozenset()


def advice_study(
    trace: Trace | str | PathLike[str],
    *,
    write_share: float = WRITE_SHARE,
    machine: str | Path | Machine | None = None,
    by: str = "gpu0",
) -> dict[str, Any]:
    """Every advice on every buffer under every vendor's rules.

    The trace is played once for each dialect without advice and with each
    advice on all buffers: read mostly, preferred location at the processor that
    touches the buffer most, accessed-by for the one that touches it next.

    Parameters
    ----------
    trace : Trace or path
    write_share : float
        Writes of all accesses above which read mostly is warned of, 0 to 1.
    machine : str, Path or Machine, optional
        By default the GPUs of ``gpu-80g``, as many as the trace names.
    by : str
        Processor of records that name none.

    Returns
    -------
    dict
        ``buffers``: name, start, size, reads, writes, write_share, advised, and
        ``advice``: word -> location and, for each dialect, what is counted with it and
        ``without`` it. ``lint``: buffers whose writes exceed the share; ``advised`` where
        the trace gives the advice. ``effects``: word -> dialect -> sentence.

    Raises
    ------
    InvalidArgumentError
        If *write_share* is no share, or as :func:`svmcore.managed.playing.play_trace`.

    Complexity
    ----------
    16 plays of the trace.
    """
    if not 0 <= write_share <= 1:
        raise InvalidArgumentError(f"write_share {write_share}: expected 0 to 1")
    source = opened(trace)
    node = machine_for(source, by) if machine is None else Machine.resolve(machine)
    buffers = sorted(source.mappings())
    uses = _uses(source, buffers, processor_of_name(by, len(node.gpus)))
    places = {word: _places(uses, word, len(node.gpus)) for word in EFFECTS}
    plays: dict[tuple[str, str], Play] = {}
    for dialect in DIALECTS:
        for word in ("", *EFFECTS):
            hints = [
                Hint(buffer.name, word, place)
                for buffer, place in zip(buffers, places.get(word, ()), strict=False)
            ]
            memory = managed_memory(dialect, node)
            plays[dialect, word] = play_trace(source, memory, hints, by=by)
    table = [
        _row(number, buffer, use, places, plays)
        for number, (buffer, use) in enumerate(zip(buffers, uses, strict=True))
    ]
    return {
        "machine": node.name,
        "write_share": write_share,
        "effects": EFFECTS,
        "buffers": table,
        "lint": [
            {"buffer": row["name"], "write_share": row["write_share"], "advised": row["asks"]}
            for row in ({**row, "asks": "read_mostly" in row["advised"]} for row in table)
            if row["writes"] > write_share * (row["reads"] + row["writes"])
        ],
        "refused": {
            f"{dialect} {word or 'no advice'}": play.refused
            for (dialect, word), play in plays.items()
            if play.refused
        },
    }


def _row(
    number: int,
    buffer: Buffer,
    use: _Use,
    places: Mapping[str, list[str | None]],
    plays: Mapping[tuple[str, str], Play],
) -> dict[str, Any]:
    def counted(dialect: str, word: str) -> dict[str, int]:
        row = plays[dialect, word].buffers[number]
        return {name: row[name] for name in COUNTED}

    touches = use.reads + use.writes
    return {
        "name": buffer.name,
        "start": buffer.start,
        "size": buffer.size,
        "reads": use.reads,
        "writes": use.writes,
        "write_share": round(use.writes / touches, 6) if touches else 0.0,
        "advised": sorted(use.advised),
        "without": {dialect: counted(dialect, "") for dialect in DIALECTS},
        "advice": {
            word: {
                "location": places[word][number],
                **{dialect: counted(dialect, word) for dialect in DIALECTS},
            }
            for word in EFFECTS
        },
    }


def _uses(source: Trace, buffers: list[Buffer], by: int) -> list[_Use]:
    """Reads, writes, processors and advice of each buffer, in one pass."""
    count = len(buffers)
    starts = np.array([b.start for b in buffers], "<u8")
    ends = np.array([b.end - 1 for b in buffers], "<u8")
    touches = np.zeros((count, 2, 256), np.int64)
    advised: list[set[str]] = [set() for _ in buffers]
    for records in source.chunks():
        if not count:
            break
        index = np.searchsorted(starts, records["addr"], "right").astype(np.int64) - 1
        inside = (index >= 0) & (records["addr"] <= ends[index])
        used = inside & (records["kind"] <= Kind.FAULT)
        proc = np.where(records["proc"] == UNKNOWN, by, records["proc"]).astype(np.int64)
        writes = np.isin(records["access"], (Access.WRITE, Access.ATOMIC)).astype(np.int64)
        key = (index * 2 + writes) * 256 + proc
        touches += np.bincount(key[used], minlength=count * 512).reshape(count, 2, 256)
        for at in np.flatnonzero(inside & (records["kind"] == Kind.ADVISE)):
            row = records[at]
            for meant in words_of_attribute(int(row["access"]), int(row["value"])):
                if meant.on:
                    advised[index[at]].add(meant.word)
    return [
        _Use(
            int(touches[i, 0].sum()),
            int(touches[i, 1].sum()),
            {int(p): int(touches[i, :, p].sum()) for p in np.flatnonzero(touches[i].sum(axis=0))},
            frozenset(advised[i]),
        )
        for i in range(count)
    ]


def _places(uses: list[_Use], word: str, devices: int) -> list[str | None]:
    """Where the advice points for each buffer."""
    places: list[str | None] = []
    for use in uses:
        ranked = sorted(use.by or {}, key=lambda p: (-(use.by or {})[p], p))
        if word == "read_mostly":
            places.append(None)
        elif word == "preferred_location":
            places.append(processor_name(ranked[0] if ranked else 1))
        else:
            others = ranked[1:] or [p for p in range(1, devices + 1) if p not in ranked] or [0]
            places.append(processor_name(others[0]))
    return places
