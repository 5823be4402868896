"""Accel-Sim/NVBit traces: ``kernelslist.g`` with the kernel traces beside it, or one kernel's.

The list has ``MemcpyHtoD,0xADDR,BYTES`` and names of kernel traces in the order of the
run. A kernel trace has ``-key = value`` lines, then for each thread block and warp its
instructions: ``PC mask ndst dst.. opcode nsrc src.. width mode addresses imm``.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..errors import TraceError
from ..records import RECORD, UNKNOWN, Access, Kind
from ..units import ADDRESS_LIMIT, PAGE_MASK, PAGE_SIZE
from ._warps import ON_CHIP, ROWS, WarpScanner
from .base import (
    CHUNK,
    Mapping,
    Records,
    Summary,
    Trace,
    TraceKind,
    head_lines,
    register,
    share,
    shown,
)
from .mappings import named_and_touched
from .opening import Block, Source, file_size, line_blocks

__all__ = ["AccelSimTrace"]

_COPY = re.compile(rb"MemcpyHtoD,(0[xX][0-9a-fA-F]{1,16}),([0-9]{1,20})")
_OTHER_COPY = re.compile(rb"Memcpy(?!HtoD)[A-Za-z]+,.*")
_KERNEL = re.compile(rb"[^/\\\0]{1,250}\.traceg(?:\.(?:gz|xz|zst))?")
_HEADER = re.compile(rb"-([^=]{1,60}?) = ?(.*)")
_GRID = re.compile(rb"\((\d{1,10}),(\d{1,10}),(\d{1,10})\)")
_BLOCK = re.compile(rb"thread block = \d{1,10},\d{1,10},\d{1,10}")
_WARP = re.compile(rb"warp = \d{1,10}")
_INSTRUCTIONS = re.compile(rb"insts = (\d{1,12})")
_FIRST = b"-kernel name ="
_LANES = 32
#: Bytes that a lane touches at most; the widest load is 16.
_WIDEST = 4096
#: Bytes of the windows through which generic addresses reach shared and local memory.
_WINDOW = 1 << 24
#: Opcodes of memory that is not paged.
_ON_CHIP = ("LDS", "STS", "ATOMS", "LDSM", "STSM", "LDL", "STL", "LDC", "LDCU")
#: Kernel names that are kept: they serve labels in reports.
_NAMES = 1 << 20

#: Opcodes that are kept; a GPU has some hundreds.
_OPCODES = 4096


class _NotALineError(ValueError):
    """Why a line is none of a kernel trace."""


class _File(NamedTuple):
    """What a pass says of the bytes of a kernel trace."""

    crc32: int
    digest: str | None


@register
class AccelSimTrace(Trace):
    """What the warps of a run touched.

    Records are of kind ACCESS, one for each 4 KiB page that the active lanes of an
    instruction touch, in the order of the lanes; ``value`` is the number of the
    kernel in the list, ``names`` gives its name; there is no time. Loads are READ,
    stores WRITE, atomics and reductions ATOMIC, other opcodes UNKNOWN. Shared,
    local and constant memory is left out (``on_chip``), also where generic loads
    and stores reach it through the windows that the header names.

    MemcpyHtoD makes a MAP record, rounded outward to pages. Pages touched outside
    of those are mappings too. The digest is over the list and every kernel trace.

    ``summary.counts``: ``kernels``, ``instructions``, ``on_chip``,
    ``thread_blocks``.

    Source
    ------
    Format (h) of the trace notes; case 32 of the case list. Address mode 1: lane
    *k* of the active ones is at base + *k* times stride. Mode 2: each further one
    is its delta from the one before.
    """

    format = "accel-sim"
    description = "Accel-Sim kernelslist.g with its kernel traces, or one kernel trace"
    beyond_records = ("thread blocks and warps", "instructions", "bytes inside a page")

    _files: dict[str, _File] | None = None
    _names: dict[int, str] | None = None

    @property
    def kind(self) -> TraceKind:
        """Always ``"access"``."""
        return "access"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the first header line of a kernel trace, or by the share of list lines."""
        if head.removeprefix(b"\xef\xbb\xbf").startswith(_FIRST):
            return 1.0
        lines = head_lines(head)
        return share(lines, (_COPY, 0.95), (_KERNEL, 0.95), (_OTHER_COPY, 0.9))

    @property
    def names(self) -> MappingProxyType[int, str]:
        """Kernel name by record ``value``; runs a pass where none was made."""
        if self._names is None:
            for _ in self.chunks():
                pass
        return MappingProxyType(self._names or {})

    @property
    def digest(self) -> str:
        """blake2b-128 over the file, or over the list's digest and those of its kernel traces."""
        if self._files is None or not all(file.digest for file in self._files.values()):
            self.identify()
            for _ in self.chunks():
                pass
        own = super().digest
        if not self._files:
            return own
        total = hashlib.blake2b(own.encode(), digest_size=16)
        for name, file in self._files.items():
            total.update(f"\n{name} {file.digest}".encode("utf-8", "surrogateescape"))
        return total.hexdigest()

    def _find_mappings(self) -> list[Mapping]:
        return named_and_touched(self.chunks(), "copied")

    def _arrays(self, source: Source, summary: Summary) -> Iterator[Records]:
        names: dict[int, str] = {}
        files: dict[str, _File] = {}
        blocks = line_blocks(source)
        for block in blocks:
            if block.first == 1 and block.data.startswith(_FIRST):
                yield from self._one(itertools.chain([block], blocks), summary, names)
                break
            summary.lines += block.lines
            for number, line in block.numbered():
                yield from self._list_line(line, number, block.cut, summary, names, files)
        for name, file in (self._files or {}).items():
            if name not in files or files[name].crc32 != file.crc32:
                raise TraceError(
                    self.path, "", "a kernel trace changed: expected that of the last pass"
                )
            # Digests that an earlier pass made stay: it met the same bytes.
            files[name] = file if file.digest else files[name]
        self._files, self._names = files, names

    def _one(
        self, blocks: Iterator[Block], summary: Summary, names: dict[int, str]
    ) -> Iterator[Records]:
        """The file is one kernel trace."""
        kernel = _Kernel(self.path, 0, summary)
        for block in blocks:
            yield from kernel.feed(block)
        kernel.end()
        names[0] = kernel.name

    def _list_line(
        self,
        line: bytes,
        number: int,
        cut: bool,
        summary: Summary,
        names: dict[int, str],
        files: dict[str, _File],
    ) -> Iterator[Records]:
        text = line.strip()
        if cut and text:
            summary.notes.append(f"line {number}, the last, has no newline: it may be cut off")
        if match := _COPY.fullmatch(text):
            summary.read += not cut
            summary.repaired += cut
            yield self._copied(int(match[1], 16), int(match[2]), number)
        elif not text or text.startswith(b"#"):
            summary.comments += 1
        elif _OTHER_COPY.fullmatch(text) and not cut:
            summary.unknown += 1
        elif _KERNEL.fullmatch(text):
            summary.metadata += 1
            index = summary.counts.get("kernels", 0)
            name = text.decode("utf-8", "surrogateescape")
            path = str(Path(self.path).parent / name)
            try:
                nbytes = file_size(path)
            except TraceError as error:
                raise TraceError(self.path, f"line {number}", f"{path}: {error.reason}") from None
            key = f"{number} {name}"
            before = (self._files or {}).get(key)
            identify = self._identify and (before is None or before.digest is None)
            with Source(path, nbytes, identify=identify) as source:
                kernel = _Kernel(path, index, summary)
                for block in line_blocks(source):
                    yield from kernel.feed(block)
                kernel.end()
                files[key] = _File(source.crc32, source.hexdigest())
            if len(names) < _NAMES:
                names[index] = kernel.name
        elif cut and summary.read + summary.metadata:
            summary.refused += 1
            summary.notes.append(f"line {number} is cut off (no newline) and was left out")
        else:
            raise TraceError(
                self.path,
                f"line {number}",
                f"{shown(line)}: expected MemcpyHtoD,0xADDR,BYTES or the name of a .traceg file "
                "beside the list",
            )

    def _copied(self, addr: int, size: int, number: int) -> Records:
        end = addr + size + PAGE_MASK & ~PAGE_MASK
        if not size or end > ADDRESS_LIMIT:
            raise TraceError(
                self.path,
                f"line {number}",
                f"{addr:#x}, {size} bytes: expected at least 1 and an end of at most 2**64",
            )
        first = addr & ~PAGE_MASK
        row = (0, first, end - first, 0, 0, Kind.MAP, UNKNOWN, Access.UNKNOWN, UNKNOWN)
        return np.array([row], RECORD)


