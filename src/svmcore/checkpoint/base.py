"""What every checkpoint backend shares: states, result codes, errors, and the verbs.

A backend offers the driver's functions by the vendor's names; this base turns
each into a verb that raises :class:`CheckpointError` where the driver answers
with a code. A program written against the verbs runs on the simulator
(:mod:`svmcore.checkpoint.process`) and on a real driver
(:mod:`svmcore.checkpoint.cuda`) alike.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import InvalidArgumentError, NotSupportedError, SvmError

__all__ = [
    "CUresult",
    "CallTimeoutError",
    "CheckpointBackend",
    "CheckpointError",
    "CheckpointNotSupportedError",
    "CustomStorage",
    "GpuPairs",
    "ProcessState",
    "Window",
    "bring",
    "checkpoint_error",
    "gpu_uuid",
    "pairs_of",
    "parse_gpu_map",
    "suspended",
]


#: UUID of an old GPU -> UUID of the new one.
GpuPairs: TypeAlias = Mapping[str, str] | None


class ProcessState(enum.IntEnum):
    """Where a process is in the checkpoint life cycle (``CUprocessState``)."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    """A checkpoint to custom storage awaits its completion (CUDA 13.4)."""
    RESTORING = 5
    """A restore from custom storage awaits its completion (CUDA 13.4)."""


class CUresult(enum.IntEnum):
    """Result codes of the CUDA driver that checkpoint calls answer with."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_OPERATING_SYSTEM = 304
    CUDA_ERROR_ILLEGAL_STATE = 401
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_NOT_PERMITTED = 800
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_UNKNOWN = 999


class CheckpointError(SvmError):
    """A checkpoint call that the driver refused; the process is in the state it was in.

    Parameters
    ----------
    result : enum or int
        The vendor's result code.
    call : str
        The vendor's name of the function.
    why : str
        What was asked and what was expected.

    Attributes
    ----------
    result, call, why
        As given.
    code : str
        Name of the result, for example ``"CUDA_ERROR_ILLEGAL_STATE"``.
    """

    def __init__(self, result: enum.IntEnum | int, call: str, why: str = "") -> None:
        self.result, self.call, self.why = result, call, why
        self.code = result.name if isinstance(result, enum.Enum) else str(result)
        super().__init__(f"{call}: {self.code}{': ' if why else ''}{why}")

    def __reduce__(self) -> tuple[type[CheckpointError], tuple[Any, str, str]]:
        return type(self), (self.result, self.call, self.why)


class CheckpointNotSupportedError(CheckpointError, NotSupportedError):
    """A call, or a feature of one, that this driver does not have."""


def checkpoint_error(result: enum.IntEnum | int, call: str, why: str = "") -> CheckpointError:
    """The error that stands for a result; parameters as :class:`CheckpointError`."""
    unsupported = result == CUresult.CUDA_ERROR_NOT_SUPPORTED
    kind = CheckpointNotSupportedError if unsupported else CheckpointError
    return kind(result, call, why)


class CallTimeoutError(SvmError):
    """A checkpoint call that did not return in time; what it did to the process is unknown."""

    code = "ETIMEDOUT"


@dataclass(frozen=True)
class Window:
    """Memory of the target on one GPU, mapped for the caller (custom storage).

    Parameters
    ----------
    addr : int
        Address in the caller.
    size : int
        Bytes, one contiguous piece.
    stream : object
        A stream of that GPU's primary context: the copies go onto it. A handle of
        the driver, or a :class:`svmcore.checkpoint.node.SimStream`.
    """

    addr: int
    size: int
    stream: Any


@dataclass(frozen=True)
class CustomStorage:
    """A checkpoint or restore that the caller's copies must finish.

    Parameters
    ----------
    handle : int
        For :meth:`CheckpointBackend.operation_complete`, once.
    windows : tuple of Window
        One for each GPU that holds data of the process.
    """

    handle: int
    windows: tuple[Window, ...]


