"""Replay: a trace through a space, in chunks, and the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._faults import REASONS
from ._replay import OUTCOME, replay_chunk
from ._tally import first_stranger, tally
from .engine import Space, difference
from .errors import InvalidArgumentError, TraceError, error_from_errno
from .policies.base import Policy
from .records import CPU, RECORD, UNKNOWN, Kind, processor_code, processor_name
from .result import BOUND_NOTE, BUFFER, Profile, Result
from .units import ADDRESS_LIMIT, PAGE_MASK, PAGE_SHIFT, PAGE_SIZE, whole

if TYPE_CHECKING:
    from .plans import Due, Plan
    from .traces import Mapping, Trace

__all__ = ["Watch", "replay"]

#: Records handed to the compiled loop at once.
CHUNK = 1 << 16


class Watch:
    """Looks on while a trace is replayed, and changes nothing; override what is of interest.

    Attributes
    ----------
    play : callable
        Set by the replay: ``play(process, records, outcomes)`` replays records into any
        process, as this replay would now.
    begins : callable
        Set by the replay: the modelled time at which it would begin with a record now.
    """

    play: Callable[[Any, npt.NDArray[np.void], npt.NDArray[np.void]], None]
    begins: Callable[[np.void], int]

    def cut(self, number: int) -> int | None:
        """The next record, past *number*, before which the replay has to pause; ``None``: none."""

    def before(self, number: int, records: npt.NDArray[np.void]) -> None:
        """Records are about to be replayed, *number* the first."""

    def after(
        self, number: int, records: npt.NDArray[np.void], outcomes: npt.NDArray[np.void]
    ) -> None:
        """They have been replayed."""

    def hinting(self, number: int, hint: Due) -> None:
        """A hint of the plan is about to be given, before record *number*."""

    def hinted(self, number: int, hint: Due, outcomes: npt.NDArray[np.void]) -> None:
        """It has been given."""


def replay(
    trace: Trace | str | PathLike[str] | npt.NDArray[np.void],
    space: Space,
    *,
    by: str = "gpu0",
    raw_faults: bool = False,
    strict: bool = False,
    outcomes: bool = False,
    chunk: int = CHUNK,
    profile: bool = False,
    progress: Callable[[int], None] | None = None,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: str | PathLike[str] | None = None,
    plan: Plan | None = None,
    stop: int | None = None,
    watch: Watch | None = None,
) -> Result:
    """Replay a trace into a space.

    The trace's mappings are mapped first (whole pages), then its records are
    replayed in order: accesses, and recorded faults as accesses (the page was
    needed then), are served until done; mappings, advice and prefetches take
    effect; recorded outcomes are skipped. Modelled time moves by what faults,
    moves and remote touches cost and, in an access trace, by each record's own
    compute time; a record of a fault trace is not handled before its own time.

    Parameters
    ----------
    trace : Trace, path, or ndarray of RECORD
    space : Space
        Its state, clock and counters move on.
    by : str
        Processor of records that name none.
    raw_faults : bool
        Deliver recorded faults once, by the driver's exact rules.
    strict : bool
        Raise at the first fatal record instead of counting it.
    outcomes : bool
        Keep what each record did (40 bytes a record).
    chunk : int
        Records handed to the compiled loop at once; the result does not depend on it.
        Raw faults of an arrival that may go on wait for the next chunk.
    profile : bool
        Tell the real time of each stage in ``result.profile``.
    progress : callable, optional
        Called with the records read so far, once a chunk and after each checkpoint.
    checkpoint : path, optional
        State file to write while the replay goes on; the file of *resume* by default.
    checkpoint_every : int, optional
        Records from one checkpoint to the next. Each replaces the one before at
        once or not at all, so that a run which ends at any moment leaves the
        last one whole.
    resume : path, optional
        Checkpoint to go on from, of the same trace and the same arguments. The
        space becomes that of the file, on a node of its own; the result is that
        of the whole replay, except for wall-clock times.
    plan : Plan, optional
        Its hints are given to the space on the way, each before its record; the
        space is taken as it is (:meth:`svmcore.plans.Plan.space` makes one).
    stop : int, optional
        Replay only the records before this number, and give hints that are due at it.
    watch : Watch, optional
        Is told before and after each piece that is replayed; the result does not depend on it.

    Returns
    -------
    Result

    Raises
    ------
    TraceError
        If the trace cannot be read.
    StateFileError
        If a checkpoint cannot be written (the last one is untouched), or the
        one to resume from is damaged or of another kind.
    InvalidArgumentError
        If a record's processor is none of the machine's (the chunks before it
        have been replayed), an array holds a record without bytes or past
        2**64, *chunk* or *checkpoint_every* is below 1, *stop* below 0, the checkpoint to resume
        from is of another trace, machine, policy or other arguments, or a hint of
        the plan names what the trace or the machine lacks or is refused by the driver.
    SvmError
        With *strict*: the driver's error of the first fatal record.

    Complexity
    ----------
    O(records + windows served); memory O(chunk + mappings + ranges). A
    checkpoint costs a save of the space. Resuming reads the records before it.

    Examples
    --------
    >>> import numpy as np
    >>> from svmcore.records import RECORD
    >>> touches = np.zeros(4, RECORD)
    >>> touches["addr"] = [0x10000, 0x11000, 0x10000, 0x12000]
    >>> touches["size"], touches["proc"] = 4096, 1
    >>> replay(touches, Space("gpu-80g", granularity=0)).counters["faults"]
    3
    """
    if chunk < 1:
        raise InvalidArgumentError(f"chunk of {chunk} records: expected at least 1")
    if plan is not None and (checkpoint_every is not None or resume is not None):
        raise InvalidArgumentError(
            "replay with a plan: expected no checkpoint and none to resume from, which do not know "
            "the hints that were given"
        )
    if stop is not None and stop < 0:
        raise InvalidArgumentError(f"stop at record {stop}: expected 0 or more")
    now = time.perf_counter
    spent = Profile()
    started = now()
    source = _open(trace)
    code = processor_code_of(by, space)
    place = _checkpoint_place(checkpoint, checkpoint_every, resume)
    settings = {"by": by, "raw_faults": raw_faults, "outcomes": outcomes}
    opened = now()
    mappings = source.mappings()
    schedule = None if plan is None else plan.schedule(mappings, space.machine)
    if plan is not None:
        plan.check_clock(source)
    found = now()
    if resume is None:
        # Objects may have mapped memory already: only what is missing is added.
        for first, last in _page_spans(mappings):
            _map_missing(space, first, last)
    mapped = now()
    run = _Run(space, source, mappings, code, raw_faults, strict, spent, keep=outcomes)
    run.watch_by(watch)
    if place is not None or resume is not None:
        settings["digest"] = source.digest
        settings["names"] = _names_digest(run.order)
    if resume is not None:
        run.go_on(resume, settings)
    # The kind is found by the pass for mappings, or by one of its own.
    begun = now()
    spent.first_pass_s = found - opened + begun - mapped
    spent.mapping_s = mapped - found
    stopped = False
    for records in _after(source.chunks(chunk), run.done):
        spent.reading_s += now() - begun
        for piece in _pieces(records, run.read, checkpoint_every, watch):
            until = len(piece) if stop is None else min(len(piece), stop - run.read)
            if schedule is None:
                run.add(piece[:until])
            else:
                run.add_planned(schedule.parts(piece, run.read, until))
            stopped = until < len(piece)
            if stopped:
                break
            if place is not None and checkpoint_every and run.read % checkpoint_every == 0:
                run.save(place, settings)
            if progress is not None:
                progress(run.read)
        if stopped:
            break
        begun = now()
    run.flush()
    ended = now()
    spent.reading_s += ended - begun
    result = run.result(by, raw_faults)
    if plan is not None and schedule is not None:
        result.settings["plan"] = plan.name
        result.notes += schedule.leftovers()
    done = now()
    spent.report_s = done - ended
    result.wall_s = spent.wall_s = done - started
    result.engine_s, spent.records = spent.engine_s, run.done
    if profile:
        result.profile = spent
    return result


def _checkpoint_place(
    path: str | PathLike[str] | None, every: int | None, resume: str | PathLike[str] | None
) -> str | PathLike[str] | None:
    """Where checkpoints go; ``None`` without any."""
    if every is None:
        if path is not None:
            raise InvalidArgumentError(
                f"checkpoint {path}: expected checkpoint_every, records from one to the next"
            )
        return None
    if whole("checkpoint_every:", every) < 1:
        raise InvalidArgumentError(f"checkpoint_every of {every} records: expected at least 1")
    if path is None and resume is None:
        raise InvalidArgumentError("checkpoint_every: expected checkpoint or resume, a file")
    return resume if path is None else path


def _names_digest(mappings: Iterable[Mapping]) -> str:
    """What tells mappings, and the names of buffers, from others."""
    import hashlib

    listed = repr([(m.start, m.size, m.name) for m in mappings])
    return hashlib.blake2b(listed.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _after(chunks: Iterable[npt.NDArray[np.void]], done: int) -> Iterator[npt.NDArray[np.void]]:
    """What follows the first *done* records."""
    for records in chunks:
        skipped = min(done, len(records))
        done -= skipped
        if skipped < len(records):
            yield records[skipped:]


def _pieces(
    records: npt.NDArray[np.void], done: int, every: int | None, watch: Watch | None
) -> Iterator[npt.NDArray[np.void]]:
    """The records, cut behind each multiple of *every* and where *watch* says; *done* precede."""
    at = 0
    while at < len(records):
        end = len(records) if every is None else at + every - (done + at) % every
        cut = None if watch is None else watch.cut(done + at)
        if cut is not None:
            end = min(end, max(at + 1, cut - done))
        yield records[at:end]
        at = end


def processor_code_of(name: str, space: Space) -> int:
    """Record code of a processor of the space's machine."""
    try:
        code = processor_code(name)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error
    if code > len(space.machine.gpus):
        known = ", ".join(["cpu", *(f"gpu{i}" for i in range(len(space.machine.gpus)))])
        raise InvalidArgumentError(f"processor {name!r}: expected one of {known}")
    return code


