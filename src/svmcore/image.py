"""State files: named arrays and the Spec they belong to, in one zip that is whole or refused.

The file is a zip of one ``.npy`` member for each array and, last,
``manifest.json``, stored without compression, so that ``unzip -l`` lists it and
``numpy.load`` opens a member. The manifest holds the format's name and version,
the version of the package that wrote it, the whole Spec with its hash, and for
each member its dtype, shape and digest.

The digest of a member is the CRC-32 that the zip needs anyway: one pass over
the bytes while they are written or read. It finds every flipped bit and every
burst of up to 32 bits. It is no protection against intent, nor would a longer
digest without a key be: what a file says is checked by those who unpack it.
Format 1 had blake2b digests of 256 bits, which took longer than all the rest.

Equal contents give equal bytes: no time, host name or order of a dict shows.
This module knows arrays and files only; what the arrays mean is said by those
who pack them, which is why it stands below the engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from errno import errorcode
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ._version import __version__
from .errors import StateFileError

__all__ = ["FORMAT", "FORMAT_VERSION", "read_image", "read_manifest", "spec_digest", "write_image"]

#: Name of the format in the manifest.
FORMAT = "svmcore state"
#: Version that is written; every version up to it can be read.
FORMAT_VERSION = 2

_MANIFEST = "manifest.json"
_MANIFEST_LIMIT = 4 << 20
_MEMBERS_LIMIT = 1000
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SCALARS = ("|u1", "<u2", "<u4", "<u8", "<i2", "<i8", "<f8")
_KEYS = {"format", "format_version", "svmcore", "spec", "spec_digest", "members"}
_MEMBER_KEYS = {"name", "dtype", "shape"}
#: Key of a member's digest in each version of the format.
_DIGESTS = {1: "blake2b", 2: "crc32"}
#: Bytes that go to the file or come at once: what the digest reads stays in the cache.
_PIECE = 1 << 18
#: Of a member's own header: signature, flags, method, sizes of its name and the extra field.
_LOCAL = struct.Struct("<4s2x2H16x2H")
_LOCAL_MAGIC = b"PK\x03\x04"
#: Directories cannot be opened there; the rename alone is what the system offers.
_SYNC_FOLDERS = os.name == "posix"

Arrays = Mapping[str, npt.NDArray[Any]]


def spec_digest(spec: Mapping[str, Any]) -> str:
    """blake2b of a Spec, 64 hexadecimal digits: equal for equal Specs on every host.

    Raises
    ------
    TypeError
        If something in it is no JSON value.
    """
    return _blake2b(_json(spec))


def write_image(path: str | os.PathLike[str], spec: Mapping[str, Any], arrays: Arrays) -> None:
    """Write a state file; the file at *path* is the old one or the whole new one, never less.

    The bytes go to a new file in the same folder, which is synced and then
    renamed over *path*, and the folder is synced. A kill leaves at most that
    temporary file, ``.NAME.xxxxxxxx.tmp``, behind.

    Parameters
    ----------
    path : path
        A link is followed.
    spec : mapping
        JSON values.
    arrays : mapping of str to array
        Names of ``[a-z0-9_]``; little-endian unsigned, signed or float columns.

    Raises
    ------
    StateFileError
        If a name, a dtype or the Spec does not fit the format, or the file
        cannot be written (a full disk, no permission): the old file is as it was.

    Complexity
    ----------
    O(bytes); nothing is copied but what the system buffers.
    """
    target = Path(os.path.realpath(path))
    members = [_Member.of(str(path), name, arrays[name]) for name in sorted(arrays)]
    # Once without digests, which come with the bytes: a Spec that is no JSON is refused first.
    _manifest_bytes(str(path), spec, members)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            _write(temporary, str(path), spec, members)
            temporary.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise StateFileError(
            str(path), "", f"cannot be written, what was there is untouched: {error}"
        ) from error
    try:
        _sync_folder(target.parent)
    except OSError as error:
        raise StateFileError(
            str(path), "", f"written whole, but its folder cannot be synced: {error}"
        ) from error


def read_image(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Spec and the arrays of a state file, every digest checked.

    Returns
    -------
    spec : dict
    arrays : dict of str to array

    Raises
    ------
    StateFileError
        If the file cannot be read, is foreign, of a newer version, truncated or
        changed; the message names the member and what was expected. The file is
        only read.

    Complexity
    ----------
    O(bytes of the file), memory too: a member is stored as it is, so that no
    small file can ask for much.
    """
    with _open(path) as archive:
        manifest = _manifest_of(archive, str(path))
        arrays = {}
        wanted = {_MANIFEST}
        for entry in manifest["members"]:
            member = _Member.declared(str(path), entry, _DIGESTS[manifest["format_version"]])
            wanted.add(member.file)
            arrays[member.name] = member.read(archive, str(path))
        extra = sorted(set(archive.namelist()) - wanted)
        if extra:
            raise StateFileError(
                str(path), extra[0], "not in the manifest, expected no more members"
            )
    return manifest["spec"], arrays


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a state file, without reading its arrays.

    Raises
    ------
    StateFileError
        As :func:`read_image`, as far as the manifest goes.
    """
    with _open(path) as archive:
        return _manifest_of(archive, str(path))


# ---- members ---------------------------------------------------------------------------


class _Member:
    """One array of the file: its declaration, its header and, once there, its bytes."""

    def __init__(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.header = _header(dtype, shape)
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.data = memoryview(b"")
        self.kind = _DIGESTS[FORMAT_VERSION]
        self.digest = ""

    @property
    def file(self) -> str:
        return f"{self.name}.npy"

    @staticmethod
    def of(path: str, name: str, array: npt.NDArray[Any]) -> _Member:
        """A member to write."""
        if not _NAME.fullmatch(name):
            raise StateFileError(path, f"{name}.npy", f"name {name!r}, expected [a-z][a-z0-9_]*")
        if _dtype(_descr(array.dtype)) != array.dtype or array.ndim not in (1, 2):
            raise StateFileError(
                path,
                f"{name}.npy",
                f"{array.dtype} of {array.ndim} dimensions, expected 1 or 2 and columns of "
                f"{', '.join(_SCALARS)}",
            )
        array = np.ascontiguousarray(array)
        member = _Member(name, array.dtype, array.shape)
        # A view of bytes: structured rows and empty arrays have no buffer of their own.
        member.data = array.reshape(-1).view(np.uint8).data if array.size else member.data
        return member

    @staticmethod
    def declared(path: str, entry: Any, kind: str) -> _Member:
        """A member as the manifest declares it, its digest of that kind."""
        keys = {*_MEMBER_KEYS, kind}
        if not isinstance(entry, dict) or set(entry) != keys:
            raise StateFileError(
                path, _MANIFEST, f"a member of keys {', '.join(sorted(keys))} is expected"
            )
        name, shape, dtype = entry["name"], entry["shape"], _dtype(entry["dtype"])
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise StateFileError(path, _MANIFEST, f"member {name!r:.80}: expected [a-z][a-z0-9_]*")
        if dtype is None:
            raise StateFileError(
                path,
                _MANIFEST,
                f"member {name}: dtype {entry['dtype']!r:.80}, expected columns of "
                f"{', '.join(_SCALARS)}",
            )
        if (
            not isinstance(shape, list)
            or len(shape) not in (1, 2)
            or any(type(size) is not int or not 0 <= size < 1 << 48 for size in shape)
        ):
            raise StateFileError(
                path, _MANIFEST, f"member {name}: shape {shape!r:.80}, expected 1 or 2 sizes"
            )
        member = _Member(name, dtype, tuple(shape))
        member.kind = kind
        member.digest = str(entry[kind])
        return member

    def read(self, archive: zipfile.ZipFile, path: str) -> npt.NDArray[Any]:
        size = len(self.header) + self.nbytes
        data = _read(archive, path, self.file, size)
        if len(data) != size or data[: len(self.header)].tobytes() != self.header:
            raise StateFileError(
                path,
                self.file,
                f"{len(data)} bytes, expected {size} with the header of "
                f"{self.dtype} of shape {self.shape}",
            )
        # Reading has held the bytes to the CRC of the zip's directory.
        crc = archive.getinfo(self.file).CRC
        found = f"{crc:08x}" if self.kind == "crc32" else _blake2b(data.data)
        if found != self.digest:
            raise StateFileError(
                path, self.file, f"digest {found}, expected {self.digest:.64}: the file was changed"
            )
        return data[len(self.header) :].view(self.dtype).reshape(self.shape)


def _descr(dtype: np.dtype[Any]) -> Any:
    return dtype.str if dtype.names is None else [list(column) for column in dtype.descr]


def _dtype(descr: Any) -> np.dtype[Any] | None:
    """The dtype of a manifest's entry, ``None`` where the format has none such."""
    if isinstance(descr, str):
        return np.dtype(descr) if descr in _SCALARS else None
    if not isinstance(descr, list) or not 1 <= len(descr) <= 256:
        return None
    columns = []
    for column in descr:
        if not isinstance(column, list) or len(column) != 2:
            return None
        name, kind = column
        if not isinstance(name, str) or not _NAME.fullmatch(name) or kind not in _SCALARS:
            return None
        columns.append((name, kind))
    if len({name for name, _ in columns}) != len(columns):
        return None
    return np.dtype(columns)


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Header of the npy format 1.0; spelt here, so that no release of NumPy changes it."""
    descr = dtype.str if dtype.names is None else dtype.descr
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    if len(text) > 0xFFFF:
        raise ValueError(f"npy header of {len(text)} bytes")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _blake2b(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


# ---- the manifest ------------------------------------------------------------------------


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":")).encode("utf-8")


def _manifest_bytes(path: str, spec: Mapping[str, Any], members: list[_Member]) -> bytes:
    try:
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "svmcore": __version__,
            "spec": spec,
            "spec_digest": spec_digest(spec),
            "members": [
                {
                    "name": member.name,
                    "dtype": _descr(member.dtype),
                    "shape": list(member.shape),
                    member.kind: member.digest,
                }
                for member in members
            ],
        }
        return _json(manifest) + b"\n"
    except (TypeError, ValueError) as error:
        raise StateFileError(path, _MANIFEST, f"the Spec is no JSON value: {error}") from error


def _manifest_of(archive: zipfile.ZipFile, path: str) -> dict[str, Any]:
    text = _read(archive, path, _MANIFEST, _MANIFEST_LIMIT)
    try:
        manifest = json.loads(
            text.tobytes().decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise StateFileError(path, _MANIFEST, f"expected JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StateFileError(path, _MANIFEST, f"expected format {FORMAT!r}: no state file")
    version = manifest.get("format_version")
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise StateFileError(
            path,
            _MANIFEST,
            f"format version {version!r:.40} of svmcore {manifest.get('svmcore')!r:.40}, "
            f"expected 1 to {FORMAT_VERSION}",
        )
    if set(manifest) != _KEYS:
        raise StateFileError(
            path,
            _MANIFEST,
            f"keys {', '.join(sorted(manifest)):.200}, expected {', '.join(sorted(_KEYS))}",
        )
    spec, members = manifest["spec"], manifest["members"]
    if not isinstance(spec, dict) or spec_digest(spec) != manifest["spec_digest"]:
        raise StateFileError(path, _MANIFEST, "the Spec differs from its hash, expected no change")
    if not isinstance(members, list) or len(members) > _MEMBERS_LIMIT:
        raise StateFileError(path, _MANIFEST, f"expected a list of up to {_MEMBERS_LIMIT} members")
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in members]
    if len({str(name) for name in names}) != len(names):
        raise StateFileError(path, _MANIFEST, "a member is declared twice, expected each once")
    return manifest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return table


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


# ---- the zip -----------------------------------------------------------------------------


@contextlib.contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    """The archive, once its directory holds no surprise; all its errors as one kind."""
    try:
        with Path(path).open("rb") as file:
            if file.read(4) != _LOCAL_MAGIC:
                raise StateFileError(str(path), "", "expected a zip file: no state file")
            size = os.fstat(file.fileno()).st_size
            with zipfile.ZipFile(file) as archive:
                _check_directory(archive, str(path), size)
                yield archive
    except (StateFileError, MemoryError):
        raise
    except OSError as error:
        failure = StateFileError(str(path), "", f"cannot be read: {error}")
        if error.errno is not None and error.errno in errorcode:
            failure.code = errorcode[error.errno]
        raise failure from error
    except Exception as error:
        # zipfile answers damage with whatever it trips over: BadZipFile, struct.error, EOFError.
        raise StateFileError(
            str(path), "", f"expected a whole zip file: {type(error).__name__}: {error}"
        ) from error


def _check_directory(archive: zipfile.ZipFile, path: str, size: int) -> None:
    """Stored members of plain names, each once, and no more bytes than the file has."""
    members = archive.infolist()
    if len(members) > _MEMBERS_LIMIT + 1:
        raise StateFileError(
            path, "", f"{len(members)} members, expected up to {_MEMBERS_LIMIT + 1}"
        )
    seen: set[str] = set()
    total = 0
    for info in members:
        name = info.filename
        stem = name.removesuffix(".npy")
        if name != _MANIFEST and (stem == name or not _NAME.fullmatch(stem)):
            raise StateFileError(
                path, f"{name!r:.80}", f"expected {_MANIFEST} and [a-z][a-z0-9_]*.npy only"
            )
        if name in seen:
            raise StateFileError(path, name, "there twice, expected each member once")
        seen.add(name)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise StateFileError(path, name, "compressed or encrypted, expected stored members")
        total += info.file_size
        if info.file_size != info.compress_size or total > size:
            raise StateFileError(
                path, name, f"declared sizes pass the file's {size} bytes, expected stored members"
            )


def _read(archive: zipfile.ZipFile, path: str, name: str, limit: int) -> npt.NDArray[np.uint8]:
    """A member's bytes, held to the CRC of the directory.

    They are read in pieces that stay in the cache, into an array: NumPy asks the
    system for large pages, which halves the time.
    """
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise StateFileError(path, name, "missing, expected in every state file") from None
    if info.file_size > limit:
        raise StateFileError(path, name, f"{info.file_size} bytes, expected up to {limit}")
    data = np.empty(info.file_size, np.uint8)
    file = archive.fp
    assert file is not None
    # The member's own header lies before it; what it says of sizes is in the directory too.
    file.seek(info.header_offset)
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size:
        raise StateFileError(path, name, "expected a header, the file ends")
    magic, flags, method, name_size, extra_size = _LOCAL.unpack(header)
    stored = file.read(name_size)
    if (
        magic != _LOCAL_MAGIC
        or flags & 1
        or method != zipfile.ZIP_STORED
        or stored != name.encode()
    ):
        raise StateFileError(path, name, "expected its own header where the directory says")
    file.seek(extra_size, os.SEEK_CUR)
    view, crc = data.data, 0
    for place in range(0, len(view), _PIECE):
        piece = view[place : place + _PIECE]
        if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
            raise StateFileError(path, name, f"expected {len(view)} bytes, the file ends")
        crc = zlib.crc32(piece, crc)
    if crc != info.CRC:
        raise StateFileError(
            path, name, f"CRC-32 {crc:08x}, expected undamaged bytes of CRC-32 {info.CRC:08x}"
        )
    return data


def _write(path: Path, name: str, spec: Mapping[str, Any], members: list[_Member]) -> None:
    """A new file with the whole archive, on the disk when this returns; *name* for errors."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o666)
    with os.fdopen(descriptor, "w+b") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for member in members:
                member.digest = f"{_add(archive, member.file, member.header, member.data):08x}"
            _add(archive, _MANIFEST, _manifest_bytes(name, spec, members))
        file.flush()
        os.fsync(file.fileno())


def _add(archive: zipfile.ZipFile, name: str, *parts: bytes | memoryview) -> int:
    """Store a member; its CRC-32."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.create_system = 3  # the same bytes on every system
    info.external_attr = 0o644 << 16
    info.file_size = sum(len(part) for part in parts)
    with archive.open(info, "w") as stream:
        for part in parts:
            for place in range(0, len(part), _PIECE):
                stream.write(part[place : place + _PIECE])
    return info.CRC


def _sync_folder(folder: Path) -> None:
    if not _SYNC_FOLDERS:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
