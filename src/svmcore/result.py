"""What a replay found: counters, tables by processor and buffer, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ._faults import REASONS
from .errors import InvalidArgumentError, NotSupportedError, error_from_errno
from .units import whole

__all__ = ["BOUND_NOTE", "BUFFER", "Profile", "Result"]

#: One row of :attr:`Result.buffers`.
BUFFER = np.dtype(
    [
        ("start", "<u8"),  # first byte address
        ("size", "<u8"),  # bytes
        ("records", "<u8"),  # records that touch it
        ("pages", "<u8"),  # 4 KiB page touches
        ("faults", "<u8"),  # faults served
        ("moved_pages", "<u8"),  # pages moved by its touches
        ("remote_pages", "<u8"),  # page touches answered from another memory
        ("errors", "<u8"),  # touches that were fatal
    ]
)

#: Said of every result of a fault trace.
BOUND_NOTE = (
    "a fault trace holds only what faulted under the recorded policy: "
    "figures under another policy are a bound, not the truth"
)


@dataclass
class Profile:
    """Where the real time of a replay went, in seconds by stage.

    Attributes
    ----------
    first_pass_s : float
        The pass that finds mappings and kind, where one was needed.
    mapping_s : float
        Mapping them into the space.
    reading_s : float
        Reading, decoding and checking the records that are replayed.
    engine_s : float
        The compiled loop.
    counting_s : float
        Checking processors, and adding outcomes to the tables.
    report_s : float
        Making the result and, on the command line, the report.
    wall_s : float
        All of it; what the stages leave is other work between them.
    records : int
        Records replayed.
    """

    first_pass_s: float = 0.0
    mapping_s: float = 0.0
    reading_s: float = 0.0
    engine_s: float = 0.0
    counting_s: float = 0.0
    report_s: float = 0.0
    wall_s: float = 0.0
    records: int = 0

    def stages(self) -> list[tuple[str, float]]:
        """Name and seconds of each stage in their order; the last one is ``other``."""
        named = [
            (name, float(getattr(self, f"{name}_s")))
            for name in ("first_pass", "mapping", "reading", "engine", "counting", "report")
        ]
        return [*named, ("other", max(0.0, self.wall_s - sum(s for _, s in named)))]

    def to_dict(self) -> dict[str, Any]:
        """Plain values: ``wall_s``, ``records``, and for each stage seconds, share, records/s."""
        return {
            "wall_s": round(self.wall_s, 6),
            "records": self.records,
            "stages": {
                name: {
                    "s": round(seconds, 6),
                    "share": round(seconds / self.wall_s, 4) if self.wall_s else 0.0,
                    "records_per_s": round(self.records / seconds, 1) if seconds else None,
                }
                for name, seconds in self.stages()
            },
        }


@dataclass(repr=False)
class Result:
    """One replay.

    Attributes
    ----------
    trace : dict
        ``path``, ``format``, ``kind``, ``records``, ``digest``.
    policy, machine : str
    settings : dict
        Every parameter of the policy, and how records were read.
    counters : dict
        As :meth:`svmcore.engine.Space.counters`.
    processors : dict
        Counters of each processor that did anything, by name.
    names : list of str
        Name of each buffer.
    buffers : ndarray, shape (n,), dtype BUFFER
        What each mapping of the trace met.
    reasons : dict
        How many records ended fatally, by reason.
    first_error : dict or None
        The first fatal record: ``record``, ``addr``, ``reason``, ``code``.
    time_ns : int
        Modelled time of the whole replay.
    wall_s, engine_s : float
        Real time of the whole replay, and of the compiled loop in it.
    notes : list of str
        What a reader of the figures must know: bounds, assumed constants.
    outcomes : ndarray, shape (records,), dtype OUTCOME, or None
        What each record did, where the caller asked for it.
    profile : Profile or None
        Seconds of each stage, where the caller asked for them.
    """

    trace: dict[str, Any]
    policy: str
    machine: str
    settings: dict[str, Any]
    counters: dict[str, int]
    processors: dict[str, dict[str, int]]
    names: list[str]
    buffers: npt.NDArray[np.void]
    reasons: dict[str, int] = field(default_factory=dict)
    first_error: dict[str, Any] | None = None
    time_ns: int = 0
    wall_s: float = 0.0
    engine_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    outcomes: npt.NDArray[np.void] | None = None
    profile: Profile | None = None

    def __repr__(self) -> str:
        return (
            f"<Result of {self.trace['records']} records under {self.policy} on {self.machine}: "
            f"{self.counters['faults']} faults, {self.counters['migrations']} migrations, "
            f"{self.counters['errors']} errors, {self.time_ns} ns modelled>"
        )

    @property
    def records_per_s(self) -> float:
        """Records a second of real time, the reading of the file included."""
        return self.trace["records"] / self.wall_s if self.wall_s else 0.0

    def to_dict(self, *, buffers: bool = True) -> dict[str, Any]:
        """The result as plain values, the keys that ``--json`` prints.

        Parameters
        ----------
        buffers : bool
            With the table of buffers.
        """
        table: dict[str, Any] = {
            "trace": self.trace,
            "policy": self.policy,
            "machine": self.machine,
            "settings": self.settings,
            **self.counters,
            "faults_by_processor": {name: c["faults"] for name, c in self.processors.items()},
            "processors": self.processors,
            "reasons": self.reasons,
            "first_error": self.first_error,
            "time_ns": self.time_ns,
            "wall_s": round(self.wall_s, 6),
            "engine_s": round(self.engine_s, 6),
            "records_per_s": round(self.records_per_s, 1),
            "notes": self.notes,
        }
        if buffers:
            fields = BUFFER.names or ()
            table["buffers"] = [
                {"name": name, **{key: int(row[key]) for key in fields}}
                for name, row in zip(self.names, self.buffers, strict=True)
            ]
        if self.profile is not None:
            table["profile"] = self.profile.to_dict()
        return table

    def to_json(self) -> str:
        """One JSON object, one line."""
        import json

        return json.dumps(self.to_dict())

    def explain(self, record: int) -> str:
        """One sentence on what record *record* did; needs ``outcomes``.

        Raises
        ------
        NotSupportedError
            If the replay kept no outcomes.
        InvalidArgumentError
            If there is no such record.
        """
        if self.outcomes is None:
            raise NotSupportedError("explain: expected a replay with outcomes=True")
        record = whole("record", record)
        if not 0 <= record < len(self.outcomes):
            raise InvalidArgumentError(
                f"record {record}: expected 0 to {len(self.outcomes) - 1}, one of the replay"
            )
        row = self.outcomes[record]
        reason = REASONS[row["reason"]]
        if reason == "none":
            if row["code"]:
                code = error_from_errno(int(row["code"]), "").code
                return f"record {record} was refused by the driver: {code}"
            return f"record {record} is a recorded outcome: not replayed"
        if row["code"]:
            return f"record {record} ended fatally at page {int(row['page']):#x}: {reason}"
        if not row["faults"]:
            return f"record {record} found all its pages mapped: no fault"
        best = int(row["best"])
        place = "cpu" if best == 0 else f"gpu{best - 1}"
        return (
            f"record {record} took {int(row['faults'])} fault(s), the last restored in {place}; "
            f"{int(row['moved'])} pages moved, {int(row['duplicates'])} deliveries were dropped"
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow stream of the table of buffers (extra ``arrow``)."""
        try:
            import pyarrow as pa
        except ImportError as error:
            raise NotSupportedError("Arrow export needs pyarrow: install svmcore[arrow]") from error
        columns = {"name": pa.array(self.names, pa.string())}
        for key in BUFFER.names or ():
            columns[key] = pa.array(np.ascontiguousarray(self.buffers[key]))
        return pa.table(columns).__arrow_c_stream__(requested_schema)
