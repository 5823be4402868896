"""The machine: processors, their memory, links and costs. Frozen; a Spec, not State.

A machine is read from TOML. Every cost constant carries where it comes from:
``measured``, ``published`` or ``assumed``; results list the assumed ones.
Times computed from it are *modelled* times.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import InvalidArgumentError
from .units import PAGE_SHIFT, PAGE_SIZE, parse_size

__all__ = ["Costs", "Gpu", "Machine", "preset_names"]

_MOST_GPUS = 64
_SOURCES = ("measured", "published", "assumed")
_HIVE_LINKS = ("xgmi", "nvlink")
#: Bytes of a page of the kernel; inside they are counted in pages of 4 KiB all the same.
_PAGE_SIZES = (PAGE_SIZE, 1 << 16)
#: Points of a transfer curve: (bytes, ns), both ascending.
_Curve = tuple[tuple[int, float], ...]
_MOST_POINTS = 15


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
    """Cost constants, all in ns and bytes per second of modelled time.

    A transfer of *n* bytes costs its latency and *n* over the bandwidth. Where
    the direction has a curve, the cost runs straight from point to point of it,
    from the latency at 0 bytes; past the last point the bandwidth counts again.

    Attributes
    ----------
    fault_ns : int
        Service of one fault that is served alone.
    unmap_ns : int
        Unmapping a span and the TLB shootdown.
    migrate_latency_ns, migrate_bytes_per_s
        A transfer over the host link, in either direction.
    peer_latency_ns, peer_bytes_per_s
        A transfer between two GPUs that reach each other.
    remote_access_ns, remote_bytes_per_s
        Touches of one record that are answered from another memory.
    sources : dict
        Constant name -> ``measured``, ``published`` or ``assumed``.
    fault_batch_ns, fault_in_batch_ns : int
        Service of a batch of faults, and of each fault in it.
    evict_ns : int
        Taking one victim out of device memory, besides its moves and unmaps.
    map_ns : int
        Writing one span of GPU page tables.
    to_device_curve, to_host_curve, peer_curve : tuple of (bytes, ns)
        Measured transfers; empty where latency and bandwidth say all.
    """

    fault_ns: int = 30_000
    unmap_ns: int = 5_000
    migrate_latency_ns: int = 10_000
    migrate_bytes_per_s: float = 25e9
    peer_latency_ns: int = 10_000
    peer_bytes_per_s: float = 25e9
    remote_access_ns: int = 1_000
    remote_bytes_per_s: float = 8.192e9
    sources: dict[str, str] = field(default_factory=dict)
    fault_batch_ns: int = 20_000
    fault_in_batch_ns: int = 500
    evict_ns: int = 0
    map_ns: int = 0
    to_device_curve: _Curve = ()
    to_host_curve: _Curve = ()
    peer_curve: _Curve = ()

    @property
    def assumed(self) -> list[str]:
        """Names of the constants without a measurement or a publication behind them."""
        return self.assumed_of((*_COST_KEYS, *_CURVES))

    def assumed_of(self, names: Iterable[str]) -> list[str]:
        """Those of *names* without a measurement or a publication behind them.

        A curve that is not given is none.
        """
        return sorted(
            name
            for name in names
            if self.sources.get(name, "assumed") == "assumed"
            and (name not in _CURVES or getattr(self, name))
        )

    def transfer_ns(self, nbytes: int, curve: str = "to_device") -> int:
        """What one transfer costs, rounded down to whole ns.

        Parameters
        ----------
        nbytes : int
        curve : str
            ``to_device``, ``to_host`` or ``peer``.

        Raises
        ------
        InvalidArgumentError
            If the curve is none of these.

        Source
        ------
        Own; ``transfer_ns`` in ``_faults.pxd`` is its compiled twin.
        """
        pieces = self.pieces(curve)
        start, ns, byte_ns = max((p for p in pieces if p[0] < nbytes), default=pieces[0])
        return int(ns + byte_ns * (nbytes - start))

    def pieces(self, curve: str) -> list[tuple[int, float, float]]:
        """The straight pieces of a transfer's cost: first byte, ns there, ns a byte."""
        if curve not in ("to_device", "to_host", "peer"):
            raise InvalidArgumentError(f"curve {curve!r}: expected to_device, to_host or peer")
        link = "peer" if curve == "peer" else "migrate"
        rate = getattr(self, f"{link}_bytes_per_s")
        points = [(0, getattr(self, f"{link}_latency_ns")), *getattr(self, f"{curve}_curve")]
        slopes = [
            (there[1] - here[1]) / (there[0] - here[0])
            for here, there in itertools.pairwise(points)
        ]
        return [
            (here[0], here[1], slope)
            for here, slope in zip(points, [*slopes, 1e9 / rate], strict=True)
        ]


