"""What a C, C++ or Cython host needs to compile and link: folders and flags.

``python -m svmcore --cflags --ldflags`` prints them; nothing here needs an extra.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["cflags", "get_include", "ldflags", "main"]


def get_include() -> str:
    """The folder to add to a compiler's include path: it holds ``svmcore/svmcore.h``.

    Returns
    -------
    str
        Absolute path.
    """
    return str(Path(__file__).resolve().parent / "include")


def cflags() -> list[str]:
    """Compiler flags of a host: the include folders of svmcore and of this Python.

    Returns
    -------
    list of str
        One flag an item, not quoted for a shell.
    """
    import sysconfig

    folders = [get_include(), *map(sysconfig.get_path, ("include", "platinclude"))]
    return [f"-I{folder}" for folder in dict.fromkeys(folders)]


def ldflags() -> list[str]:
    """Linker flags of a program that embeds this Python. svmcore itself is not linked.

    An extension module needs none of them: it lives in an interpreter.

    Returns
    -------
    list of str
        One flag an item, not quoted for a shell.
    """
    import sysconfig

    def words(name: str) -> list[str]:
        return shlex.split(str(sysconfig.get_config_var(name) or ""))

    folder = str(sysconfig.get_config_var("LIBDIR") or "")
    version = sysconfig.get_config_var("LDVERSION") or sysconfig.get_config_var("VERSION")
    flags = [f"-L{folder}"] if folder else []
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        # Where the interpreter is no system package the loader would not find its library.
        flags += [f"-Wl,-rpath,{folder}"]
    else:
        # Modules find the interpreter's symbols in the program itself.
        flags = [f"-L{sysconfig.get_config_var('LIBPL')}", *flags, *words("LINKFORSHARED")]
    return list(dict.fromkeys([*flags, f"-lpython{version}", *words("LIBS"), *words("SYSLIBS")]))


def main(argv: Sequence[str]) -> int | None:
    """Print what ``--cflags``, ``--ldflags`` and ``--include`` ask for, on one line.

    Parameters
    ----------
    argv : sequence of str
        Arguments without the program's name.

    Returns
    -------
    int or None
        The exit status, or ``None`` when the arguments are not about building.
    """
    known: dict[str, Callable[[], list[str]]] = {
        "--cflags": cflags,
        "--ldflags": ldflags,
        "--include": lambda: [get_include()],
    }
    if not argv or any(word not in known for word in argv):
        return None
    flags = [flag for word in argv for flag in known[word]()]
    # shlex.join would be wrong on Windows, whose shell knows no single quotes.
    print(" ".join(flags) if os.name == "nt" else shlex.join(flags))  # noqa: T201
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code is None:
        print("usage: python -m svmcore.buildinfo [--cflags] [--ldflags] [--include]")  # noqa: T201
        code = 2
    sys.exit(code)
