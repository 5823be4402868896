"""Files as the readers see them: sized, hashed while read, decompressed, in blocks of lines.

One :class:`Source` is one pass over one file. It owns every operating-system
call of the readers, so that a file that vanishes, shrinks or cannot be
decompressed is a :class:`~svmcore.errors.TraceError` everywhere. Files are read,
never mapped into memory: a mapped file that shrinks ends the process with a
signal, a read one ends with an error that names the place.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib
import io
import lzma
import stat
import sys
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from errno import errorcode
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

from ..errors import TraceError

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = [
    "BLOCK_BYTES",
    "BOMB_BYTES",
    "BOMB_RATIO",
    "LINE_LIMIT",
    "Block",
    "RandomAccess",
    "Source",
    "file_size",
    "line_blocks",
    "os_failure",
]

#: Bytes of decompressed text that a reader holds at a time. Larger values cost
#: memory, smaller ones cost time a line; results do not depend on it.
BLOCK_BYTES = 1 << 20
#: Longest line that is read, bytes. The longest line of any known format is
#: about 300 bytes; a longer one than this means that the file is not text.
#: Must not be below ``BLOCK_BYTES``.
LINE_LIMIT = 1 << 20
#: Bytes asked of the operating system at a time.
_RAW_BYTES = 1 << 18

#: Size from which on a file is hashed in a thread, and copies of what was read that may wait.
_THREAD_BYTES, _WAITING = 1 << 23, 4

#: Stored bytes that are decompressed at a time: a byte can become 32 KiB.
_ZSTD_BYTES = 1 << 10
#: Content up to which no compressed file is suspicious, and how many times the size of what
#: is stored it may reach beyond that. Logs with addresses and times reach 100 times, with xz;
#: a file of zeros 1,000 times with gz and more with the others.
BOMB_BYTES, BOMB_RATIO = 1 << 28, 500

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_ZSTD = b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"


def os_failure(path: str, where: str, error: OSError, expected: str) -> TraceError:
    """The trace error that stands for an operating-system error.

    Parameters
    ----------
    path : str
        The file.
    where : str
        Place in it, or empty.
    error : OSError
        What the operating system answered.
    expected : str
        What was expected instead.

    Returns
    -------
    TraceError
        With ``code`` set to the errno's name (``"ENOENT"`` for a missing file).
    """
    failure = TraceError(path, where, f"{error.strerror or error}: expected {expected}")
    if error.errno is not None and error.errno in errorcode:
        failure.code = errorcode[error.errno]
    return failure


def file_size(path: str) -> int:
    """Size of a regular file in bytes.

    Raises
    ------
    TraceError
        If *path* is missing, is not a regular file or may not be looked at.
    """
    try:
        status = Path(path).stat()
    except OSError as error:
        raise os_failure(path, "", error, "a readable trace file") from error
    except ValueError as error:  # an embedded NUL in the name
        raise TraceError(repr(path), "", f"{error}: expected a file name") from error
    if stat.S_ISDIR(status.st_mode):
        failure = TraceError(path, "", "is a directory: expected a trace file")
        failure.code = "EISDIR"
        raise failure
    if not stat.S_ISREG(status.st_mode):
        raise TraceError(path, "", "is not a regular file: expected a file that can be read twice")
    return status.st_size


class _Digest:
    """blake2b-128 of bytes as they pass; of a large file in a thread of its own.

    Hashing costs more than a fast reader does: beside it, it costs no time where a
    second core is free. Invariant: at most ``_WAITING`` copies wait for the thread.
    """

    def __init__(self, size: int) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._waiting: deque[Future[None]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        if size >= _THREAD_BYTES:
            from concurrent.futures import ThreadPoolExecutor

            self._thread = ThreadPoolExecutor(1, "svmcore-digest")

    def update(self, view: memoryview) -> None:
        """Take bytes; the caller may change them afterwards."""
        if self._thread is None:
            self._hash.update(view)
            return
        if len(self._waiting) == _WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._hash.update, bytes(view)))

    def hexdigest(self) -> str:
        """Of all bytes taken so far."""
        while self._waiting:
            self._waiting.popleft().result()
        return self._hash.hexdigest()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)


class _Raw(io.RawIOBase):
    """The first *size* bytes of a file, counted, checked and perhaps hashed as they pass."""

    def __init__(self, path: str, size: int, *, identify: bool) -> None:
        self.path = path
        self.size = size
        self.position = 0
        self.crc32 = 0
        self.digest = _Digest(size) if identify else None
        self.lock = threading.Lock()
        self.file = io.FileIO(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # In parts that the copies for the digest find memory for without the system.
        view = memoryview(buffer)[: min(self.size - self.position, _RAW_BYTES)]
        if not view:
            return 0
        with self.lock:
            got = self.file.readinto(view)
        if not got:
            raise TraceError(
                self.path,
                f"byte {self.position}",
                f"the file shrank while it was read: expected {self.size} bytes",
            )
        self.crc32 = zlib.crc32(view[:got], self.crc32)
        if self.digest is not None:
            self.digest.update(view[:got])
        self.position += got
        return got

    def at(self, position: int, size: int) -> bytes:
        """*size* bytes at *position*, which do not count as passed."""
        with self.lock:
            self.file.seek(position)
            try:
                parts: list[bytes] = []
                while size:
                    part = self.file.read(size)
                    if not part:
                        raise TraceError(
                            self.path,
                            f"byte {position}",
                            f"the file shrank while it was read: expected {self.size} bytes",
                        )
                    parts.append(part)
                    position += len(part)
                    size -= len(part)
            finally:
                self.file.seek(self.position)
        return b"".join(parts)

    def close(self) -> None:
        if self.digest is not None:
            self.digest.close()
        self.file.close()
        super().close()


class _Zstd(io.RawIOBase):
    """Content of zstd frames by the package ``zstandard``.

    Its own reader takes a frame that is cut off for a whole one; here it is an EOFError.
    """

    def __init__(self, file: BinaryIO, decompressor: Any) -> None:
        self.file = file
        self.decompressor = decompressor
        self.frame: Any = None
        self.content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.content:
            data = self.file.read(_ZSTD_BYTES)
            if not data:
                if self.frame is not None:
                    raise EOFError("the last frame is cut off")
                return 0
            parts: list[bytes] = []
            while data:
                if self.frame is None:
                    self.frame = self.decompressor.decompressobj()
                parts.append(self.frame.decompress(data))
                data = b""
                if self.frame.eof:
                    data, self.frame = self.frame.unused_data, None
            self.content = memoryview(b"".join(parts))
        count = min(len(buffer), len(self.content))
        buffer[:count] = self.content[:count]
        self.content = self.content[count:]
        return count


class RandomAccess(io.RawIOBase):
    """The content of a trace file as a file that can be sought in, of a fixed size.

    Made by :meth:`Source.random`. A failure is kept in ``failure``, for libraries
    that put their own words in its place.
    """

    def __init__(self, path: str, size: int, at: Callable[[int, int], bytes]) -> None:
        self.path = path
        self.size = size
        self.failure: TraceError | None = None
        self._at = at
        self._position = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Position in the content."""
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position and give it; behind the end there is nothing to read."""
        base = (0, self._position, self.size)[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """The next *size* bytes, fewer only at the end.

        Raises
        ------
        TraceError
            If the file shrank or cannot be read.
        """
        left = max(0, self.size - self._position)
        size = left if size < 0 else min(size, left)
        try:
            data = self._at(self._position, size)
        except TraceError as error:
            self.failure = error
            raise
        except OSError as error:
            self.failure = os_failure(self.path, f"byte {self._position}", error, "readable bytes")
            raise self.failure from error
        self._position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        """As :meth:`read`, into *buffer*."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Source:
    """One pass over a trace file.

    Transparent for gzip and xz (standard library) and for zstandard where the
    optional package is installed. Bytes appended after the size was taken are
    not read, so that two passes over a growing log see the same file.

    Invariant: at the end of a pass every raw byte has gone through ``crc32``, which tells
    whether two passes saw the same file, and through the digest where one is made.

    Parameters
    ----------
    path : str
        The file.
    size : int
        Its size in bytes when the trace was opened.
    progress : callable, optional
        Called with the raw bytes read so far after each read.
    raw : bool, default False
        Give the bytes as stored, without decompression.
    identify : bool, default False
        Make the digest, which costs four times as much as ``crc32``.

    Raises
    ------
    TraceError
        If the file cannot be opened or is shorter than *size*.

    Complexity
    ----------
    O(bytes) time, O(1) memory. Not thread-safe; each pass has its own.
    """

    def __init__(
        self,
        path: str,
        size: int,
        progress: Callable[[int], None] | None = None,
        *,
        raw: bool = False,
        identify: bool = False,
    ) -> None:
        self.path = path
        self._progress = progress
        self._content = 0
        try:
            self._raw = _Raw(path, size, identify=identify)
        except OSError as error:
            raise os_failure(path, "", error, "a readable trace file") from error
        self._buffer = io.BufferedReader(self._raw, _RAW_BYTES)
        self._damage: tuple[type[Exception], ...] = (
            EOFError,
            zlib.error,
            lzma.LZMAError,
            gzip.BadGzipFile,
        )
        try:
            self._stream: Any = self._buffer if raw else self._decompressed()
        except BaseException:
            self.close()
            raise

    def _decompressed(self) -> Any:
        try:
            magic = self._buffer.peek(len(_XZ))
        except OSError as error:
            raise os_failure(self.path, "byte 0", error, "readable bytes") from error
        buffer: BinaryIO = self._buffer
        if magic.startswith(_GZIP):
            return gzip.GzipFile(fileobj=buffer, mode="rb")
        if magic.startswith(_XZ):
            return lzma.LZMAFile(buffer)
        if magic.startswith(_ZSTD):
            return self._zstd(buffer)
        return buffer

    def _zstd(self, buffer: BinaryIO) -> Any:
        """A reader of zstd: of Python from 3.14 on, before that of the extra ``zst``."""
        if sys.version_info >= (3, 14):
            own: Any = importlib.import_module("compression.zstd")
            self._damage += (own.ZstdError,)
            return own.ZstdFile(buffer)
        try:
            zstandard: Any = importlib.import_module("zstandard")
        except ImportError as error:
            raise TraceError(
                self.path,
                "",
                "is compressed with zstandard: expected the package 'zstandard' to be "
                "installed (svmcore[zst]), or a gz, xz or plain file",
            ) from error
        self._damage += (zstandard.ZstdError,)
        return io.BufferedReader(_Zstd(buffer, zstandard.ZstdDecompressor()), _RAW_BYTES)

    @property
    def position(self) -> int:
        """Raw bytes read so far."""
        return self._raw.position

    def read(self, size: int) -> bytes:
        """The next *size* bytes of content, fewer only at the end.

        Raises
        ------
        TraceError
            If the file shrank, cannot be read or cannot be decompressed.
        """
        with self._guarded():
            data: bytes = self._stream.read(size)
            if len(data) < size:
                self._finish()
        self._count(len(data))
        return data

    def readinto(self, buffer: Any) -> int:
        """Fill *buffer*, contiguous bytes, from the content; how many there were, fewer at the end.

        Raises
        ------
        TraceError
            As :meth:`read`.
        """
        view = memoryview(buffer)
        got = 0
        with self._guarded():
            while got < len(view):
                more = self._stream.readinto(view[got:])
                if not more:
                    self._finish()
                    break
                got += more
        self._count(got)
        return got

    def _count(self, size: int) -> None:
        """Count content; refuse what grows beyond any trace while it is decompressed.

        Raises
        ------
        TraceError
            If more than ``BOMB_BYTES`` came out of less than one ``BOMB_RATIO``-th of them.
        """
        self._content += size
        if self._content > BOMB_BYTES and self._content > BOMB_RATIO * self.position:
            raise TraceError(
                self.path,
                f"byte {self.position}",
                f"{self._content} bytes came out of them: expected compressed data that grows "
                f"to at most {BOMB_RATIO} times its size (decompress it yourself if it is a trace)",
            )

    def _finish(self) -> None:
        """Read the bytes after a compressed stream: they belong to the file."""
        while self._buffer.read(_RAW_BYTES):
            pass

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Errors of the file and of its compression as trace errors; tells the progress."""
        try:
            yield
        except self._damage as error:
            raise TraceError(
                self.path,
                f"byte {self.position}",
                f"damaged compressed data ({error}): expected a whole gz, xz or zst stream",
            ) from error
        except OSError as error:
            raise os_failure(self.path, f"byte {self.position}", error, "readable bytes") from error
        if self._progress is not None:
            self._progress(self.position)

    @contextlib.contextmanager
    def random(self) -> Iterator[RandomAccess]:
        """The content for readers that seek; from the beginning of a pass.

        Compressed content is laid into a temporary file. What is read here does
        not count as passed: :meth:`pass_to` brings check and digest along.
        """
        if self._stream is self._buffer:
            yield RandomAccess(self.path, self._raw.size, self._raw.at)
            return
        import tempfile

        try:
            with tempfile.TemporaryFile() as spool:
                while data := self.read(BLOCK_BYTES):
                    spool.write(data)
                size = spool.tell()

                def at(position: int, count: int) -> bytes:
                    spool.seek(position)
                    return spool.read(count)

                yield RandomAccess(self.path, size, at)
        except OSError as error:
            raise os_failure(self.path, "", error, "room for the decompressed content") from error

    def pass_to(self, position: int) -> None:
        """Let the raw bytes before *position* go through check and digest."""
        with self._guarded():
            while self.position < position and self._buffer.read(_RAW_BYTES):
                pass

    @property
    def crc32(self) -> int:
        """CRC-32 of the raw bytes read so far."""
        return self._raw.crc32

    def hexdigest(self) -> str | None:
        """blake2b-128 of the raw bytes read so far, in hex; None where it is not made."""
        return None if self._raw.digest is None else self._raw.digest.hexdigest()

    def close(self) -> None:
        """Close the file; further reads fail."""
        self._buffer.close()
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Block(NamedTuple):
    """Whole lines of a text file."""

    first: int
    """Number of the first line, counted from 1."""
    data: bytes
    """The lines, joined by newlines, without the last newline."""
    lines: int
    """Number of lines."""
    cut: bool
    """True for the last line of a file when no newline follows it; it comes alone."""

    def numbered(self) -> Iterator[tuple[int, bytes]]:
        """Line numbers and lines."""
        return enumerate(self.data.split(b"\n"), self.first)


def line_blocks(source: Source) -> Iterator[Block]:
    """The lines of a text file, in blocks of about ``BLOCK_BYTES``.

    Parameters
    ----------
    source : Source
        A pass at its beginning.

    Yields
    ------
    Block
        In file order. A byte-order mark at the start is left out.

    Raises
    ------
    TraceError
        If a line is longer than ``LINE_LIMIT``, or on any error of the file.

    Complexity
    ----------
    O(bytes) time, O(``BLOCK_BYTES`` + ``LINE_LIMIT``) memory.
    """
    number = 1
    tail = b""
    fresh = True
    while data := source.read(BLOCK_BYTES):
        if fresh:
            data = data.removeprefix(_BOM)
            fresh = False
        lines, newline, rest = data.rpartition(b"\n")
        if not newline:
            tail += rest
        else:
            lines = tail + lines
            tail = rest
            # Only the first line reaches back before this block.
            if lines.find(b"\n") > LINE_LIMIT or (b"\n" not in lines and len(lines) > LINE_LIMIT):
                raise _too_long(source, number)
            count = lines.count(b"\n") + 1
            yield Block(number, lines, count, False)
            number += count
        if len(tail) > LINE_LIMIT:
            raise _too_long(source, number)
    if tail:
        yield Block(number, tail, 1, True)


def _too_long(source: Source, number: int) -> TraceError:
    return TraceError(
        source.path, f"line {number}", f"longer than {LINE_LIMIT} bytes: expected lines of text"
    )