def check_processors(records: npt.NDArray[np.void], space: Space, path: Any, before: int) -> None:
    """Refuse records of a processor that the machine lacks; *before* of the trace precede them."""
    known = len(space.machine.gpus)
    at = first_stranger(records, known)
    if at >= 0:
        names = ", ".join(processor_name(i) for i in range(1 + known))
        raise InvalidArgumentError(
            f"{path}: record {before + at}: processor "
            f"{processor_name(int(records['proc'][at]))}, expected one of {names}"
        )


class _Run:
    """One replay on its way: what the chunks added up to.

    Invariant: ``held`` are raw faults that were read but not delivered, fewer than the driver
    takes at once; all of them would come with a fault that follows. A checkpoint is of the
    records before them, which are read again.
    """

    def __init__(
        self,
        space: Space,
        source: Trace | _Array,
        mappings: Sequence[Mapping],
        by: int,
        raw: bool,
        strict: bool,
        spent: Profile,
        *,
        keep: bool,
    ) -> None:
        self.space, self.source, self.strict = space, source, strict
        self.spent = spent
        self.order = sorted(mappings, key=lambda m: m.start)
        self.starts = np.array([m.start for m in self.order], "<u8")
        self.buffers = np.zeros(len(self.order), BUFFER)
        self.buffers["start"] = self.starts
        self.buffers["size"] = [m.size for m in self.order]
        self.by, self.raw = by, raw
        self.by_arrival = self.source.kind == "fault"
        self.timed = False
        self.t0 = 0
        self.start_ns = space.now_ns
        self.before = space.counters()
        self.before_by = space.counters_by_processor()
        self.done = 0
        #: Most faults that the driver takes at once.
        self.most = space.process.batch if raw else 1
        self.held = np.empty(0, RECORD)
        self.out = np.empty(0, OUTCOME)
        self.reasons: dict[str, int] = {}
        self.first_error: dict[str, Any] | None = None
        self.kept: list[npt.NDArray[np.void]] | None = [] if keep else None
        self.watch: Watch | None = None
        # Loaded with the first replay.
        from .unused import Unused

        self.unused = Unused()

    def watch_by(self, watch: Watch | None) -> None:
        """Tell *watch* from now on."""
        self.watch = watch
        if watch is not None:
            watch.play, watch.begins = self._play, self._begins

    def _begins(self, record: np.void) -> int:
        """When a record is begun, if it is the next one."""
        waits = self.by_arrival and self.timed
        return max(self.space.now_ns, int(record["t_ns"]) - max(0, self.t0) if waits else 0)

    def _play(self, process: Any, records: npt.NDArray[np.void], out: npt.NDArray[np.void]) -> None:
        """Replay records into a process, by the trace's clock and as the caller asked."""
        replay_chunk(
            process,
            records,
            out,
            by=self.by,
            raw=self.raw,
            by_arrival=self.by_arrival and self.timed,
            t0=max(0, self.t0),
        )

    @property
    def read(self) -> int:
        """Records taken so far, replayed or held."""
        return self.done + len(self.held)

    def add(self, records: npt.NDArray[np.void]) -> None:
        """Replay records, but hold raw faults back that come together with what may follow."""
        if self.most > 1 and len(records):
            if len(self.held):
                records = np.concatenate([self.held, records])
            cut = len(records) - self._unfinished(records)
            self.held, records = records[cut:].copy(), records[:cut]
        if len(records):
            self._replay(records)

    def flush(self) -> None:
        """Nothing follows at once: what is held is the end of its arrival."""
        held, self.held = self.held, self.held[:0]
        if len(held):
            self._replay(held)

    def _unfinished(self, records: npt.NDArray[np.void]) -> int:
        """How many at the end are no whole delivery yet; the first begins one."""
        proc = np.where(records["proc"] == UNKNOWN, self.by, records["proc"])
        other = np.flatnonzero((records["kind"] != Kind.FAULT) | (proc == CPU))
        row = len(records) - (int(other[-1]) + 1 if len(other) else 0)
        return row % self.most

    def _replay(self, records: npt.NDArray[np.void]) -> None:
        started = time.perf_counter()
        if not self.timed:
            # The first touch sets the clock: batch marks and mappings may carry no time.
            touches = records["kind"] <= Kind.FAULT
            if touches.any():
                first = int(touches.argmax())
                if first:
                    self._replay(records[:first])
                    records = records[first:]
                self.timed = True
                self.t0 = int(records["t_ns"][0]) - self.start_ns
        self._check_processors(records)
        if self.by_arrival and self.timed and self.t0 < 0:
            # The space is ahead of the trace's clock: its records are as far apart all the same.
            records = records.copy()
            records["t_ns"] += np.uint64(-self.t0)
        out = self._room(len(records))
        if self.watch is not None:
            self.watch.before(self.done, records)
        began = time.perf_counter()
        self._play(self.space.process, records, out)
        ended = time.perf_counter()
        if self.watch is not None:
            self.watch.after(self.done, records, out)
        self.spent.engine_s += ended - began
        self.unused.add(records, out["code"])
        fatal = tally(records, out, self.starts, self.buffers)
        if fatal:
            self._count_errors(records, out, np.flatnonzero(out["code"]))
        if self.kept is not None:
            self.kept.append(out)
        self.done += len(records)
        self.spent.counting_s += time.perf_counter() - ended + began - started

    def save(self, path: str | PathLike[str], settings: dict[str, Any]) -> None:
        """Write a checkpoint."""
        from .checkpoint.run import SavedRun, save_run

        state = {
            "done": self.done,
            "timed": self.timed,
            "t0": self.t0,
            "start_ns": self.start_ns,
            "before": self.before,
            "before_by": self.before_by,
            "reasons": self.reasons,
            "first_error": self.first_error,
            "advice": self.unused.records,
            "advice_read": bool(getattr(self.space.process, "advice_read", False)),
        }
        save_run(path, self.space, SavedRun(settings, state, self.buffers, self._outcomes()))

    def go_on(self, path: str | PathLike[str], settings: dict[str, Any]) -> None:
        """Take over a checkpoint of a replay with these settings.

        Raises
        ------
        InvalidArgumentError
            If it is of another trace, machine, policy or setting.
        """
        from .checkpoint.run import load_run

        space, saved = load_run(path)
        where = f"{path}: resume"
        if saved.settings["digest"] != settings["digest"]:
            raise InvalidArgumentError(
                f"{where}: a replay of another trace, digest {saved.settings['digest']:.64}, "
                f"expected {self.source.path}, digest {settings['digest']}"
            )
        names = settings["names"]
        if saved.settings["names"] not in ("", names):
            raise InvalidArgumentError(
                f"{where}: mappings of other names or places, expected those of the file: a replay "
                "with other ranges?"
            )
        settings = {**settings, "names": saved.settings["names"]}
        if saved.settings != settings:
            raise InvalidArgumentError(
                f"{where}: {difference('replay', saved.settings, settings)} given"
            )
        mine = self.buffers
        if len(saved.buffers) != len(mine) or any(
            (saved.buffers[key] != mine[key]).any() for key in ("start", "size")
        ):
            raise InvalidArgumentError(
                f"{where}: {len(saved.buffers)} mappings, expected the trace's own {len(mine)}: "
                "a replay with other ranges?"
            )
        try:
            self.space.take(space)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{where}: {error}") from error
        self.buffers = saved.buffers
        state = dict(saved.state)
        self.unused.records = state.pop("advice")
        if state.pop("advice_read") and hasattr(self.space.process, "advice_read"):
            self.space.process.advice_read = True
        for key, value in state.items():
            setattr(self, key, value)
        if self.kept is not None and saved.outcomes is not None:
            self.kept = [saved.outcomes]

    def _outcomes(self) -> npt.NDArray[np.void] | None:
        """What each record did, in one array; ``None`` where that is not kept."""
        if self.kept is None:
            return None
        self.kept = [np.concatenate([np.empty(0, OUTCOME), *self.kept])]
        return self.kept[0]

    def add_planned(self, parts: Iterable[tuple[Sequence[Due], npt.NDArray[np.void]]]) -> None:
        """Parts of a chunk, before each the hints that are due; their cost counts."""
        for hints, records in parts:
            if hints:
                self.flush()
            for hint in hints:
                out = np.empty(len(hint.records), OUTCOME)
                if self.watch is not None:
                    self.watch.hinting(self.done, hint)
                replay_chunk(self.space.process, hint.records, out, by=self.by)
                if self.watch is not None:
                    self.watch.hinted(self.done, hint, out)
                hint.check(out["code"], self.space.policy.name)
                self.unused.hint(hint)
            if len(records):
                self.add(records)

    def _room(self, n: int) -> npt.NDArray[np.void]:
        """Room for the outcomes of *n* records; the same memory again where none are kept."""
        if self.kept is not None:
            return np.empty(n, OUTCOME)
        if len(self.out) < n:
            self.out = np.empty(n, OUTCOME)
        return self.out[:n]

    def _check_processors(self, records: npt.NDArray[np.void]) -> None:
        check_processors(records, self.space, self.source.path, self.done)

    def _count_errors(
        self, records: npt.NDArray[np.void], out: npt.NDArray[np.void], at: npt.NDArray[np.intp]
    ) -> None:
        for number in at:
            row = out[number]
            # Refused advice has no reason but the driver's error.
            error = error_from_errno(int(row["code"]), "")
            reason = REASONS[row["reason"]] if row["reason"] else error.code
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
            if self.first_error is None:
                addr = int(row["page"]) << PAGE_SHIFT or int(records["addr"][number])
                self.first_error = {
                    "record": self.done + int(number),
                    "addr": addr,
                    "reason": reason,
                    "code": error.code,
                }
                if self.strict:
                    what = f"record {self.done + int(number)}, address {addr:#x}: {reason}"
                    raise error_from_errno(int(row["code"]), what)

    def result(self, by: str, raw: bool) -> Result:
        policy: Policy = self.space.policy
        costs = self.space.machine.costs
        assumed = costs.assumed_of(policy.costs_used) if policy.costs_used else costs.assumed
        notes = ["times are modelled"]
        if self.source.kind == "fault":
            notes.append(BOUND_NOTE)
        if assumed:
            notes.append(f"assumed constants of {self.space.machine.name}: {', '.join(assumed)}")
        notes += self.unused.notes(policy, self.space.process)
        counters = self.space.counters()
        return Result(
            trace={
                "path": self.source.path,
                "format": self.source.format,
                "kind": self.source.kind,
                "records": self.done,
                "digest": self.source.digest,
            },
            policy=policy.name,
            machine=self.space.machine.name,
            settings={**policy.settings(), "by": by, "raw_faults": raw},
            counters={name: value - self.before.get(name, 0) for name, value in counters.items()},
            processors=self._processors(),
            names=[m.name for m in self.order],
            buffers=self.buffers,
            reasons=self.reasons,
            first_error=self.first_error,
            time_ns=self.space.now_ns - self.start_ns,
            notes=notes,
            outcomes=self._outcomes(),
        )

    def _processors(self) -> dict[str, dict[str, int]]:
        """Counters by processor, those of this replay only."""
        added: dict[str, dict[str, int]] = {}
        for name, counters in self.space.counters_by_processor().items():
            before = self.before_by.get(name, {})
            gained = {key: value - before.get(key, 0) for key, value in counters.items()}
            if any(gained.values()):
                added[name] = gained
        return added


