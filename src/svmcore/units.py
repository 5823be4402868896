"""Units: bytes outside, 4 KiB pages inside, and the only conversion between them.

The Python API, the command line and files speak of bytes in half-open
intervals ``[start, end)``. The compiled core and the driver formulas speak of
4 KiB page numbers, ``first..last`` inclusive. Nothing else converts.
"""

from __future__ import annotations

import operator
import re

from .errors import InvalidArgumentError, OverflowAddressError

PAGE_SHIFT = 12
PAGE_SIZE = 1 << PAGE_SHIFT
PAGE_MASK = PAGE_SIZE - 1
#: Pages of one 2 MiB block.
BLOCK_PAGES = 512
ADDRESS_LIMIT = 1 << 64

_SUFFIXES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "kb": 1000,
    "m": 1 << 20,
    "mib": 1 << 20,
    "mb": 1000**2,
    "g": 1 << 30,
    "gib": 1 << 30,
    "gb": 1000**3,
    "t": 1 << 40,
    "tib": 1 << 40,
    "tb": 1000**4,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def whole(name: str, value: object) -> int:
    """*value* as an int where it is a whole number of any kind, NumPy's too.

    Raises
    ------
    InvalidArgumentError
        If it is none, a float for example; the message names *name*.
    """
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgumentError(f"{name} {value!r}: expected a whole number") from None


def pages_of(addr: int, size: int) -> tuple[int, int]:
    """Pages that the bytes ``[addr, addr + size)`` touch.

    Parameters
    ----------
    addr, size : int
        Bytes; *size* at least 1. Neither needs to be page aligned.

    Returns
    -------
    (int, int)
        First and last 4 KiB page number, inclusive.

    Raises
    ------
    InvalidArgumentError
        If one is no whole number, *addr* is negative or *size* is not positive.
    OverflowAddressError
        If the interval passes 2**64.
    """
    if type(addr) is not int or type(size) is not int:  # both as a rule: spare the calls
        addr, size = whole("addr", addr), whole("size", size)
    if addr < 0 or size <= 0:
        raise InvalidArgumentError(
            f"addr {addr:#x}, size {size}: expected addr >= 0 and size > 0 bytes"
        )
    if addr + size > ADDRESS_LIMIT:
        raise OverflowAddressError(f"addr {addr:#x} + size {size:#x} passes 2**64")
    return addr >> PAGE_SHIFT, (addr + size - 1) >> PAGE_SHIFT


def bytes_of(first: int, last: int) -> tuple[int, int]:
    """Half-open byte interval ``[start, end)`` of the pages *first* to *last* inclusive."""
    return first << PAGE_SHIFT, (last + 1) << PAGE_SHIFT


def parse_size(text: str | int) -> int:
    """Bytes of a size such as ``"40GiB"``, ``"2M"`` or ``4096``.

    ``K``, ``M``, ``G``, ``T`` and the ``KiB`` forms are powers of 1024, the
    ``KB`` forms powers of 1000.

    Raises
    ------
    InvalidArgumentError
        If *text* is not a non-negative size.
    """
    if isinstance(text, int):
        if text < 0:
            raise InvalidArgumentError(f"size {text}: expected 0 or more bytes")
        return text
    if not isinstance(text, str):  # a value of a file
        raise InvalidArgumentError(f"size {text!r}: expected a number and a unit, as '40GiB'")
    match = _SIZE.fullmatch(text)
    unit = _SUFFIXES.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise InvalidArgumentError(f"size {text!r}: expected a number and a unit, as '40GiB'")
    whole = match.group(1)
    return int(whole) * unit if "." not in whole else int(float(whole) * unit)


def format_size(size: float) -> str:
    """A size for people: ``1536`` is ``'1.5 KiB'``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