class CheckpointBackend(abc.ABC):
    """The verbs of the checkpoint life cycle, over the vendor's functions.

    Every verb raises :class:`CheckpointError` with the vendor's code where the
    driver refuses; the process is then in the state it was in, but for what
    :meth:`restore` says.

    Source
    ------
    CUDA driver API, section 6.1; ``docs/explain/checkpoint.md``.
    """

    @abc.abstractmethod
    def invoke(self, call: str, *arguments: Any) -> Any:
        """Call a function by the vendor's name and return its value, if it has one.

        Raises
        ------
        CheckpointError
            If its result is not success.
        """

    def get_state(self, pid: int) -> ProcessState:
        """State of the process *pid* (or of the process of a thread of that id)."""
        return ProcessState(self.invoke("cuCheckpointProcessGetState", pid))

    def get_restore_thread_id(self, pid: int) -> int:
        """Thread of the target that must be able to run for checkpoint and restore."""
        return int(self.invoke("cuCheckpointProcessGetRestoreThreadId", pid))

    @abc.abstractmethod
    def lock(self, pid: int, timeout_ms: int = 0) -> None:
        """Block further calls of the process and let submitted work drain: LOCKED.

        Parameters
        ----------
        pid : int
        timeout_ms : int
            Longest wait for submitted work; 0: no limit. When it passes, the
            result is ``CUDA_ERROR_NOT_READY`` and the process runs on.
        """

    @abc.abstractmethod
    def checkpoint(self, pid: int, *, custom_storage: bool = False) -> CustomStorage | None:
        """Bring device memory to the host and release the GPUs: CHECKPOINTED.

        With *custom_storage* the memory is mapped for the caller instead: CHECKPOINTING
        until :meth:`operation_complete`.
        """

    @abc.abstractmethod
    def restore(
        self, pid: int, gpu_pairs: GpuPairs = None, *, custom_storage: bool = False
    ) -> CustomStorage | None:
        """Take GPUs again and put device memory back at the same addresses: LOCKED.

        Parameters
        ----------
        pid : int
        gpu_pairs : mapping, optional
            UUID of an old GPU -> UUID of the new one; empty: each GPU itself.
        custom_storage : bool
            Map the memory for the caller to fill: RESTORING until
            :meth:`operation_complete`.

        Raises
        ------
        CheckpointError
            ``CUDA_ERROR_OUT_OF_MEMORY`` where a GPU lacks room. What the state is
            then differs: see ``on_failed_restore`` of
            :class:`svmcore.checkpoint.process.SimDriver`.
        """

    def operation_complete(self, handle: int) -> None:
        """Wait for the caller's copies, unmap the windows, finish the operation."""
        self.invoke("cuCheckpointOperationComplete", handle)

    def unlock(self, pid: int) -> None:
        """Let the process call again: RUNNING."""
        self.invoke("cuCheckpointProcessUnlock", pid, None)


#: The line along which :func:`bring` walks.
_LINE = (ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.CHECKPOINTED)


def bring(
    backend: CheckpointBackend,
    pid: int,
    to: ProcessState,
    *,
    timeout_ms: int = 0,
    gpu_pairs: GpuPairs = None,
) -> None:
    """Walk the process to RUNNING, LOCKED or CHECKPOINTED, from whichever of them it is in.

    Parameters
    ----------
    backend : CheckpointBackend
    pid : int
    to : ProcessState
    timeout_ms : int
        For a lock on the way.
    gpu_pairs : mapping, optional
        For a restore on the way.

    Raises
    ------
    CheckpointError
        Of the step that was refused; ``CUDA_ERROR_ILLEGAL_STATE`` from a state off
        that line.
    InvalidArgumentError
        If *to* is off that line.
    """
    if to not in _LINE:
        raise InvalidArgumentError(f"state {to!r}: expected RUNNING, LOCKED or CHECKPOINTED")
    goal = _LINE.index(to)
    here = _on_the_line(backend, pid)
    while here != to:
        at = _LINE.index(here)
        if at < goal:
            if at == 0:
                backend.lock(pid, timeout_ms)
            else:
                backend.checkpoint(pid)
            here = _LINE[at + 1]
        else:
            if at == 2:
                backend.restore(pid, gpu_pairs)
            else:
                backend.unlock(pid)
            here = _LINE[at - 1]