class _Array:
    """Records in memory, with the face of a trace."""

    path = "(memory)"
    format = "records"

    def __init__(self, records: npt.NDArray[np.void]) -> None:
        if records.dtype != RECORD or records.ndim != 1:
            raise InvalidArgumentError(
                f"trace of shape {records.shape}, dtype {records.dtype}: "
                "expected one dimension of svmcore.records.RECORD"
            )
        addr, size = records["addr"], records["size"]
        replayed = records["kind"] <= Kind.PREFETCH
        bad = replayed & ((size == 0) | (addr + (size - np.uint64(1)) < addr))
        if bad.any():
            at = int(np.argmax(bad))
            raise InvalidArgumentError(
                f"record {at}: addr {int(addr[at]):#x}, size {int(size[at]):#x}: "
                "expected at least 1 byte, up to 2**64"
            )
        from .traces.base import check_records

        try:
            check_records(records, self.path, "record {}".format)
        except TraceError as error:
            raise InvalidArgumentError(str(error)) from error
        self.records = np.ascontiguousarray(records)
        self.kind = "fault" if (records["kind"] == Kind.FAULT).any() else "access"

    @property
    def digest(self) -> str:
        import hashlib

        return hashlib.blake2b(self.records.view("u1").data, digest_size=16).hexdigest()

    def mappings(self) -> list[Mapping]:
        from .traces.base import Mapping, Spans

        maps = self.records[self.records["kind"] == Kind.MAP]
        if len(maps):
            return [
                Mapping(int(addr), int(size), f"map{i}")
                for i, (addr, size) in enumerate(maps[["addr", "size"]].tolist())
            ]
        touched = Spans()
        touched.add(self.records)
        return [
            Mapping(start, end - start, f"touched{i}")
            for i, (start, end) in enumerate(touched.runs())
        ]

    def chunks(self, n: int) -> Any:
        return (self.records[i : i + n] for i in range(0, len(self.records), n))


