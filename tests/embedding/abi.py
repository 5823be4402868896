"""The layout of every public struct of ``svmcore/svmcore.h``, as a compiler has it.

``python tests/embedding/abi.py`` compares it with ``abi.json``; ``--update``
writes the file, and refuses to move or drop what is there already.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

COMMITTED = Path(__file__).with_name("abi.json")
STRUCT = re.compile(r"typedef struct (\w+) \{(.*?)\n\} (\w+);", re.DOTALL)
FIELD = re.compile(r"(?:\(\*(\w+)\)\([^;]*\)|(\w+)(?:\[\w+\])?);")

Layout = dict[str, dict[str, object]]


def structs(header: str) -> dict[str, list[str]]:
    """Names of the fields of every struct with a body, in order."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    return {
        name: [pointer or plain for pointer, plain in FIELD.findall(body)]
        for _, body, name in STRUCT.findall(text)
    }


def program(header: str) -> str:
    lines = [
        "#include <svmcore/svmcore.h>",
        "#include <stdio.h>",
        "int main(void) {",
        'printf("{\\"abi\\": %u", (unsigned)SVMCORE_ABI);',
    ]
    for name, fields in structs(header).items():
        lines.append(f'printf(", \\"{name}\\": {{\\"sizeof\\": %zu", sizeof({name}));')
        lines += [f'printf(", \\"{f}\\": %zu", offsetof({name}, {f}));' for f in fields]
        lines.append('printf("}");')
    return "\n".join([*lines, 'puts("}");', "return 0;", "}"])


def measure(compiler: str, include: str, cflags: list[str]) -> Layout:
    """What *compiler* makes of the header in the folder *include*."""
    header = (Path(include) / "svmcore" / "svmcore.h").read_text("utf-8")
    flags = ["-DSVMCORE_NO_PYTHON", f"-I{include}", *cflags]
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "abi.c", Path(folder) / "abi"
        source.write_text(program(header), "utf-8")
        subprocess.run([*shlex.split(compiler), *flags, str(source), "-o", str(built)], check=True)
        run = subprocess.run([str(built)], check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


def broken(old: Layout, new: Layout) -> list[str]:
    """What a host compiled against *old* would find moved, missing or shrunk in *new*."""
    found = []
    for name, fields in old.items():
        if name == "abi":
            continue
        now = new.get(name, {})
        for field, offset in fields.items():
            if field == "sizeof":
                if now.get(field, 0) < offset:
                    found.append(f"{name} shrank")
            elif now.get(field) != offset:
                found.append(f"{name}.{field}: offset {now.get(field)}, expected {offset}")
    return found


def main() -> int:
    import svmcore

    new = measure("cc", svmcore.get_include(), [])
    if "--update" in sys.argv:
        old = json.loads(COMMITTED.read_text("utf-8")) if COMMITTED.exists() else {}
        if old.get("abi") == new["abi"] and broken(old, new):
            print("\n".join(broken(old, new)), "needs a new SVMCORE_ABI", sep="\n")
            return 1
        COMMITTED.write_text(json.dumps(new, indent=1) + "\n", "utf-8")
        return 0
    same = new == json.loads(COMMITTED.read_text("utf-8"))
    print("same" if same else "differs: --update, if it only grew")
    return not same


if __name__ == "__main__":
    sys.exit(main())
