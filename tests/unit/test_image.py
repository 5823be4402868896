"""State files on the disk: whole or refused, and the old one never lost."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import svmcore
from svmcore import image
from svmcore._version import __version__
from svmcore.errors import StateFileError
from svmcore.image import read_image, read_manifest, spec_digest, write_image

SPEC: dict[str, Any] = {"machine": {"name": "m", "gpus": [1, 2]}, "x": 1.5, "none": None}
ROWS = np.array([(1, 2, 0.5), (3, 4, 1.5)], [("a", "<u8"), ("b", "<u4"), ("c", "<f8")])
ARRAYS: dict[str, Any] = {
    "rows": ROWS,
    "plain": np.arange(5, dtype="<u4"),
    "wide": np.arange(12, dtype="<u8").reshape(4, 3),
    "empty": np.zeros(0, ROWS.dtype),
    "flat": np.zeros((0, 3), "<u8"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_image(tmp_path / "a.svm", SPEC, ARRAYS)
    return tmp_path / "a.svm"


def assert_whole(path: Path) -> None:
    spec, arrays = read_image(path)
    assert spec == SPEC
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        assert arrays[name].tobytes() == array.tobytes()


def test_what_is_written_is_read(path: Path) -> None:
    assert_whole(path)
    assert sorted(path.parent.iterdir()) == [path]


def test_other_tools_open_it(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        manifest = json.loads(archive.read("manifest.json"))
        for name, array in ARRAYS.items():
            loaded = np.load(io.BytesIO(archive.read(f"{name}.npy")))
            assert loaded.dtype == array.dtype
            assert loaded.shape == array.shape
            assert loaded.tobytes() == array.tobytes()
    assert manifest == read_manifest(path)
    assert manifest["svmcore"] == __version__
    assert manifest["spec_digest"] == spec_digest(SPEC)


def test_equal_contents_give_equal_bytes(path: Path) -> None:
    other = path.with_name("b.svm")
    spec = dict(reversed(list(SPEC.items())))
    write_image(other, spec, dict(reversed(list(ARRAYS.items()))))
    assert other.read_bytes() == path.read_bytes()


def test_a_strided_array_is_written_whole(path: Path) -> None:
    wide = np.arange(24, dtype="<u8").reshape(4, 6)[:, ::2]
    write_image(path, SPEC, {"wide": wide, "turned": ARRAYS["wide"].T})
    assert (read_image(path)[1]["wide"] == wide).all()
    assert (read_image(path)[1]["turned"] == ARRAYS["wide"].T).all()


def test_a_link_is_followed(path: Path) -> None:
    link = path.with_name("link.svm")
    link.symlink_to(path)
    write_image(link, SPEC, {})
    assert link.is_symlink()
    assert read_image(path)[1] == {}


@pytest.mark.parametrize(
    ("spec", "arrays", "expected"),
    [
        (SPEC, {"Bad": np.zeros(1, "<u8")}, "name"),
        (SPEC, {"../x": np.zeros(1, "<u8")}, "name"),
        (SPEC, {"x": np.zeros(1, ">u8")}, ">u8"),
        (SPEC, {"x": np.zeros(1, object)}, "object"),
        (SPEC, {"x": np.zeros((1, 1, 1), "<u8")}, "3 dimensions"),
        (SPEC, {"x": np.zeros(1, [("a", "<u8", (2,))])}, "expected"),
        ({"x": float("nan")}, {}, "JSON"),
        ({"x": object()}, {}, "JSON"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(
    path: Path, spec: Any, arrays: Any, expected: str
) -> None:
    with pytest.raises(StateFileError, match=expected):
        write_image(path, spec, arrays)
    assert_whole(path)


# ---- bad files -------------------------------------------------------------------------------


def refused(path: Path, match: str | None = None) -> str:
    before = path.read_bytes()
    with pytest.raises(StateFileError, match=match) as error:
        read_image(path)
    assert path.read_bytes() == before
    assert str(path) in str(error.value)
    return str(error.value)


def test_every_truncation_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        refused(path)


def flip_bits(path: Path, places: Iterator[tuple[int, int]]) -> None:
    """A flipped bit is refused, or what is read is equal: local headers say things twice."""
    data = path.read_bytes()
    told = 0
    for place, bit in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        try:
            assert_whole(path)
        except StateFileError:
            told += 1
    assert told > 0


def test_flipped_bits_of_many_bytes_are_refused_or_harmless(path: Path) -> None:
    size = path.stat().st_size
    flip_bits(path, ((place, place * 5 % 8) for place in range(0, size, 2)))


@pytest.mark.slow
def test_every_flipped_bit_is_refused_or_harmless(path: Path) -> None:
    size = path.stat().st_size
    flip_bits(path, ((place, bit) for place in range(size) for bit in range(8)))


@pytest.mark.parametrize(
    "data",
    [b"", b"PK", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"PK\x05\x06" + bytes(18), b"\x7fELF" * 99],
)
def test_foreign_bytes_are_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    refused(path, "zip")


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StateFileError, match=r"none\.svm"):
        read_image(tmp_path / "none.svm")
    with pytest.raises(StateFileError, match="read"):
        read_image(tmp_path)
    with pytest.raises(StateFileError, match="untouched"):
        write_image(tmp_path / "no" / "a.svm", SPEC, {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(StateFileError, match="untouched"):
        write_image(tmp_path / "folder", SPEC, {})
    assert [item.name for item in tmp_path.iterdir()] == ["folder"]


def repack(
    path: Path,
    change: Any = None,
    members: Any = None,
    method: int = zipfile.ZIP_STORED,
) -> None:
    """The file again, its manifest and its members through the functions given."""
    with zipfile.ZipFile(path) as archive:
        parts = [(name, archive.read(name)) for name in archive.namelist()]
    if change is not None:
        manifest = json.loads(parts[-1][1])
        change(manifest)
        parts[-1] = ("manifest.json", json.dumps(manifest).encode())
    if members is not None:
        parts = members(parts)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in parts:
            archive.writestr(name, data)


def entry(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(m for m in manifest["members"] if m["name"] == name)
    return found


MANIFESTS: dict[str, tuple[Any, str]] = {
    "format": (lambda m: m.update(format="other"), "no state file"),
    "newer": (lambda m: m.update(format_version=3, svmcore="9.0"), "version 3 of svmcore '9.0'"),
    "version kind": (lambda m: m.update(format_version=True), "version True"),
    "version word": (lambda m: m.update(format_version="1"), "version '1'"),
    "extra key": (lambda m: m.update(more=1), "more"),
    "missing key": (lambda m: m.pop("svmcore"), "expected"),
    "spec": (lambda m: m["spec"].update(x=2), "hash"),
    "spec kind": (lambda m: m.update(spec=[]), "hash"),
    "members": (lambda m: m.update(members={}), "list"),
    "many members": (lambda m: m.update(members=[{}] * 1001), "1000"),
    "member kind": (lambda m: m["members"].__setitem__(0, 5), "member"),
    "member keys": (lambda m: m["members"][0].pop("shape"), "keys"),
    "twice": (lambda m: m["members"].append(m["members"][0]), "twice"),
    "name": (lambda m: m["members"][0].update(name="../../x"), "expected"),
    "name kind": (lambda m: m["members"][0].update(name=[1]), "expected"),
    "not there": (lambda m: m["members"][0].update(name="gone"), "missing"),
    "undeclared": (lambda m: m["members"].pop(), "not in the manifest"),
    "dtype": (lambda m: entry(m, "plain").update(dtype="|O"), "dtype"),
    "dtype rows": (lambda m: entry(m, "plain").update(dtype=[["a", "<u8"], ["a", "<u8"]]), "dtype"),
    "dtype kind": (lambda m: entry(m, "plain").update(dtype=[["a", []]]), "dtype"),
    "other dtype": (lambda m: entry(m, "plain").update(dtype="<u8"), "expected|up to"),
    "shape": (lambda m: entry(m, "plain").update(shape=[6]), "expected"),
    "small shape": (lambda m: entry(m, "plain").update(shape=[4]), "up to|expected"),
    "huge shape": (lambda m: entry(m, "plain").update(shape=[1 << 47, 1 << 47]), "expected"),
    "bad shape": (lambda m: entry(m, "plain").update(shape=[-5]), "shape"),
    "shape kind": (lambda m: entry(m, "plain").update(shape=[5.0]), "shape"),
    "digest": (lambda m: entry(m, "plain").update(crc32="0" * 8), "digest"),
    "digest kind": (lambda m: entry(m, "plain").update(crc32=None), "digest"),
}


@pytest.mark.parametrize(("change", "expected"), MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_manifest_that_does_not_fit_is_refused(path: Path, change: Any, expected: str) -> None:
    repack(path, change)
    refused(path, expected)


def test_a_file_of_stored_members_packed_by_others_is_read(path: Path) -> None:
    repack(path)
    assert_whole(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[]", "no state file"),
        (b'{"format": NaN}', "JSON"),
        (b'{"format": "a", "format": "svmcore state"}', "twice"),
        (b" " * (5 << 20), "bytes"),
    ],
)
def test_a_manifest_that_is_none(path: Path, text: bytes, expected: str) -> None:
    repack(path, members=lambda parts: [*parts[:-1], ("manifest.json", text)])
    refused(path, expected)


@pytest.mark.parametrize(
    "name", ["../evil.npy", "/etc/passwd", "a/b.npy", "C:x.npy", "x.txt", "manifest.json/", "X.npy"]
)
def test_names_that_lead_elsewhere_are_refused(path: Path, name: str) -> None:
    repack(path, members=lambda parts: [*parts, (name, b"x")])
    refused(path, "expected manifest.json and")
    assert len(list(path.parent.iterdir())) == 1


def test_members_there_twice_are_refused(path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        repack(path, members=lambda parts: [*parts, parts[0]])
    refused(path, "twice")


def test_undeclared_and_missing_members_are_refused(path: Path) -> None:
    repack(path, members=lambda parts: [("more.npy", b"x"), *parts])
    assert "more.npy" in refused(path, "not in the manifest")
    repack(path, members=lambda parts: parts[2:])
    refused(path, "missing")
    repack(path, members=lambda parts: parts[:-1])
    assert "manifest.json" in refused(path, "missing")


def test_compressed_members_are_refused_before_anything_is_unpacked(path: Path) -> None:
    bomb = bytes(64 << 20)
    repack(
        path,
        members=lambda parts: [(parts[0][0], bomb), *parts[1:]],
        method=zipfile.ZIP_DEFLATED,
    )
    assert path.stat().st_size < 1 << 20
    refused(path, "compressed")


def test_members_that_share_their_bytes_are_refused(path: Path) -> None:
    """Many directory entries on one member: much read from few bytes."""
    repack(path, members=lambda parts: [*parts, ("big.npy", bytes(4096))])
    archive = zipfile.ZipFile(path, "a")
    with archive:
        info = archive.getinfo("big.npy")
        for number in range(50):
            copy = zipfile.ZipInfo(f"copy{number}.npy")
            for key in ("header_offset", "file_size", "compress_size", "CRC"):
                setattr(copy, key, getattr(info, key))
            archive.filelist.append(copy)
            archive.NameToInfo[copy.filename] = copy
        archive._didModify = True
    refused(path, "declared sizes")


# ---- nothing is lost -----------------------------------------------------------------------


class Failing:
    """A file that takes so many bytes and then no more."""

    def __init__(self, file: Any, room: int) -> None:
        self.file = file
        self.room = room

    def write(self, data: Any) -> int:
        if self.room < len(data):
            self.file.write(bytes(data)[: self.room])
            self.room = 0
            raise OSError(28, "No space left on device")
        self.room -= len(data)
        return int(self.file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()


def test_a_full_disk_at_any_byte_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = path.stat().st_size
    opened = os.fdopen
    for room in range(0, size, 37):
        monkeypatch.setattr(os, "fdopen", lambda *a, room=room: Failing(opened(*a), room))
        with pytest.raises(StateFileError, match=r"untouched.*No space"):
            write_image(path, {"other": room}, ARRAYS)
        monkeypatch.undo()
        assert_whole(path)
        assert list(path.parent.iterdir()) == [path]


def failing(*_: object, **__: object) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("where", ["fsync", "replace", "interrupt"])
def test_a_failure_before_the_end_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    kind: type[BaseException] = StateFileError
    if where == "fsync":
        monkeypatch.setattr(os, "fsync", failing)
    elif where == "replace":
        monkeypatch.setattr(Path, "replace", failing)
    else:
        kind = KeyboardInterrupt

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(kind):
        write_image(path, {"other": 1}, ARRAYS)
    monkeypatch.undo()
    assert_whole(path)
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_synced_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "_sync_folder", failing)
    with pytest.raises(StateFileError, match="written whole"):
        write_image(path, {"other": 1}, {})
    assert read_image(path) == ({"other": 1}, {})


def test_the_bytes_are_synced_before_the_rename(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("sync"), sync(fd)))
    monkeypatch.setattr(Path, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    write_image(path, SPEC, ARRAYS)
    assert calls == ["sync", "replace", "sync"]


def child(program: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(svmcore.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_a_limit_of_the_system_on_file_size(path: Path) -> None:
    program = (
        "import resource, signal, sys, numpy as np\n"
        "from svmcore.errors import StateFileError\n"
        "from svmcore.image import write_image\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    write_image(sys.argv[1], {}, {'x': np.zeros(1_000_000, '<u8')})\n"
        "except StateFileError as error:\n"
        "    sys.exit('untouched' not in str(error))\n"
        "sys.exit(2)\n"
    )
    assert resource.RLIMIT_FSIZE is not None
    process = child(program, str(path))
    assert process.wait(60) == 0, process.communicate()
    process.communicate()
    assert_whole(path)
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_file_has_its_errno(tmp_path: Path) -> None:
    with pytest.raises(StateFileError, match="cannot be read") as caught:
        read_image(tmp_path / "none.svm")
    assert caught.value.code == "ENOENT"
