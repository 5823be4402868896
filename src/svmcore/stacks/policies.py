"""The built-in policies by name, with their parameters.

One row of a table says how a policy runs in both engines: the word and switches
for the compiled one, the class for the readable one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidArgumentError
from ..policies.base import SWITCHES, parse_spec
from ..units import parse_size
from . import reference

__all__ = ["SOFTSTACK_CACHE_LIMIT", "BuiltIn", "policy", "policy_names"]

#: libgomp's limit of the cached block, bytes; a block of exactly this size is kept.
SOFTSTACK_CACHE_LIMIT = 128 << 20
#: Larger than every block.
NO_LIMIT = (1 << 63) - 1


@dataclass(frozen=True)
class BuiltIn:
    """A built-in policy with its parameters.

    Attributes
    ----------
    name : str
    settings : dict
        Every parameter with its value.
    """

    name: str
    settings: Mapping[str, Any]
    _row: _Row = field(repr=False)

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={_shown(value)}" for key, value in self.settings.items())
        return f"{self.name}({shown})" if shown else self.name

    def limit(self, capacity: int) -> int:
        """Bytes over which a user's allocation frees an idle block."""
        if self.name == "bounded" and self.settings["fraction"] is not None:
            return int(capacity * self.settings["fraction"])
        return int(self.settings.get("bound", self.settings.get("limit", NO_LIMIT)))

    def compiled(self, capacity: int) -> dict[str, Any]:
        """Arguments of ``svmcore._stacks.run``."""
        return {
            "policy": self._row.compiled,
            "retries": self._row.retries,
            "limit": self.limit(capacity),
            "k": self.settings.get("k", 0),
            "waits": self.settings.get("when_full") == "wait",
            "strict": self.settings.get("strict", False),
            "by_stream": self.name == "per_stream",
            "free_at_exit": self.settings.get("at_thread_end") == "free",
        }

    def readable(self, capacity: int) -> reference.StackPolicy:
        """A fresh instance for ``svmcore.stacks.reference.run``."""
        return self._row.readable(self.settings, self.limit(capacity))

    def with_setting(self, key: str, value: Any) -> BuiltIn:
        """The policy with one parameter replaced."""
        return _built(self.name, dict(self.settings) | {key: value})


@dataclass(frozen=True)
class _Row:
    compiled: str
    retries: bool
    parameters: Mapping[str, Any]
    readable: Callable[[Mapping[str, Any], int], reference.StackPolicy]


_LIMIT = {"limit": SOFTSTACK_CACHE_LIMIT}
_TABLE: dict[str, _Row] = {
    "none": _Row("none", False, {}, lambda _s, _limit: reference.NoCache()),
    "unbounded": _Row("locked", False, {}, lambda _s, _limit: reference.Unbounded()),
    "locked_block": _Row("locked", True, _LIMIT, lambda _s, limit: reference.LockedBlock(limit)),
    "bounded": _Row(
        "bounded",
        True,
        {"bound": 16 << 20, "fraction": None},
        lambda _s, limit: reference.Bounded(limit),
    ),
    "take_put": _Row("take_put", True, _LIMIT, lambda _s, limit: reference.TakePut(limit)),
    "sole_user": _Row("sole_user", True, _LIMIT, lambda _s, limit: reference.SoleUser(limit)),
    "exclusive_only": _Row(
        "exclusive",
        True,
        _LIMIT | {"strict": False},
        lambda s, limit: reference.ExclusiveOnly(limit, strict=s["strict"]),
    ),
    "pool": _Row(
        "pool",
        True,
        {"k": 3, "when_full": "transient"} | _LIMIT,
        lambda s, limit: reference.Pool(s["k"], limit, wait=s["when_full"] == "wait"),
    ),
    "per_thread": _Row(
        "keyed",
        True,
        _LIMIT | {"at_thread_end": "keep"},
        lambda s, limit: reference.Keyed(
            "thread", limit, free_at_exit=s["at_thread_end"] == "free"
        ),
    ),
    "per_stream": _Row("keyed", True, _LIMIT, lambda _s, limit: reference.Keyed("stream", limit)),
    "list": _Row("list", False, {}, lambda _s, _limit: reference.BlockList()),
}
_WORDS = {"when_full": ("transient", "wait"), "at_thread_end": ("keep", "free")}


def policy_names() -> list[str]:
    """Names of the built-in policies."""
    return list(_TABLE)


def policy(spec: str | BuiltIn, **settings: Any) -> BuiltIn:
    """A built-in policy from ``"name"`` or ``"name(key=value, ...)"``.

    Parameters
    ----------
    spec : str or BuiltIn
    **settings
        Parameters that replace those of *spec*. Sizes are bytes or ``"128MiB"``;
        a *limit* may be ``"inf"``.

    Raises
    ------
    InvalidArgumentError
        For an unknown name or parameter (the known ones are listed) or a value of
        the wrong kind.

    Examples
    --------
    >>> str(svmcore.stacks.policy("pool(k=2, limit=inf)"))
    'pool(k=2, when_full=transient, limit=inf)'
    """
    if isinstance(spec, BuiltIn):
        return _built(spec.name, dict(spec.settings) | settings)
    name, values = parse_spec(spec)
    if name not in _TABLE:
        raise InvalidArgumentError(f"stack policy {name!r}: expected one of {', '.join(_TABLE)}")
    return _built(name, values | settings)


def _built(name: str, values: dict[str, Any]) -> BuiltIn:
    row = _TABLE[name]
    known = dict(row.parameters)
    for key, value in values.items():
        if key not in known:
            wanted = ", ".join(known) or "none, it has no parameter"
            raise InvalidArgumentError(
                f"stack policy {name}: unknown parameter {key!r}, expected {wanted}"
            )
        known[key] = _value(f"stack policy {name}: {key}", key, value)
    return BuiltIn(name, known, row)


def _value(where: str, key: str, value: Any) -> Any:
    text = str(value).strip().lower()
    if key in _WORDS:
        if text in _WORDS[key]:
            return text
        wanted = " or ".join(_WORDS[key])
    elif key == "strict":
        if text in SWITCHES:
            return SWITCHES[text]
        wanted = "on or off"
    elif key == "fraction":
        wanted = "a part of the device from 0 to 1"
        try:
            if value is None or text in ("", "none"):
                return None
            if 0 <= float(text) <= 1:
                return float(text)
        except ValueError:
            pass
    elif key == "k":
        wanted = "a whole number from 1"
        if text.isdecimal() and 1 <= int(text) < 1 << 31:
            return int(text)
    else:
        wanted = "bytes, a size as 128MiB, or inf"
        if text == "inf":
            return NO_LIMIT
        try:
            size = parse_size(int(text) if text.isdecimal() else text)
        except InvalidArgumentError:
            size = NO_LIMIT + 1
        if size <= NO_LIMIT:
            return size
    raise InvalidArgumentError(f"{where} = {value!r:.40}, expected {wanted}")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value >= 1 << 20:
        if value == NO_LIMIT:
            return "inf"
        return f"{value >> 20}MiB" if value % (1 << 20) == 0 else str(value)
    return str(value)