class _Kernel:
    """One pass over one kernel trace.

    Invariant: ``left`` instructions of the present warp are still to come; ``out`` holds
    ``filled`` records that were not given out.
    """

    def __init__(self, path: str, index: int, summary: Summary) -> None:
        self.path = path
        self.index = index
        self.summary = summary
        self.name = f"kernel{index}"
        self.left = 0
        self.blocks = 0
        self.grid = 0
        self.windows: list[int] = []
        self.out = np.empty(CHUNK + ROWS, RECORD)
        self.filled = 0
        self.scanner = WarpScanner(index)
        self.opcodes: dict[bytes, int] = {}
        self.cut = False
        summary.add("kernels")
        summary.add("instructions", 0)

    def feed(self, block: Block) -> Iterator[Records]:
        """Records of a block."""
        data, at, number, whole = block.data, 0, block.first, self.summary.read
        self.summary.lines += block.lines
        while at <= len(data):
            rows, read, at = self._scan(data, at)
            self.filled += rows
            number += read
            if len(self.out) - self.filled < ROWS:
                yield self._take()
            elif at <= len(data):
                end = data.find(b"\n", at)
                end = len(data) if end < 0 else end
                self._line(data[at:end], number, block.cut)
                number += 1
                at = end + 1
        if block.cut and not self.cut:
            self.summary.repaired += self.summary.read - whole
            self.summary.read = whole
            self.summary.notes.append(
                f"{Path(self.path).name}: the last line has no newline: it may be cut off"
            )
        if self.filled:
            yield self._take()

    def _scan(self, data: bytes, at: int) -> tuple[int, int, int]:
        """Instructions by compiled code: records, lines and the place of what is none."""
        found = self.scanner.scan(data, at, self.out, self.filled, self.left)
        self._instructions(found[1])
        return found

    def _take(self) -> Records:
        """The records so far."""
        records = self.out[: self.filled].copy()
        self.filled = 0
        return records

    def _instructions(self, number: int) -> None:
        self.left -= number
        self.summary.read += number
        self.summary.add("instructions", number)

    def _line(self, line: bytes, number: int, cut: bool) -> None:
        """A line that compiled code left; *cut* where it lacks its newline."""
        try:
            if self.left and line.strip():
                self._instruction(line.split())
                self._instructions(1)
            else:
                self._other(line.strip())
        except (_NotALineError, ValueError, IndexError) as error:
            if cut and number > 1:
                self.summary.refused += 1
                self.cut = True
                return
            reason = str(error) if isinstance(error, _NotALineError) else "not the form"
            raise TraceError(
                self.path,
                f"line {number}",
                f"{shown(line)}: {reason}: expected an instruction (PC mask ndst dst.. opcode "
                "nsrc src.. width mode addresses) or a line of the trace's frame",
            ) from None

    def end(self) -> None:
        """Says what is missing."""
        self.summary.add("thread_blocks", self.blocks)
        if self.scanner.on_chip:
            self.summary.add("on_chip", self.scanner.on_chip)
        if self.left or self.cut:
            self.summary.notes.append(
                f"{Path(self.path).name} is cut off: {self.left:,} instructions of its last warp "
                "are missing"
            )
        if self.blocks < self.grid:
            self.summary.notes.append(
                f"{Path(self.path).name} has {self.blocks:,} of the {self.grid:,} thread blocks "
                "of its grid"
            )

    def _other(self, text: bytes) -> None:
        """A line that is no instruction."""
        if not text or text.startswith(b"#"):
            self.summary.comments += 1
            return
        if match := _HEADER.fullmatch(text):
            self._header(match[1].strip(), match[2].strip())
        elif _BLOCK.fullmatch(text):
            self.blocks += 1
        elif match := _INSTRUCTIONS.fullmatch(text):
            self.left = int(match[1])
        elif not _WARP.fullmatch(text):
            raise _NotALineError("no instruction is due here")
        self.summary.metadata += 1

    def _header(self, key: bytes, value: bytes) -> None:
        if key == b"kernel name":
            self.name = value.decode("utf-8", "replace")
        elif key == b"grid dim":
            match = _GRID.fullmatch(value)
            self.grid = int(match[1]) * int(match[2]) * int(match[3]) if match else 0
        elif key.replace(b"_", b" ") in (b"shmem base addr", b"local mem base addr"):
            window = int(value, 16)
            if not 0 <= window < ADDRESS_LIMIT:
                raise _NotALineError("a window outside of 0 to 2**64")
            self.windows.append(window)
            self.scanner.add_window(window)

    def _instruction(self, parts: list[bytes]) -> None:
        int(parts[0], 16)
        mask = int(parts[1], 16)
        # A count of registers is at most as long as the line: checked by what follows it.
        at = 3 + _count(parts[2])
        opcode = parts[at]
        if not opcode[:1].isalpha():
            raise _NotALineError(f"opcode {shown(opcode)}")
        at += 2 + _count(parts[at + 1])
        width = _count(parts[at])
        if not width:
            return
        access = self._access(opcode)
        if access == ON_CHIP:
            self.summary.add("on_chip")
            return
        lanes = mask.bit_count()
        if mask < 0 or mask >> _LANES or width > _WIDEST:
            raise _NotALineError(
                f"mask {mask:#x}, width {width}: expected 32 lanes, {_WIDEST} bytes"
            )
        if lanes:
            addresses = _addresses(int(parts[at + 1]), parts, at + 2, lanes)
            self._touch(addresses, width, access)

    def _access(self, opcode: bytes) -> int:
        """How an opcode touches memory, ``ON_CHIP`` where that is not paged."""
        code = self.opcodes.get(opcode)
        if code is None:
            word = opcode.decode("ascii", "replace").partition(".")[0]
            code = (
                ON_CHIP
                if word in _ON_CHIP
                else Access.READ
                if word.startswith("LD")
                else Access.WRITE
                if word.startswith("ST")
                else Access.ATOMIC
                if word.startswith(("ATOM", "RED"))
                else Access.UNKNOWN
            )
            if len(self.opcodes) < _OPCODES:
                self.opcodes[opcode] = code
            self.scanner.learn(opcode, code)
        return code

    def _touch(self, addresses: range | list[int], width: int, access: int) -> None:
        """Rows of the pages that the lanes touch."""
        low, high = min(addresses), max(addresses) + width
        if low < 0 or high > ADDRESS_LIMIT:
            raise _NotALineError("an address outside of 0 to 2**64")
        if any(window <= low < window + _WINDOW for window in self.windows):
            self.summary.add("on_chip")
            return
        pages: Iterable[int]
        if isinstance(addresses, range) and 0 < addresses.step <= PAGE_SIZE:
            pages = range(low & ~PAGE_MASK, high, PAGE_SIZE)
        else:
            pages = dict.fromkeys(
                page
                for address in addresses
                for page in range(address & ~PAGE_MASK, address + width, PAGE_SIZE)
            )
        rows = [
            (0, page, PAGE_SIZE, 0, self.index, Kind.ACCESS, UNKNOWN, access, UNKNOWN)
            for page in pages
        ]
        self.out[self.filled : self.filled + len(rows)] = rows
        self.filled += len(rows)


def _count(text: bytes) -> int:
    """A number of 0 or more."""
    if not text.isdigit():
        raise _NotALineError(f"{shown(text)}: expected a count")
    return int(text)


def _addresses(mode: int, parts: list[bytes], at: int, lanes: int) -> range | list[int]:
    """Addresses of the active lanes."""
    if mode == 0:
        listed = parts[at : at + lanes]
        if len(listed) < lanes:
            raise _NotALineError(f"{len(listed)} addresses: expected {lanes}")
        return [int(text, 16) for text in listed]
    base = int(parts[at], 16)
    if mode == 1:
        stride = int(parts[at + 1])
        return range(base, base + stride * lanes, stride) if stride else [base]
    if mode != 2:
        raise _NotALineError(f"address mode {mode}: expected 0, 1 or 2")
    deltas = parts[at + 1 : at + lanes]
    if len(deltas) < lanes - 1:
        raise _NotALineError(f"{len(deltas)} deltas: expected {lanes - 1}")
    found = [base]
    for delta in deltas:
        found.append(found[-1] + int(delta))
    return found
