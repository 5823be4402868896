"""A replay on its way as a state file: the space, and what its result adds up to so far.

The file is a state file of the space (:meth:`svmcore.engine.Space.load` opens it)
with the replay's settings in the Spec and members of its own: the table of
buffers, what each record did where that is kept, and the rest as JSON.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._replay import OUTCOME
from ..engine import REPLAY_MEMBERS, REPLAY_SPEC, Space
from ..errors import InvalidArgumentError, StateFileError, SvmError
from ..image import read_image, read_manifest, write_image
from ..machine import Machine
from ..policies.base import Policy, policy_from_dict
from ..result import BUFFER

__all__ = ["SavedRun", "load_run", "replay_of", "save_run", "saved_settings"]

#: Keys of the settings, which a run does not change, and the type of each.
SETTINGS = {"digest": str, "names": str, "by": str, "raw_faults": bool, "outcomes": bool}
#: Keys of what it does change, beside the tables.
STATE = {
    "done": int,
    "timed": bool,
    "t0": int,
    "start_ns": int,
    "before": dict,
    "before_by": dict,
    "reasons": dict,
    "first_error": (dict, type(None)),
    "advice": dict,
    "advice_read": bool,
}
_FIRST_ERROR = {"record": int, "addr": int, "reason": str, "code": str}
#: What stands for keys that files of earlier versions lack.
_EARLIER = {"names": "", "advice": {}, "advice_read": True}
_STATE, _BUFFERS, _OUTCOMES = (
    f"{REPLAY_MEMBERS}{word}" for word in ("state", "buffers", "outcomes")
)


class SavedRun(NamedTuple):
    """What a replay needs to go on.

    Attributes
    ----------
    settings : dict
        ``digest`` of the trace, ``names`` (a digest of its mappings), ``by``,
        ``raw_faults``, ``outcomes``.
    state : dict
        ``done`` records, and what has been counted beside the tables.
    buffers : ndarray, shape (n,), dtype BUFFER
    outcomes : ndarray, shape (done,), dtype OUTCOME, or None
        Where the replay keeps them.
    """

    settings: dict[str, Any]
    state: dict[str, Any]
    buffers: npt.NDArray[np.void]
    outcomes: npt.NDArray[np.void] | None


def save_run(path: str | os.PathLike[str], space: Space, run: SavedRun) -> None:
    """Write a space and the replay that uses it; all of it or nothing.

    Raises
    ------
    StateFileError
        If it cannot be written; what was there is untouched.
    NotSupportedError
        If the policy's processes cannot be saved.

    Complexity
    ----------
    O(state of the space + buffers + outcomes kept).
    """
    spec, arrays = space.to_image()
    # The order of keys is the order in which they were met, which the result shows.
    text = json.dumps(run.state, allow_nan=False, separators=(",", ":"))
    arrays |= {_STATE: np.frombuffer(text.encode(), np.uint8), _BUFFERS: run.buffers}
    if run.outcomes is not None:
        arrays[_OUTCOMES] = run.outcomes
    write_image(path, {**spec, REPLAY_SPEC: run.settings}, arrays)


def load_run(path: str | os.PathLike[str]) -> tuple[Space, SavedRun]:
    """The space and the replay that :func:`save_run` wrote.

    Raises
    ------
    StateFileError
        As :meth:`svmcore.engine.Space.load`; also if the file holds a space
        without a replay, or a replay that cannot be.
    """
    spec, arrays = read_image(path)
    try:
        settings = _settings(spec)
        state = _state(arrays.get(_STATE))
        run = SavedRun(settings, state, *_tables(arrays, settings, state))
        return Space.from_image(spec, arrays), run
    except (SvmError, ValueError, OverflowError, TypeError) as error:
        raise StateFileError(str(path), "", str(error)) from error


def saved_settings(path: str | os.PathLike[str]) -> tuple[Machine, Policy, dict[str, Any]]:
    """Machine, policy and settings of a saved replay, without its state.

    Raises
    ------
    StateFileError
        As :func:`load_run`, as far as these go.
    """
    spec = read_manifest(path)["spec"]
    try:
        settings = _settings(spec)
        return Machine.from_dict(spec["machine"]), policy_from_dict(spec["policy"]), settings
    except (SvmError, ValueError, OverflowError, TypeError, KeyError) as error:
        raise StateFileError(str(path), "", str(error)) from error


def replay_of(spec: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any] | None:
    """Settings of the replay in a state file and its records ``done``; ``None`` without one.

    Raises
    ------
    InvalidArgumentError
        If there is one that cannot be.
    """
    if REPLAY_SPEC not in spec:
        return None
    return {**_settings(spec), "done": _state(arrays.get(_STATE))["done"]}


def _typed(table: Any, kinds: dict[str, Any], what: str) -> dict[str, Any]:
    if isinstance(table, dict):
        table = {key: _EARLIER[key] for key in kinds if key in _EARLIER} | table
    if not isinstance(table, dict) or set(table) != set(kinds):
        raise InvalidArgumentError(f"{what}: expected the keys {', '.join(kinds)}")
    for key, kind in kinds.items():
        # True is a whole number to Python, and must not pass for one.
        if not isinstance(table[key], kind) or (kind is int and isinstance(table[key], bool)):
            raise InvalidArgumentError(f"{what}: {key} = {table[key]!r:.60}: expected another type")
    return table


def _settings(spec: dict[str, Any]) -> dict[str, Any]:
    if REPLAY_SPEC not in spec:
        raise InvalidArgumentError("a space without a replay: expected a checkpoint of one")
    return _typed(spec[REPLAY_SPEC], SETTINGS, "replay")


def _state(packed: Any) -> dict[str, Any]:
    if packed is None or packed.dtype != np.uint8:
        raise InvalidArgumentError(f"member {_STATE}: expected bytes of JSON")
    try:
        table = json.loads(packed.tobytes())
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"member {_STATE}: expected JSON: {error}") from error
    state = _typed(table, STATE, _STATE)
    if state["done"] < 0 or not 0 <= state["start_ns"] < 1 << 63 or abs(state["t0"]) >> 64:
        raise InvalidArgumentError(f"{_STATE}: expected no negative count and times in their range")
    if state["first_error"] is not None:
        _typed(state["first_error"], _FIRST_ERROR, f"{_STATE}: first_error")
    counted = [state["before"], state["reasons"], state["advice"], *state["before_by"].values()]
    if not all(re.fullmatch(r"[0-7],\d{1,10}", key) for key in state["advice"]):
        raise InvalidArgumentError(f"{_STATE}: advice: expected attributes and flags")
    for table in counted:
        if not isinstance(table, dict) or any(type(value) is not int for value in table.values()):
            raise InvalidArgumentError(f"{_STATE}: expected tables of whole numbers")
    return state


def _tables(
    arrays: dict[str, Any], settings: dict[str, Any], state: dict[str, Any]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void] | None]:
    known = {_STATE, _BUFFERS, _OUTCOMES}
    strange = sorted(
        name for name in arrays if name.startswith(REPLAY_MEMBERS) and name not in known
    )
    if strange:
        raise InvalidArgumentError(f"member {strange[0]}: expected {', '.join(sorted(known))}")
    buffers, outcomes = arrays.get(_BUFFERS), arrays.get(_OUTCOMES)
    if buffers is None or buffers.dtype != BUFFER or buffers.ndim != 1:
        raise InvalidArgumentError(f"member {_BUFFERS}: expected rows of {BUFFER}")
    if settings["outcomes"] != (outcomes is not None):
        raise InvalidArgumentError(f"member {_OUTCOMES}: expected where outcomes are kept only")
    done = state["done"]
    if outcomes is not None and (outcomes.dtype != OUTCOME or outcomes.shape != (done,)):
        raise InvalidArgumentError(f"member {_OUTCOMES}: expected {done} rows of {OUTCOME}")
    return buffers, outcomes