#: What every machine file says, and what it may leave to the assumed default.
_NEEDED_COSTS = (
    "fault_ns",
    "unmap_ns",
    "migrate_latency_ns",
    "migrate_bytes_per_s",
    "peer_latency_ns",
    "peer_bytes_per_s",
    "remote_access_ns",
    "remote_bytes_per_s",
)
_LATER_COSTS = ("fault_batch_ns", "fault_in_batch_ns", "evict_ns", "map_ns")
_COST_KEYS = (*_NEEDED_COSTS, *_LATER_COSTS)
_CURVES = ("to_device_curve", "to_host_curve", "peer_curve")
#: What a machine may say of the node as a whole.
_NODE_KEYS = ("hive_link", "pcie_peers", "page_size")
_GPU_KEYS = ("id", "vram", "hive", "device", "apu", "svm", "coherent", "count")


@dataclass(frozen=True)
class Machine:
    """A node: its GPUs and what things cost on it.

    Build one with :meth:`preset`, :meth:`from_toml` or by hand.

    Parameters
    ----------
    name : str
    gpus : tuple of Gpu
    costs : Costs
    hive_link : str
        What joins the GPUs of one hive: ``xgmi`` or ``nvlink``.
    pcie_peers : bool
        GPUs without a common hive reach each other's memory over PCIe.
    page_size : int
        Bytes of a page of the host's kernel: 4096, or 65536 on some Arm and Power
        systems. Not every policy knows the latter.

    Raises
    ------
    InvalidArgumentError
        If there are more than 64 GPUs, an id repeats or is reserved, a size is
        not positive, or the link of a hive or the page size is unknown.
    """

    name: str
    gpus: tuple[Gpu, ...]
    costs: Costs = field(default_factory=Costs)
    hive_link: str = "xgmi"
    pcie_peers: bool = False
    page_size: int = PAGE_SIZE

    def __post_init__(self) -> None:
        if type(self.page_size) is not int or self.page_size not in _PAGE_SIZES:
            raise InvalidArgumentError(
                f"machine {self.name}: page_size {self.page_size!r:.40}, "
                f"expected one of {', '.join(map(str, _PAGE_SIZES))}"
            )
        if self.hive_link not in _HIVE_LINKS:
            raise InvalidArgumentError(
                f"machine {self.name}: hive_link {self.hive_link!r}, "
                f"expected one of {', '.join(_HIVE_LINKS)}"
            )
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

    def link(self, a: int, b: int) -> str:
        """What joins two processors, that is their memories.

        Parameters
        ----------
        a, b : int
            Processor codes as the records have them: 0 the CPU, 1 + i GPU i.

        Returns
        -------
        str
            ``local`` (one memory: the same processor, or partitions of one
            device), ``coherent`` (CPU and GPU address each other's memory),
            ``pcie`` (CPU and GPU; the GPU reads system memory, not the other way
            round), ``xgmi`` or ``nvlink`` (GPUs of one hive), ``peer`` (GPUs that
            reach each other over PCIe) or ``none`` (GPUs that exchange data by
            way of system memory only). Symmetric.

        Raises
        ------
        InvalidArgumentError
            If the machine has no such processor.
        """
        for code in (a, b):
            if not 0 <= code <= len(self.gpus):
                raise InvalidArgumentError(
                    f"machine {self.name}: processor {code}, expected 0 to {len(self.gpus)}"
                )
        if a == b:
            return "local"
        if 0 in (a, b):
            gpu = self.gpus[max(a, b) - 1]
            return "coherent" if gpu.coherent or gpu.apu else "pcie"
        one, other = self.gpus[a - 1], self.gpus[b - 1]
        if one.adev >= 0 and one.adev == other.adev:
            return "local"
        if one.hive and one.hive == other.hive:
            return self.hive_link
        return "peer" if self.pcie_peers else "none"

    def with_capacity(self, capacity: Mapping[str, int]) -> Machine:
        """The same machine with other sizes of device memory.

        Parameters
        ----------
        capacity : mapping
            GPU name (``"gpu0"``) -> bytes; whole 4 KiB pages count.

        Raises
        ------
        InvalidArgumentError
            If a name is no GPU of the machine, or a size is below one page.
        """
        gpus = list(self.gpus)
        names = [f"gpu{i}" for i in range(len(gpus))]
        for name, size in capacity.items():
            if name not in names:
                raise InvalidArgumentError(
                    f"capacity of {name!r}: expected one of {', '.join(names)}"
                )
            if size >> PAGE_SHIFT < 1:
                raise InvalidArgumentError(
                    f"capacity of {name}: {size} bytes, expected at least one page of 4096"
                )
            index = names.index(name)
            gpus[index] = dataclasses.replace(gpus[index], vram_pages=size >> PAGE_SHIFT)
        return dataclasses.replace(self, gpus=tuple(gpus))

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
            raise InvalidArgumentError(
                f"machine {name!r}: expected one of {', '.join(known)}, or a .toml file"
            )
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
            "hive_link": self.hive_link,
            "pcie_peers": self.pcie_peers,
            "page_size": self.page_size,
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
        _exactly(table, ("name", "gpus", "costs"), where, _NODE_KEYS)
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
        node = {key: table[key] for key in _NODE_KEYS if key in table}
        if type(node.get("hive_link", "")) is not str:
            raise InvalidArgumentError(f"{where}: hive_link, expected a word")
        if type(node.get("pcie_peers", False)) is not bool:
            raise InvalidArgumentError(f"{where}: pcie_peers, expected true or false")
        if type(node.get("page_size", PAGE_SIZE)) is not int:
            raise InvalidArgumentError(f"{where}: page_size, expected a whole number")
        costs = _costs_from_dict(table["costs"], f"{where}: costs")
        return Machine(table["name"], tuple(gpus), costs, **node)

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


