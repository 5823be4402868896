"""What ``svmcore inspect`` tells of a state file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from .. import __version__
from ..checkpoint.run import replay_of
from ..errors import StateFileError, SvmError
from ..image import read_image, read_manifest
from ..machine import Machine

__all__ = ["is_image", "look_at_state"]


def is_image(path: str) -> bool:
    """Whether the file begins as a zip does; no format of traces is one."""
    with contextlib.suppress(OSError, ValueError), Path(path).open("rb") as file:
        return file.read(4) == b"PK\x03\x04"
    return False


def look_at_state(path: str) -> dict[str, Any]:
    """Manifest, Spec, sizes and counts of a state file; every member is read and checked.

    Raises
    ------
    StateFileError
        If it is none, or damaged.
    """
    manifest = read_manifest(path)
    spec, arrays = read_image(path)
    try:
        machine = Machine.from_dict(spec["machine"]).to_dict()
        # The policy itself may be another package's, which is not needed to look.
        policy = {"name": str(spec["policy"]["name"]), "settings": dict(spec["policy"]["settings"])}
        replay = replay_of(spec, arrays)
    except (SvmError, KeyError, TypeError, ValueError) as error:
        raise StateFileError(path, "", f"expected the Spec of a space: {error!r}") from error
    return {
        "svmcore": __version__,
        "path": path,
        "format": manifest["format"],
        "format_version": manifest["format_version"],
        "written_by": manifest["svmcore"],
        "bytes": Path(path).stat().st_size,
        "spec_digest": manifest["spec_digest"],
        "machine": machine,
        "policy": policy,
        "replay": replay,
        "now_ns": _first(arrays.get("process"), "now"),
        "counters": _counters(arrays.get("counters")),
        "members": [
            {
                "name": entry["name"],
                "rows": entry["shape"][0],
                "bytes": arrays[entry["name"]].nbytes,
                "dtype": entry["dtype"],
                "digest": entry.get("crc32") or entry.get("blake2b"),
            }
            for entry in manifest["members"]
        ],
    }


def _first(table: Any, column: str) -> int | None:
    """A number of a table of one row, ``None`` where a policy has no such table."""
    if table is None or column not in (table.dtype.names or ()) or len(table) != 1:
        return None
    return int(table[column][0])


def _counters(table: Any) -> dict[str, int]:
    names = () if table is None else table.dtype.names or ()
    return {name: number for name in names if (number := _first(table, name)) is not None}