def _on_the_line(backend: CheckpointBackend, pid: int) -> ProcessState:
    here = backend.get_state(pid)
    if here not in _LINE:
        raise CheckpointError(
            CUresult.CUDA_ERROR_ILLEGAL_STATE,
            "bring",
            f"process {pid} is {here.name}, expected RUNNING, LOCKED or CHECKPOINTED",
        )
    return here


@contextlib.contextmanager
def suspended(
    backend: CheckpointBackend,
    pid: int,
    *,
    timeout_ms: int = 5000,
    gpu_pairs: GpuPairs = None,
) -> Iterator[ProcessState]:
    """The process holds no GPU inside the block, and is as it was found after it.

    However the block or the way into it ends, the target's present state is asked
    for and walked back: a RUNNING target runs again, a LOCKED one is locked, a
    CHECKPOINTED one stays so. Only an interrupt on the way back leaves it half-way.

    Parameters
    ----------
    backend : CheckpointBackend
    pid : int
    timeout_ms : int
        Longest wait for submitted work; 0: no limit.
    gpu_pairs : mapping, optional
        Restore onto these GPUs. If the driver refuses that, the process is restored
        where it was, and the refusal is raised.

    Yields
    ------
    ProcessState
        The state the process was found in.

    Raises
    ------
    CheckpointError
        If a step is refused, or the process cannot be put back (it died, or its
        GPU has no room any more).
    """
    found = _on_the_line(backend, pid)
    try:
        bring(backend, pid, ProcessState.CHECKPOINTED, timeout_ms=timeout_ms)
        yield found
    finally:
        try:
            bring(backend, pid, found, timeout_ms=timeout_ms, gpu_pairs=gpu_pairs)
        except CheckpointError:
            if not gpu_pairs:
                raise
            bring(backend, pid, found, timeout_ms=timeout_ms)
            raise


def pairs_of(gpu_pairs: GpuPairs) -> list[tuple[str, str]]:
    """GPU pairs as a list, none of them for None.

    Raises
    ------
    InvalidArgumentError
        If *gpu_pairs* is no mapping.
    """
    if gpu_pairs is not None and not isinstance(gpu_pairs, Mapping):
        raise InvalidArgumentError(f"GPU pairs {gpu_pairs!r:.80}: expected {{old: new}}")
    return list((gpu_pairs or {}).items())


_UUID = re.compile(r"(?:GPU-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)


def gpu_uuid(text: str | bytes) -> str:
    """A GPU's UUID in the usual form, ``GPU-`` and 8-4-4-4-12 hex digits in lower case.

    Parameters
    ----------
    text : str or bytes
        That form, with or without ``GPU-``, or the 16 bytes.

    Raises
    ------
    InvalidArgumentError
        If it is none of these.
    """
    if isinstance(text, bytes) and len(text) == 16:
        return f"GPU-{uuid.UUID(bytes=text)}"
    match = _UUID.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise InvalidArgumentError(
            f"GPU {text!r}: expected a UUID, GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
        )
    return f"GPU-{match.group(1).lower()}"


def parse_gpu_map(text: str) -> dict[str, str]:
    """GPU pairs of ``old=new,old=new``; an empty text has none.

    Raises
    ------
    InvalidArgumentError
        If a part is no pair of UUIDs or an old GPU repeats.
    """
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        old, equals, new = part.partition("=")
        if not equals:
            raise InvalidArgumentError(f"GPU pair {part!r}: expected OLD=NEW, two UUIDs")
        before = gpu_uuid(old)
        if before in pairs:
            raise InvalidArgumentError(f"GPU pair {part!r}: {before} expected once on the left")
        pairs[before] = gpu_uuid(new)
    return pairs