def _costs_from_dict(costs: Any, where: str) -> Costs:
    _exactly(costs, (*_NEEDED_COSTS, "sources"), where, (*_LATER_COSTS, *_CURVES))
    for key in (key for key in _COST_KEYS if key in costs):
        value = costs[key]
        least = 1e-300 if key.endswith("_per_s") else 0  # times may be 0, rates not
        if type(value) not in (int, float) or not least <= value < math.inf:
            raise InvalidArgumentError(
                f"{where}: {key} = {value!r:.40}, expected a number, a rate above 0"
            )
    sources = costs["sources"]
    if not isinstance(sources, dict) or not all(isinstance(word, str) for word in sources.values()):
        raise InvalidArgumentError(f"{where}: sources, expected a word a constant")
    # A file from before a constant was known rests on its default.
    sources = {key: "assumed" for key in _LATER_COSTS if key not in costs} | sources
    curves = {
        key: _curve(costs[key], f"{where}: {key}") if costs.get(key, ()) not in ([], ()) else ()
        for key in _CURVES
    }
    return Costs(**(costs | {"sources": dict(sources)} | curves))


def _machine_of(table: dict[str, Any], where: str) -> Machine:
    # [launch] is read by svmcore.stacks.costs.
    _known(table, ("name", "gpu", "costs", "launch", *_NODE_KEYS), where)
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
    return Machine(
        str(_need(table, "name", where)),
        tuple(gpus),
        _costs_of(table, where),
        hive_link=str(table.get("hive_link", "xgmi")),
        pcie_peers=_switch(table, "pcie_peers", where, default=False),
        page_size=_whole(table, "page_size", where, PAGE_SIZE),
    )


def _costs_of(table: dict[str, Any], where: str) -> Costs:
    costs = _need(table, "costs", where)
    if not isinstance(costs, dict):
        raise InvalidArgumentError(f"{where}: costs: expected one table [costs]")
    place = f"{where}: [costs]"
    _known(costs, (*_COST_KEYS, *_CURVES), place)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key in _COST_KEYS:
        if key in _LATER_COSTS and key not in costs:
            sources[key] = "assumed"
            continue
        if key not in costs:
            raise InvalidArgumentError(
                f"{place}: key {key!r} is missing, expected {', '.join(_NEEDED_COSTS)}"
            )
        values[key], sources[key] = _constant(costs[key], f"{place} {key}")
        value, zero = values[key], key in _LATER_COSTS
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf") or not (value or zero):
            raise InvalidArgumentError(
                f"{place} {key}: value {value!r}, expected {'0 or more' if zero else 'more than 0'}"
            )
    for key in _CURVES:
        if key in costs:
            points, sources[key] = _constant(costs[key], f"{place} {key}")
            values[key] = _curve(points, f"{place} {key}")
    return Costs(**values, sources=sources)


def _constant(entry: Any, where: str) -> tuple[Any, str]:
    """Value and source of one constant."""
    if not isinstance(entry, dict) or set(entry) - {"value", "source", "note"}:
        raise InvalidArgumentError(f"{where}: expected {{value = ..., source = ..., note = ...}}")
    source = _need(entry, "source", where)
    if source not in _SOURCES:
        raise InvalidArgumentError(
            f"{where}: source {source!r}, expected one of {', '.join(_SOURCES)}"
        )
    return _need(entry, "value", where), source


def _curve(points: Any, where: str) -> _Curve:
    """The points of a transfer curve, checked."""
    last = (0, 0.0)
    curve = []
    if not isinstance(points, list | tuple) or not 1 <= len(points) <= _MOST_POINTS:
        raise InvalidArgumentError(
            f"{where}: expected 1 to {_MOST_POINTS} points [bytes, ns], found {points!r:.60}"
        )
    for point in points:
        whole = (
            isinstance(point, list | tuple)
            and len(point) == 2
            and type(point[0]) is int
            and type(point[1]) in (int, float)
        )
        if not whole or not (last[0] < point[0] < 1 << 63 and last[1] <= point[1] < math.inf):
            raise InvalidArgumentError(
                f"{where}: point {point!r:.60}, expected [bytes, ns] above {list(last)}"
            )
        last = (point[0], point[1])
        curve.append(last)
    return tuple(curve)


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


def _exactly(table: Any, keys: tuple[str, ...], where: str, later: tuple[str, ...] = ()) -> None:
    """The table has all of *keys*, and of others only those of *later*."""
    if not isinstance(table, Mapping) or not set(keys) <= set(table) <= {*keys, *later}:
        found = ", ".join(sorted(map(str, table))) if isinstance(table, Mapping) else repr(table)
        known = ", ".join((*keys, *later))
        raise InvalidArgumentError(f"{where}: {found:.200}, expected keys {known}")
