"""What every policy shares: its parameters, its name, and the registry.

A policy is one file: a frozen dataclass of parameters, registered by the
decorator :func:`register` (or found through the entry-point group
``svmcore.policies``), that makes the process which decides.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy.typing as npt

from ..errors import InvalidArgumentError, NotSupportedError
from ..machine import Machine
from ..units import PAGE_SIZE

__all__ = [
    "SWITCHES",
    "Policy",
    "check_memory_parameters",
    "make_policy",
    "parse_spec",
    "policy_class",
    "policy_from_dict",
    "policy_names",
    "register",
]

_GROUP = "svmcore.policies"
_SPEC = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
#: Words for on and off, as parameters and switches take them.
SWITCHES = {"true": True, "on": True, "yes": True, "1": True}
SWITCHES |= {"false": False, "off": False, "no": False, "0": False}


class Policy:
    """Base of the policies: a frozen dataclass whose fields are its parameters."""

    #: Name on the command line; set by :func:`register`.
    name: ClassVar[str] = ""
    #: Neutral words of advice that its processes take; empty where advice is an attribute.
    ADVICE: ClassVar[tuple[str, ...]] = ()
    #: Module of this folder that packs and unpacks its processes; empty: they cannot be saved.
    KEEPER: ClassVar[str] = ""
    #: Constants of a machine that enter modelled times under it; empty: all of them.
    costs_used: ClassVar[tuple[str, ...]] = ()
    #: Page sizes of kernels, in bytes, under which it decides right.
    PAGE_SIZES: ClassVar[tuple[int, ...]] = (PAGE_SIZE,)

    def check_machine(self, machine: Machine) -> None:
        """Refuse a machine on which the policy would decide wrong.

        Parameters
        ----------
        machine : Machine

        Raises
        ------
        InvalidArgumentError
            If the policy does not know the page size of the machine's kernel.
        """
        if machine.page_size not in self.PAGE_SIZES:
            raise InvalidArgumentError(
                f"policy {self.name}: machine {machine.name} has pages of {machine.page_size} "
                f"bytes, expected {' or '.join(map(str, self.PAGE_SIZES))}"
            )

    def create(self, machine: Machine, node: Any = None) -> Any:
        """A process on *machine* that decides by this policy.

        Parameters
        ----------
        machine : Machine
        node : object, optional
            Device memory to share with other processes.
        """
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Every parameter with its value, as results report it."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters as JSON values; :func:`policy_from_dict` makes an equal one."""
        return {"name": self.name, "settings": self.settings()}

    def pack(self, process: Any) -> dict[str, npt.NDArray[Any]]:
        """The whole state of a process of this policy as named arrays, for state files and clones.

        Raises
        ------
        NotSupportedError
            If the policy cannot be saved.
        """
        arrays: dict[str, npt.NDArray[Any]] = self._keeper().pack(process)
        return arrays

    def unpack(self, process: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Give a new process, on a node of its own, the state that :meth:`pack` took.

        Raises
        ------
        SvmError
            If the arrays do not fit the process or each other; it must then be discarded.
        """
        self._keeper().unpack(process, arrays)

    def unheeded(self, process: Any, attribute: int, value: int) -> str:
        """Why advice of this kind decides nothing under it, ``""`` where it can.

        Parameters
        ----------
        process : object
            After the advice was given and the touches were made.
        attribute : int
            :class:`svmcore.attributes.Attribute`.
        value : int
            Of the attributes that set or clear flags: the flags.
        """
        return ""

    def _keeper(self) -> Any:
        if not self.KEEPER:
            raise NotSupportedError(f"policy {self.name}: its processes cannot be saved or loaded")
        return importlib.import_module(f"{__package__}.{self.KEEPER}")


def check_memory_parameters(policy: Any, orders: Sequence[str]) -> None:
    """Check ``eviction``, ``seed`` and ``quota_pages`` of a policy that has them.

    Raises
    ------
    InvalidArgumentError
        If one is out of range; the message names it and what was expected.
    """
    quota = policy.quota_pages
    for key, sound, expected in (
        ("eviction", policy.eviction in orders, f"one of {', '.join(orders)}"),
        ("seed", 0 <= policy.seed < 1 << 64, "0 to 2**64 - 1"),
        ("quota_pages", quota is None or 1 <= quota < 1 << 52, "1 or more"),
    ):
        if not sound:
            raise InvalidArgumentError(
                f"policy {policy.name}: {key} = {getattr(policy, key)!r}, expected {expected}"
            )


_P = TypeVar("_P", bound=type[Policy])
_known: dict[str, type[Policy]] = {}
#: Names of entry points that do not load, and why.
_broken: dict[str, str] = {}


def register(name: str) -> Callable[[_P], _P]:
    """Class decorator: make the policy known by *name*.

    Raises
    ------
    InvalidArgumentError
        If another class has the name.
    """

    def known(cls: _P) -> _P:
        other = _known.get(name)
        if other is not None and other.__qualname__ != cls.__qualname__:
            raise InvalidArgumentError(f"policy {name!r} is registered already: {other}")
        cls.name = name
        _known[name] = cls
        return cls

    return known


def _discover() -> None:
    """Import every policy file of this folder, then those of other packages."""
    import pkgutil
    from importlib import metadata

    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__package__}.{module.name}")
    for entry in metadata.entry_points(group=_GROUP):
        if entry.name not in _known and entry.name not in _broken:
            try:
                register(entry.name)(entry.load())
            except Exception as error:
                # Whatever a foreign package raises; the other policies stay usable.
                _broken[entry.name] = f"{entry.value} cannot be loaded: {error!r}"


def policy_names() -> list[str]:
    """Names of all policies, those of installed packages too."""
    _discover()
    return sorted(_known)


def policy_class(name: str) -> type[Policy]:
    """The class of a policy.

    Raises
    ------
    InvalidArgumentError
        If there is none; the message lists those there are.
    """
    if name not in _known:
        _discover()
    if name in _broken:
        raise InvalidArgumentError(f"policy {name!r}: {_broken[name]}, expected a policy class")
    if name not in _known:
        raise InvalidArgumentError(f"policy {name!r}: expected one of {', '.join(sorted(_known))}")
    return _known[name]


def make_policy(spec: str | Policy, **settings: Any) -> Policy:
    """A policy from ``"name"`` or ``"name(key=value, ...)"``.

    Parameters
    ----------
    spec : str or Policy
    **settings
        Parameters that replace those of *spec*; strings are converted.

    Raises
    ------
    InvalidArgumentError
        For a malformed spec, an unknown name or parameter (the known ones are
        listed), or a value of the wrong type.
    """
    if isinstance(spec, Policy):
        return _build(type(spec), spec.settings() | settings)
    name, values = parse_spec(spec)
    return _build(policy_class(name), values | settings)


def parse_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of ``"name(key=value, ...)"``, as text.

    Raises
    ------
    InvalidArgumentError
        If it is malformed.
    """
    match = _SPEC.fullmatch(str(spec))
    if match is None:
        raise InvalidArgumentError(f"policy {spec!r}: expected name or name(key=value, ...)")
    values: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in (match.group(2) or "").split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise InvalidArgumentError(f"policy {spec!r}: {item!r}: expected key=value")
        key = key.strip()
        if key in values:
            raise InvalidArgumentError(f"policy {spec!r}: {key} is given twice")
        values[key] = value.strip()
    return match.group(1), values


def policy_from_dict(table: Any, where: str = "policy") -> Policy:
    """A policy from what :meth:`Policy.to_dict` gave.

    Raises
    ------
    InvalidArgumentError
        If a key is missing or not known, or the policy, a parameter or a value
        is not.
    """
    if not isinstance(table, Mapping) or set(table) != {"name", "settings"}:
        raise InvalidArgumentError(f"{where}: expected the keys name, settings")
    name, settings = table["name"], table["settings"]
    if not isinstance(name, str) or not isinstance(settings, Mapping):
        raise InvalidArgumentError(f"{where}: expected a name and a table of settings")
    return _build(policy_class(name), dict(settings))


def _build(cls: type[Policy], values: dict[str, Any]) -> Policy:
    types_ = typing.get_type_hints(cls)
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise InvalidArgumentError(
                f"policy {cls.name}: unknown parameter {key!r}, expected {', '.join(fields)}"
            )
    return cls(**{key: _convert(cls, key, types_[key], value) for key, value in values.items()})


def _convert(cls: type[Policy], key: str, kind: Any, value: Any) -> Any:
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and type(None) in options:
        return None
    kind = next(option for option in options if option is not type(None))
    if kind is bool:
        word = SWITCHES.get(str(value).lower())
        if word is not None:
            return word
    elif kind is int:
        try:
            return value if isinstance(value, int) else int(str(value), 0)
        except ValueError:
            pass
    elif kind is float:
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    else:
        return str(value)
    wanted = {bool: "on or off", int: "a whole number", float: "a number"}[kind]
    raise InvalidArgumentError(f"policy {cls.name}: {key} = {value!r}, expected {wanted}")