def _open(trace: Trace | str | PathLike[str] | npt.NDArray[np.void]) -> Trace | _Array:
    if isinstance(trace, np.ndarray):
        return _Array(trace)
    # Readers are loaded where a file is read.
    from .traces import Trace, open_trace

    source = trace if isinstance(trace, Trace) else open_trace(trace)
    source.identify()
    return source


def _page_spans(mappings: Sequence[Mapping]) -> list[tuple[int, int]]:
    """Byte spans of whole pages, in order; neighbours that share a page are cut apart."""
    spans: list[tuple[int, int]] = []
    for mapping in sorted(mappings, key=lambda m: m.start):
        start = mapping.start & ~PAGE_MASK
        end = min((mapping.start + mapping.size + PAGE_MASK) & ~PAGE_MASK, ADDRESS_LIMIT)
        if spans:
            start = max(start, spans[-1][1])
        if start < end:
            spans.append((start, end))
    return spans


def _map_missing(space: Space, start: int, end: int) -> None:
    while start < end:
        there = space.process.vma(start >> PAGE_SHIFT)
        if there is not None:
            start = (there[1] + 1) << PAGE_SHIFT
            continue
        stop = space.process.next_vma(start >> PAGE_SHIFT)
        stop = end if stop is None else min(end, stop << PAGE_SHIFT)
        space.map(start, stop - start)
        start = max(stop, start + PAGE_SIZE)
