"""The KFD driver's own checkpoint records of ranges, byte for byte, and their replay.

CRIU saves a process with the driver's help. Of its shared virtual memory the
driver keeps one record a range: bounds and attributes, no pages and no places.
On restore the records are queued, and at the end each becomes one ``set_attr``.

A record of a process with *n* GPUs has ``24 + 8 * (4 + n)`` bytes, little-endian:

======  =====================================================================
offset  meaning
======  =====================================================================
0       u32 object type, 2: a range
4       u32 padding, 0
8       u64 first page
16      u64 pages
24      4 + n attributes of u32 type and u32 value: PREFERRED_LOC,
        PREFETCH_LOC, SET_FLAGS, GRANULARITY, then ACCESS, ACCESS_IN_PLACE or
        NO_ACCESS of each GPU, whose value is the GPU's id
======  =====================================================================

Where pages are is not saved. State files (:mod:`svmcore.image`) save everything.

Source: KFD ``kfd_criu_checkpoint_svm`` and ``kfd_criu_resume_svm``; that the first
page is a page number and the object type is 2 is inferred from how the driver
hands both numbers to its ``get_attr`` and from the order of its object types.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ..attributes import LOCATION_UNDEFINED, Attribute
from ..engine import Space
from ..errors import InvalidArgumentError, NotSupportedError, SvmError
from ..units import ADDRESS_LIMIT, PAGE_SHIFT

__all__ = [
    "OBJECT_TYPE",
    "RangeRecord",
    "pack_ranges",
    "record_size",
    "replay_attributes",
    "restore_ranges",
    "unpack_ranges",
]

#: Object type of a range among the driver's checkpoint objects.
OBJECT_TYPE = 2
_HEAD = struct.Struct("<IIQQ")
_ATTRIBUTE = struct.Struct("<II")
_COMMON = (
    Attribute.PREFERRED_LOC,
    Attribute.PREFETCH_LOC,
    Attribute.SET_FLAGS,
    Attribute.GRANULARITY,
)
_ACCESS = (Attribute.ACCESS, Attribute.ACCESS_IN_PLACE, Attribute.NO_ACCESS)
_PAGES = ADDRESS_LIMIT >> PAGE_SHIFT


class RangeRecord(NamedTuple):
    """One range as the driver saves it."""

    first: int
    """First page number."""
    npages: int
    """4 KiB pages."""
    attributes: tuple[tuple[int, int], ...]
    """Type and value, in the order of the record."""

    def pack(self) -> bytes:
        """The bytes of the record.

        Raises
        ------
        InvalidArgumentError
            If a number does not fit its field.
        """
        try:
            head = _HEAD.pack(OBJECT_TYPE, 0, self.first, self.npages)
            return head + b"".join(_ATTRIBUTE.pack(*pair) for pair in self.attributes)
        except struct.error as error:
            raise InvalidArgumentError(f"range record {self!r:.100}: {error}") from error


def record_size(gpus: int) -> int:
    """Bytes of a record of a process with *gpus* GPUs: 64 for one, 120 for eight."""
    return _HEAD.size + _ATTRIBUTE.size * (len(_COMMON) + gpus)


def pack_ranges(space: Space) -> bytes:
    """Records of every range of a space, in the order of the process's list.

    As in the driver, deferred work is done first.

    Raises
    ------
    NotSupportedError
        If the space is not under the KFD policy.

    Complexity
    ----------
    O(ranges * GPUs).
    """
    _check_policy(space)
    space.step()
    gpus = [gpu.id for gpu in space.machine.gpus]
    rows = {row[0]: row for row in space.process.ranges()}
    packed = []
    for start in space.process.starts():
        first, last, preferred, prefetch, _, granularity, flags, access, in_place = rows[start][:9]
        common = zip(_COMMON, (preferred, prefetch, flags, granularity), strict=True)
        reached = (
            Attribute.ACCESS
            if access >> i & 1
            else Attribute.ACCESS_IN_PLACE
            if in_place >> i & 1
            else Attribute.NO_ACCESS
            for i in range(len(gpus))
        )
        pairs = (*common, *zip(reached, gpus, strict=True))
        packed.append(RangeRecord(first, last - first + 1, pairs).pack())
    return b"".join(packed)


def unpack_ranges(data: bytes, gpus: int) -> list[RangeRecord]:
    """The records in *data*, each checked.

    Parameters
    ----------
    data : bytes
        Records one behind the other.
    gpus : int
        GPUs of the process that was saved.

    Raises
    ------
    InvalidArgumentError
        If it is cut off, or a record holds what the driver does not write; the
        message names the record.

    Complexity
    ----------
    O(bytes).
    """
    if gpus < 1:
        raise InvalidArgumentError(f"records of {gpus} GPUs: expected at least 1")
    size = record_size(gpus)
    if len(data) % size:
        raise InvalidArgumentError(
            f"{len(data)} bytes: expected records of {size} bytes for {gpus} GPUs"
        )
    return [
        _unpack(data[at : at + size], f"record {at // size}") for at in range(0, len(data), size)
    ]


def replay_attributes(record: RangeRecord) -> list[tuple[int, int]]:
    """What the driver sets for a record: ``5 + n`` attributes.

    A prefetch location that is undefined becomes no flags to set, and flags that
    were not saved are cleared, so that they end exactly equal.
    """
    pairs = [
        (int(Attribute.SET_FLAGS), 0)
        if pair == (Attribute.PREFETCH_LOC, LOCATION_UNDEFINED)
        else pair
        for pair in record.attributes
    ]
    flags = dict(record.attributes)[Attribute.SET_FLAGS]
    return [*pairs, (int(Attribute.CLR_FLAGS), ~flags & 0xFFFFFFFF)]


def restore_ranges(space: Space, data: bytes | Sequence[RangeRecord]) -> int:
    """Set the attributes of saved ranges, as the driver does when a process resumes.

    One ``set_attr`` a record, in their order. A defined prefetch location moves
    the pages now. Granularity, flags and access of the new node's defaults are
    overwritten. The memory must be mapped as it was, and the GPUs have the ids
    that the process knew them by.

    Parameters
    ----------
    space : Space
        With as many GPUs as the records have.
    data : bytes or sequence of RangeRecord

    Returns
    -------
    int
        Records restored.

    Raises
    ------
    InvalidArgumentError
        If the records are broken; nothing is restored then.
    SvmError
        The driver's error of the first record that it refuses, as for a GPU
        that is not there or memory that is not mapped. Those before it are
        restored, those behind it are not.
    NotSupportedError
        If the space is not under the KFD policy.
    """
    _check_policy(space)
    gpus = len(space.machine.gpus)
    packed = data if isinstance(data, bytes) else b"".join(record.pack() for record in data)
    records = unpack_ranges(packed, gpus)
    for number, record in enumerate(records):
        try:
            space.set_attr(
                record.first << PAGE_SHIFT, record.npages << PAGE_SHIFT, replay_attributes(record)
            )
        except SvmError as error:
            error.args = (f"record {number}: {error}",)
            raise
    return len(records)


def _check_policy(space: Space) -> None:
    if space.policy.name != "kfd":
        raise NotSupportedError(
            f"policy {space.policy.name}: expected kfd, whose records these are"
        )


def _unpack(data: bytes, what: str) -> RangeRecord:
    kind, pad, first, npages = _HEAD.unpack_from(data)
    if kind != OBJECT_TYPE or pad:
        raise InvalidArgumentError(
            f"{what}: object type {kind}, padding {pad}: expected {OBJECT_TYPE} and 0"
        )
    if not 0 < npages <= _PAGES or first > _PAGES - npages:
        raise InvalidArgumentError(
            f"{what}: first page {first:#x}, {npages} pages: expected pages below {_PAGES:#x}"
        )
    pairs = tuple(_ATTRIBUTE.iter_unpack(data[_HEAD.size :]))
    common, access = pairs[: len(_COMMON)], pairs[len(_COMMON) :]
    if [kind for kind, _ in common] != list(_COMMON):
        raise InvalidArgumentError(
            f"{what}: attributes of types {', '.join(str(kind) for kind, _ in common)}, "
            f"expected {', '.join(f'{kind} ({kind.name})' for kind in _COMMON)}"
        )
    if any(kind not in _ACCESS for kind, _ in access):
        raise InvalidArgumentError(
            f"{what}: expected access (2), access in place (3) or no access (4) of each GPU"
        )
    if len({gpu for _, gpu in access}) != len(access):
        raise InvalidArgumentError(f"{what}: expected each GPU once")
    return RangeRecord(first, npages, pairs)
