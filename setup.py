"""The compiled modules; everything else is said in pyproject.toml.

Every ``.pyx`` below ``src/svmcore`` becomes an extension named by its path.
Switches, each an environment variable set to anything but ``0`` or nothing:

``SVMCORE_DEBUG``      bounds and None checks and ``assert`` on, symbols, -O1
``SVMCORE_ANNOTATE``   an HTML page for each module beside its generated C
``SVMCORE_LINETRACE``  line tracing, for coverage through ``Cython.Coverage``
``SVMCORE_SANITIZE``   address and undefined-behaviour sanitizers (gcc, clang)

Generated C, objects and modules of each combination lie apart below ``build/``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SOURCE = Path("src")
INCLUDE = SOURCE / "svmcore" / "include"


def _on(name: str) -> bool:
    return os.environ.get(f"SVMCORE_{name}", "0") not in ("", "0")


DEBUG, ANNOTATE, LINETRACE, SANITIZE = map(_on, ("DEBUG", "ANNOTATE", "LINETRACE", "SANITIZE"))
VARIANT = "-".join(
    name for name, on in (("debug", DEBUG), ("linetrace", LINETRACE), ("sanitize", SANITIZE)) if on
)
BUILD_BASE = f"build/{VARIANT or 'release'}"

DIRECTIVES = {
    "language_level": 3,
    "binding": True,
    "embedsignature": True,
    "embedsignature.format": "python",
    "cdivision": True,  # unsigned addresses only: % and // are C's
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
    "overflowcheck": False,  # addresses wrap on purpose at the top of the page space
    "linetrace": LINETRACE,
}


def _extensions() -> list[Extension]:
    headers = sorted(str(path.relative_to(ROOT)) for path in (ROOT / INCLUDE).rglob("*.h"))
    macros: list[tuple[str, str | None]] = []
    if DEBUG:
        macros.append(("SVMCORE_DEBUG", "1"))
    else:
        macros.append(("CYTHON_WITHOUT_ASSERTIONS", "1"))
    if LINETRACE:
        macros += [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1")]
    return [
        Extension(
            ".".join(path.relative_to(ROOT / SOURCE).with_suffix("").parts),
            [str(path.relative_to(ROOT))],
            include_dirs=[str(INCLUDE)],
            define_macros=macros,
            undef_macros=["NDEBUG"] if DEBUG else [],
            depends=headers,
        )
        for path in sorted((ROOT / SOURCE / "svmcore").rglob("*.pyx"))
    ]


def _flags(compiler: str) -> tuple[list[str], list[str]]:
    """Compiler and linker flags; no -march, no -ffast-math: results do not depend on the host."""
    if compiler == "msvc":
        return (["/Od", "/Zi"], ["/DEBUG"]) if DEBUG else (["/O2"], [])
    symbols = DEBUG or SANITIZE or LINETRACE
    compile_flags = ["-O1" if DEBUG or SANITIZE else "-O3", "-g" if symbols else "-g0"]
    link_flags: list[str] = []
    if SANITIZE:
        sanitize = ["-fsanitize=address,undefined"]
        compile_flags += [*sanitize, "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined"]
        link_flags += sanitize
    return compile_flags, link_flags


class BuildExt(build_ext):
    """Translate to C only when compiling, so that an sdist never holds generated C."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count() or 1

    def build_extensions(self) -> None:
        from Cython.Build import cythonize

        made = {
            extension.name: extension
            for extension in cythonize(
                self.extensions,
                include_path=[str(SOURCE)],
                build_dir=f"{BUILD_BASE}/c",
                compiler_directives=DIRECTIVES,
                annotate=ANNOTATE,
                # Processes are forked; elsewhere a spawned one would run this file again.
                nthreads=self.parallel if sys.platform == "linux" else 0,
            )
        }
        compile_flags, link_flags = _flags(self.compiler.compiler_type)
        for extension in self.extensions:
            extension.sources = made[extension.name].sources
            extension.depends = sorted({*extension.depends, *made[extension.name].depends})
            extension.extra_compile_args = compile_flags
            extension.extra_link_args = link_flags
        super().build_extensions()


class BuildPy(build_py):
    """Forget what an earlier build left of files that the source no longer has."""

    def run(self) -> None:
        built = Path(self.build_lib) / "svmcore"
        for path in built.rglob("*") if built.is_dir() else ():
            source = ROOT / SOURCE / path.relative_to(self.build_lib)
            if path.suffix in (".so", ".pyd"):
                source = source.with_name(source.name.partition(".")[0] + ".pyx")
            if path.is_file() and not source.exists():
                path.unlink()
        super().run()


setup(
    ext_modules=_extensions(),
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
    options={"build": {"build_base": BUILD_BASE}},
)
