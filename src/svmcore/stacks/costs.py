"""What a launch costs: the ``[launch]`` table of a machine.

Times are modelled, in ns. A machine without the table gets that of the preset
``h200``, and results say so.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError
from ..machine import preset_names
from ..units import parse_size

__all__ = ["LaunchCosts", "launch_costs", "size_cost"]

#: Cost of a size: (bytes, ns) points, straight lines between them.
Curve = tuple[tuple[int, int], ...]
_DEFAULT = "h200"


@dataclass(frozen=True)
class LaunchCosts:
    """Costs and mechanism of launches, device allocations and frees on one device.

    The defaults are the machine of the review's model: fixed costs, one kernel at
    a time, locks that go to who waited longest, no lock inside the driver.

    Parameters
    ----------
    alloc, free : tuple of (bytes, ns)
        ``cuMemAlloc`` and ``cuMemFree`` of a size, straight lines between the
        points, level outside them.
    host_ns : int
        Host work of a launch outside every lock.
    launch_ns : int
        Submission of a launch; holds the driver's lock where there is one.
    kernel_ns : int
        What each kernel takes on the device besides its own time.
    wait_ns : int
        From the end of a kernel until the host that waits for it goes on.
    turn_ns : int
        Least time between the starts of two kernels of one stream.
    wake_ns : int
        From the release of a lock until a host thread that sleeps on it runs.
    free_waits : bool
        A free of a stack block waits until the device is idle; of any block where
        there is a driver lock.
    driver_lock : bool
        Launches, allocations and frees take turns in the driver; a free that
        waits holds the others up.
    fair : bool
        A released lock goes to the first waiter at once. If not, the waiter wakes
        after ``wake_ns`` and whoever asks before that has the lock; a launch into a
        stream of the thread's own spins for the driver's lock and has it at once.
    concurrent : bool
        Kernels of different streams run at the same time; if not, one at a time.
    assumed : bool
        The costs are another machine's.
    """

    alloc: Curve = ((0, 100_000),)
    free: Curve = ((0, 50_000),)
    host_ns: int = 0
    launch_ns: int = 0
    kernel_ns: int = 0
    wait_ns: int = 0
    spin_ns: int = 0
    drain_ns: int = 0
    turn_ns: int = 0
    wake_ns: int = 0
    free_waits: bool = True
    driver_lock: bool = False
    fair: bool = True
    concurrent: bool = False
    assumed: bool = False

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name in ("alloc", "free"):
                _check_curve(item.name, value)
            elif item.type == "int" and not (type(value) is int and 0 <= value < 1 << 62):
                raise InvalidArgumentError(
                    f"launch costs: {item.name} = {value!r}, expected ns, a whole number from 0"
                )
            elif item.type == "bool" and type(value) is not bool:
                raise InvalidArgumentError(
                    f"launch costs: {item.name} = {value!r}, expected true or false"
                )


def _check_curve(name: str, points: Any) -> None:
    last = -1
    try:
        for size, cost in points:
            if not last < size < 1 << 62 or not 0 <= cost < 1 << 62:
                raise ValueError
            last = size
        if last < 0:
            raise ValueError
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"launch costs: {name} = {points!r:.80}, expected pairs (bytes, ns) of growing size"
        ) from None


def size_cost(curve: Curve, size: int) -> int:
    """Cost in ns of *size* bytes on a curve, rounded down; level outside its points."""
    before = curve[0]
    for point in curve:
        if size <= point[0]:
            if point[0] == before[0]:
                return point[1]
            rise = (point[1] - before[1]) * (size - before[0])
            return before[1] + rise // (point[0] - before[0])
        before = point
    return before[1]


def launch_costs(machine: str | Path = _DEFAULT, **settings: Any) -> LaunchCosts:
    """The ``[launch]`` table of a machine's TOML file.

    Parameters
    ----------
    machine : str or Path
        A preset's name or a TOML file.
    **settings
        Fields of :class:`LaunchCosts` that replace those of the table.

    Raises
    ------
    InvalidArgumentError
        If there is no such machine, or a key or value of the table is not known.
    """
    where = str(machine)
    try:
        if where.endswith(".toml"):
            text = Path(machine).read_text("utf-8")
        elif where in preset_names():
            text = (resources.files("svmcore") / "data" / "machines" / f"{where}.toml").read_text(
                "utf-8"
            )
        else:
            raise InvalidArgumentError(
                f"machine {where!r}: expected one of {', '.join(preset_names())}"
            )
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(f"machine {where}: expected a TOML file: {error}") from error
    if "launch" not in table:
        return launch_costs(_DEFAULT, **(settings | {"assumed": True}))
    return LaunchCosts(**(_values(table["launch"], where) | settings))


def _values(table: Any, where: str) -> dict[str, Any]:
    fields = {item.name: item.type for item in dataclasses.fields(LaunchCosts)}
    del fields["assumed"]
    if not isinstance(table, Mapping):
        raise InvalidArgumentError(f"{where}: launch: expected one table [launch]")
    values: dict[str, Any] = {}
    for key, entry in table.items():
        if key not in fields:
            raise InvalidArgumentError(
                f"{where}: [launch]: unknown key {key!r}, expected {', '.join(fields)}"
            )
        value = entry["value"] if isinstance(entry, Mapping) and "value" in entry else entry
        if key in ("alloc", "free"):
            try:
                value = tuple((parse_size(size), cost) for size, cost in value)
            except (TypeError, ValueError) as error:
                raise InvalidArgumentError(
                    f"{where}: [launch] {key}: expected pairs [size, ns]: {error}"
                ) from error
        values[key] = value
    return values
