"""The machine: processors, their memory, links and costs. Frozen; a Spec, not State.

A machine is read from TOML. Every cost constant carries where it comes from:
``measured``, ``published`` or ``assumed``; results list the assumed ones.
Times computed from it are *modelled* times.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import InvalidArgumentError
from .units import PAGE_SHIFT, parse_size

__all__ = ["Costs", "Gpu", "Machine", "preset_names"]

_MOST_GPUS = 64
_SOURCES = ("measured", "published", "assumed")


@dataclass(frozen=True)
class Gpu:
    """One GPU of a node.

    Parameters
    ----------
    id : int
        The user-visible id (KFD gpu id), unique and neither 0 nor 0xffffffff.
    vram_pages : int
        Device memory in 4 KiB pages.
    hive : int
        XGMI hive or NVLink domain; 0 for no fast link.
    adev : int
        Device number; equal numbers are partitions of one device. -1: its own.
    apu : bool
        Shares memory with the CPU and prefers system memory.
    svm : bool
        Supports shared virtual memory.
    coherent : bool
        The CPU can read the device's memory in place.
    """

    id: int
    vram_pages: int
    hive: int = 0
    adev: int = -1
    apu: bool = False
    svm: bool = True
    coherent: bool = False


@dataclass(frozen=True)
class Costs:
    """Cost constants, all in ns and bytes per second of modelled time."""

    fault_ns: int = 30_000
    unmap_ns: int = 5_000
    migrate_latency_ns: int = 10_000
    migrate_bytes_per_s: float = 25e9
    peer_latency_ns: int = 10_000
    peer_bytes_per_s: float = 25e9
    remote_access_ns: int = 1_000
    remote_bytes_per_s: float = 8.192e9
    #: constant name -> measured, published or assumed
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def assumed(self) -> list[str]:
        """Names of the constants without a measurement or a publication behind them."""
        return sorted(name for name in _COST_KEYS if self.sources.get(name, "assumed") == "assumed")


_COST_KEYS = (
    "fault_ns",
    "unmap_ns",
    "migrate_latency_ns",
    "migrate_bytes_per_s",
    "peer_latency_ns",
    "peer_bytes_per_s",
    "remote_access_ns",
    "remote_bytes_per_s",
)
_GPU_KEYS = ("id", "vram", "hive", "device", "apu", "svm", "coherent", "count")


@dataclass(frozen=True)
class Machine:
    """A node: its GPUs and what things cost on it.

    Build one with :meth:`preset`, :meth:`from_toml` or by hand.

    Raises
    ------
    InvalidArgumentError
        If there are more than 64 GPUs, an id repeats or is reserved, or a size
        is not positive.
    """

    name: str
    gpus: tuple[Gpu, ...]
    costs: Costs = field(default_factory=Costs)

    def __post_init__(self) -> None:
        if len(self.gpus) > _MOST_GPUS:
            raise InvalidArgumentError(
                f"machine {self.name}: {len(self.gpus)} GPUs, expected at most {_MOST_GPUS}"
            )
        seen: set[int] = set()
        for gpu in self.gpus:
            if gpu.id in (0, 0xFFFFFFFF) or gpu.id in seen or not 0 < gpu.id < 1 << 32:
                raise InvalidArgumentError(
                    f"machine {self.name}: gpu id {gpu.id}: expected a unique number "
                    "from 1 to 0xfffffffe"
                )
            seen.add(gpu.id)
            if gpu.vram_pages <= 0:
                raise InvalidArgumentError(
                    f"machine {self.name}: gpu {gpu.id}: vram of {gpu.vram_pages} pages, "
                    "expected more than 0"
                )

    @staticmethod
    def preset(name: str) -> Machine:
        """A machine that ships with the package, by name (``gpu-80g`` is the default one).

        Raises
        ------
        InvalidArgumentError
            If there is no such preset; the message lists those there are.
        """
        import tomllib
        from importlib import resources

        known = preset_names()
        if name not in known:
            raise InvalidArgumentError(f"machine {name!r}: expected one of {', '.join(known)}")
        text = (resources.files("svmcore") / "data" / "machines" / f"{name}.toml").read_text(
            "utf-8"
        )
        return _machine_of(tomllib.loads(text), f"preset {name}")

    @staticmethod
    def from_toml(path: str | os.PathLike[str]) -> Machine:
        """A machine from a TOML file of the presets' form.

        Raises
        ------
        InvalidArgumentError
            If the file cannot be read, is not TOML, lacks a key or has one that
            is not known; the message names the key and lists the known ones.
        """
        import tomllib
        from pathlib import Path  # where it is used: it is an eighth of importing svmcore

        try:
            table = tomllib.loads(Path(path).read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidArgumentError(f"machine {path}: expected a TOML file: {error}") from error
        return _machine_of(table, str(path))

    def to_dict(self) -> dict[str, Any]:
        """The machine as JSON values; :meth:`from_dict` makes an equal one of them."""
        return {
            "name": self.name,
            "gpus": [dataclasses.asdict(gpu) for gpu in self.gpus],
            "costs": dataclasses.asdict(self.costs),
        }

    @staticmethod
    def from_dict(table: Mapping[str, Any], where: str = "machine") -> Machine:
        """A machine from what :meth:`to_dict` gave.

        Parameters
        ----------
        table : mapping
        where : str
            What messages begin with.

        Raises
        ------
        InvalidArgumentError
            If a key is missing or not known, or a value is not of its kind; the
            message names the key.
        """
        _exactly(table, ("name", "gpus", "costs"), where)
        if not isinstance(table["name"], str) or not isinstance(table["gpus"], list):
            raise InvalidArgumentError(f"{where}: expected a name and a list of gpus")
        gpus = []
        for number, entry in enumerate(table["gpus"]):
            place = f"{where}: gpus[{number}]"
            _exactly(entry, tuple(item.name for item in dataclasses.fields(Gpu)), place)
            for item in dataclasses.fields(Gpu):
                value = entry[item.name]
                wanted = bool if item.type == "bool" else int
                if type(value) is not wanted or not -(1 << 63) <= value < 1 << 64:
                    raise InvalidArgumentError(
                        f"{place}: {item.name} = {value!r:.40}, expected a {wanted.__name__} "
                        "of 64 bits"
                    )
            gpus.append(Gpu(**entry))
        costs = table["costs"]
        _exactly(costs, (*_COST_KEYS, "sources"), f"{where}: costs")
        for key in _COST_KEYS:
            value = costs[key]
            least = 1e-300 if key.endswith("_per_s") else 0  # times may be 0, rates not
            if type(value) not in (int, float) or not least <= value < math.inf:
                raise InvalidArgumentError(
                    f"{where}: costs: {key} = {value!r:.40}, expected a number, a rate above 0"
                )
        sources = costs["sources"]
        if not isinstance(sources, dict) or not all(
            isinstance(word, str) for word in sources.values()
        ):
            raise InvalidArgumentError(f"{where}: costs: sources, expected a word a constant")
        return Machine(table["name"], tuple(gpus), Costs(**(costs | {"sources": dict(sources)})))

    @staticmethod
    def resolve(machine: str | os.PathLike[str] | Machine) -> Machine:
        """*machine* itself, the preset of that name, or the file at that path."""
        if isinstance(machine, Machine):
            return machine
        text = str(machine)
        return Machine.from_toml(text) if text.endswith(".toml") else Machine.preset(text)


def preset_names() -> list[str]:
    """Names of the machines that ship with the package."""
    from importlib import resources

    folder = resources.files("svmcore") / "data" / "machines"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml"))


def _machine_of(table: dict[str, Any], where: str) -> Machine:
    _known(table, ("name", "gpu", "costs", "launch"), where)  # [launch]: svmcore.stacks.costs
    gpus: list[Gpu] = []
    entries = _need(table, "gpu", where)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidArgumentError(f"{where}: gpu: expected tables [[gpu]]")
    for entry in entries:
        place = f"{where}: [[gpu]]"
        _known(entry, _GPU_KEYS, place)
        first = _whole(entry, "id", place)
        vram = _need(entry, "vram", place)
        try:
            pages = parse_size(vram) >> PAGE_SHIFT
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{place}: vram: {error}") from error
        count = _whole(entry, "count", place, 1)
        if count < 1:
            raise InvalidArgumentError(f"{place}: count {count}, expected 1 or more")
        gpus.extend(
            Gpu(
                id=first + number,
                vram_pages=pages,
                hive=_whole(entry, "hive", place, 0),
                adev=_whole(entry, "device", place, -1),
                apu=_switch(entry, "apu", place, default=False),
                svm=_switch(entry, "svm", place, default=True),
                coherent=_switch(entry, "coherent", place, default=False),
            )
            for number in range(min(count, _MOST_GPUS + 1))
        )
    return Machine(str(_need(table, "name", where)), tuple(gpus), _costs_of(table, where))


def _costs_of(table: dict[str, Any], where: str) -> Costs:
    costs = _need(table, "costs", where)
    if not isinstance(costs, dict):
        raise InvalidArgumentError(f"{where}: costs: expected one table [costs]")
    _known(costs, _COST_KEYS, f"{where}: [costs]")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key in _COST_KEYS:
        entry = _need(costs, key, f"{where}: [costs]")
        if not isinstance(entry, dict) or set(entry) - {"value", "source", "note"}:
            raise InvalidArgumentError(
                f"{where}: [costs] {key}: expected {{value = ..., source = ..., note = ...}}"
            )
        source = _need(entry, "source", f"{where}: [costs] {key}")
        if source not in _SOURCES:
            raise InvalidArgumentError(
                f"{where}: [costs] {key}: source {source!r}, expected one of {', '.join(_SOURCES)}"
            )
        value = _need(entry, "value", f"{where}: [costs] {key}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < float("inf"):
            raise InvalidArgumentError(
                f"{where}: [costs] {key}: value {value!r}, expected more than 0"
            )
        values[key] = value
        sources[key] = source
    return Costs(**values, sources=sources)


def _need(table: dict[str, Any], key: str, where: str) -> Any:
    if key not in table:
        raise InvalidArgumentError(f"{where}: key {key!r} is missing")
    return table[key]


def _whole(table: dict[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = _need(table, key, where) if default is None else table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgumentError(f"{where}: {key} = {value!r}, expected a whole number")
    return value


def _switch(table: dict[str, Any], key: str, where: str, *, default: bool) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{where}: {key} = {value!r}, expected true or false")
    return value


def _known(table: dict[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in keys:
            raise InvalidArgumentError(f"{where}: unknown key {key!r}, expected {', '.join(keys)}")


def _exactly(table: Any, keys: tuple[str, ...], where: str) -> None:
    if not isinstance(table, Mapping) or set(table) != set(keys):
        found = ", ".join(sorted(map(str, table))) if isinstance(table, Mapping) else repr(table)
        raise InvalidArgumentError(f"{where}: {found:.200}, expected keys {', '.join(keys)}")
