"""Runs vector files against the engine and reports every step that differs.

``python -m svmcore.conformance [--reference] FILE...`` recognises a file's kind
by its content and prints ``FILE: N steps, M mismatches`` for each, then the
first mismatches. Exit status 0 only when there is none, 1 for mismatches,
2 for a file that is no vector file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .attributes import Attribute
from .errors import InvalidArgumentError, SvmError
from .machine import Gpu
from .policies.outcome import Outcome
from .reference import KfdReference

__all__ = ["Report", "main", "run_file"]

#: How many mismatches of a file are printed.
SHOWN = 5
_FORMAT = "kfd-svm-vectors/1"
_EFFECTS = ("migr", "map", "unmap", "queues", "warn", "bo_evict", "filter_removed", "hang")
#: Operations after which pending work is left alone (they only set state).
_STILL = frozenset(("mmap", "inject", "set_xnack", "bo_map", "userptr", "pin", "unpin", "ih"))


@dataclass
class Report:
    """Result of one vector file.

    Attributes
    ----------
    path : str
        The file.
    steps, mismatches : int
        Steps compared, and those in which any field differs.
    note : str
        Why a run stopped early; empty when it ran to the end.
    details : list of str
        The first mismatches with expected and got.
    """

    path: str
    steps: int = 0
    mismatches: int = 0
    note: str = ""
    details: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The line of the file, as the contract has it."""
        note = f" [{self.note}]" if self.note else ""
        return f"{self.path}: {self.steps} steps, {self.mismatches} mismatches{note}"

    def add(self, label: str, differences: list[tuple[str, Any, Any]]) -> None:
        """One step with the fields that differ, each with expected and got."""
        self.steps += 1
        if differences:
            self.mismatches += 1
            if len(self.details) < SHOWN:
                self.details.append(
                    f"  {label}: "
                    + "; ".join(f"{k}: expected {e}, got {g}" for k, e, g in differences)
                )


def run_file(path: str | Path, *, reference: bool = False) -> Report:
    """Run one vector file.

    Parameters
    ----------
    path : str or Path
        A file of a known kind; ``.gz`` is opened transparently.
    reference : bool
        Run the executable specification instead of the compiled engine.

    Raises
    ------
    SvmError
        If the file cannot be read or is no vector file; the message names the
        file, the line and what was expected.
    """
    text = _read(Path(path))
    first = text.split("\n", 1)[0]
    header = _document(first)
    if isinstance(header, dict) and header.get("format") == _FORMAT:
        return _run_kfd(str(path), header, text.split("\n")[1:], reference=reference)
    # Only such files need them.
    from . import conformance_uvm as uvm
    from .checkpoint import vectors as checkpoint
    from .managed import vectors as managed
    from .stacks import vectors as softstack

    document = _document(text)
    if isinstance(document, dict) and document.keys() >= uvm.KEYS:
        return _run_uvm(str(path), document, reference=reference)
    if checkpoint.recognised(document):
        return _run_checkpoint(str(path), document)
    if softstack.recognised(document):
        return _run_softstack(str(path), document, reference=reference)
    if managed.is_case_file(document):
        return _run_managed(str(path), document)
    raise InvalidArgumentError(
        f'{path}: line 1: expected a vector file, a first line with "format": "{_FORMAT}", '
        "an object with coalescing, prefetch, residency and thrashing, "
        "a table of checkpoint transitions, launch-stack cases, or one JSON object of cases of "
        "managed memory"
    )


def _document(text: str) -> Any:
    """The whole file as one JSON document; None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _run_uvm(path: str, vectors: dict[str, Any], *, reference: bool) -> Report:
    from .conformance_uvm import steps

    report = Report(path)
    try:
        for name, expected, got in steps(vectors, reference=reference):
            report.steps += 1
            if json.dumps(expected) != json.dumps(got):
                report.mismatches += 1
                if len(report.details) < SHOWN:
                    report.details.append(f"  {name}: expected {expected}, got {got}")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, SvmError):
            raise
        raise InvalidArgumentError(
            f"{path}: case {report.steps}: expected UVM vectors: {error!r}"
        ) from error
    return report


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InvalidArgumentError(f"{path}: expected a readable vector file: {error}") from error


# ---- managed memory ----------------------------------------------------------------------


def _run_managed(path: str, table: dict[str, Any]) -> Report:
    """Cases of managed memory, one step a case and mode; there is one implementation."""
    from .managed import vectors

    report = Report(path)
    for name, case in table.items():
        # A case may be told for one mode alone; without any it is none, and refused.
        told = case if isinstance(case, dict) else {}
        modes = [mode for mode in vectors.MODES if mode in told] or list(vectors.MODES)
        for mode in modes:
            try:
                found = list(vectors.differences(case, mode))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise InvalidArgumentError(
                    f"{path}: case {name}: expected steps and outputs of managed memory: {error!r}"
                ) from error
            report.add(f"{name} {mode}", found)
    return report


# ---- launch stacks -----------------------------------------------------------------------


def _run_softstack(path: str, table: dict[str, Any], *, reference: bool) -> Report:
    from .stacks import vectors as softstack

    report = Report(path)
    try:
        for label, differences in softstack.run_cases(table, reference=reference):
            report.add(label, differences)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"{path}: expected softstack cases: {error!r}") from error
    return report


# ---- KFD files ---------------------------------------------------------------------------


def _run_kfd(path: str, header: dict[str, Any], lines: list[str], *, reference: bool) -> Report:
    report = Report(path)
    try:
        process = _process(header, reference=reference)
        driver = header["accounting"] == "driver"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(
            f"{path}: line 1: expected a header of {_FORMAT}: {error!r}"
        ) from error
    known: dict[int, list[int]] = {}
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        try:
            step = json.loads(line)
            if driver and "accounting_off" in step:
                report.note = f"stopped at step {step['i']}: driver accounting"
                break
            got = _play(process, step)
            differences = list(_differences(process, step, got, known))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, SvmError):
                raise
            raise InvalidArgumentError(
                f"{path}: line {number}: expected a step of {_FORMAT}: {error!r}"
            ) from error
        report.add(f"step {step['i']} {step['op']}", differences)
    return report


def _process(header: dict[str, Any], *, reference: bool) -> Any:
    gpus = tuple(
        Gpu(
            id=g["id"],
            vram_pages=g["vram_pages"],
            hive=g.get("hive", 0),
            adev=g.get("adev", -1),
            apu=g.get("apu", False),
            svm=g.get("svm", True),
            coherent=g.get("coherent", False),
        )
        for g in header["gpus"]
    )
    if reference:
        make: Callable[..., Any] = KfdReference
    else:
        from .policies._kfd import KfdProcess

        make = KfdProcess
    process = make(
        gpus,
        xnack=bool(header["xnack"]),
        kernel=header["kernel"],
        max_svm_range_pages=header["max_svm_range_pages"],
        default_granularity=header["default_granularity"],
        evict_on_full=bool(header.get("evict_on_full", False)),
    )
    for first, last, prot, kind in header["vmas"]:
        process.mmap(first, last, prot, kind)
    return process


def _attrs(step: dict[str, Any]) -> list[tuple[int, int]]:
    return [
        (name if isinstance(name, int) else Attribute[name], value) for name, value in step["attrs"]
    ]


def _play(process: Any, step: dict[str, Any]) -> Outcome:
    """Run one step, pending work at its end included, and return what it did."""
    op = step["op"]
    process.begin(step["t_us"] * 1000)
    start = step.get("start_page", 0)
    last = start + step.get("npages", 0) - 1
    addr = step.get("start_addr", start << 12)
    size = step.get("size", step.get("npages", 0) << 12)
    ran = True  # the operation reached the point where pending work runs
    if op == "set_attr":
        ret = process.set_attr(addr, size, _attrs(step), step.get("ioctl_op", 0))
    elif op == "get_attr":
        ret = process.get_attr(addr, size, _attrs(step))
    elif op == "prefetch":
        ret = process.set_attr(addr, size, [(Attribute.PREFETCH_LOC, step["loc"])])
    elif op == "fault":
        ret = process.fault(step["gpu"], step["page"], bool(step["write"]), step.get("ts", 0))
    elif op == "munmap":
        ret = process.munmap(start, last)
    elif op == "mmap":
        ret = process.mmap(start, last, step["prot"], step["kind"])
    elif op == "mprotect":
        ret = process.mprotect(start, last, step["prot"])
    elif op == "invalidate":
        ret = process.invalidate(start, last)
    elif op == "cpu_access":
        ret = process.cpu_access(step["page"])
    elif op == "evict":
        ret = process.evict(step["page"])
        ran = ret != -2
    elif op == "inject":
        ret = process.inject(step["what"], step["n"])
    elif op == "run_deferred":
        ret = process.run_deferred()
    else:
        ret = _set_state(process, op, step, start, last)
    if op in ("set_attr", "prefetch") and process.refused:
        ran = False
    if ran and op not in _STILL and not step.get("defer"):
        process.run_deferred()
        process.run_restore()
    return process.finish(ret)  # type: ignore[no-any-return]


def _set_state(process: Any, op: str, step: dict[str, Any], start: int, last: int) -> int:
    if op == "set_xnack":
        process.set_xnack(bool(step["on"]))
    elif op == "bo_map":
        process.add_buffer(start, last)
    elif op == "userptr":
        process.add_userptr(start, last)
    elif op == "pin":
        process.pin(start, last)
    elif op == "unpin":
        process.unpin()
    elif op == "ih":
        process.set_ring(step["gpu"], step["ts"], bool(step["pending"]))
    else:
        raise KeyError(op)
    return 0


def _differences(
    process: Any,
    step: dict[str, Any],
    got: Outcome,
    known: dict[int, list[int]],
) -> Iterator[tuple[str, Any, Any]]:
    """Fields of the step in which the engine differs from the file."""

    def rows(value: Any) -> Any:
        return [list(r) if isinstance(r, tuple) else r for r in value]

    pairs: list[tuple[str, Any, Any]] = [("ret", step["ret"], got.ret)]
    if step["op"] == "fault":
        window = list(got.window) if got.window else None
        located = got.best_loc is not None
        pairs += [
            ("reason", step["reason"], got.reason),
            ("best_loc", step.get("best_loc"), got.best_loc),
            ("window", step.get("window"), window),
            ("migration", step.get("migration"), got.migration if located else None),
            ("vram_fallback", step.get("vram_fallback", False), got.vram_fallback),
            ("unregistered", step.get("unregistered", False), got.unregistered),
        ]
    if step["op"] == "get_attr":
        wanted = [[Attribute[n] if isinstance(n, str) else n, v] for n, v in step.get("out", [])]
        pairs.append(
            ("out", wanted if "out" in step else None, rows(got.out) if got.out else got.out)
        )
    pairs += [(name, step.get(name, []), rows(getattr(got, name))) for name in _EFFECTS]
    if step["op"] != "ih":  # there the key is an argument
        pairs.append(("pending", step.get("pending", []), rows(process.pending())))
    pairs.append(("restore_pending", step.get("restore_pending", False), process.restore_pending))
    ranges = rows(process.ranges())
    pairs.append(("nranges", step["nranges"], len(ranges)))
    if "ranges" in step:
        known.clear()
        known.update((row[0], row) for row in step["ranges"])
        pairs.append(("ranges", step["ranges"], ranges))
    elif "set" in step:
        for start in step["del"]:
            known.pop(start, None)
        known.update((row[0], row) for row in step["set"])
        wanted_rows = sorted(known.values())
        if wanted_rows != ranges:
            pairs.append(
                (
                    "set",
                    [r for r in wanted_rows if r not in ranges],
                    [r for r in ranges if r not in wanted_rows],
                )
            )
    if "list" in step:
        pairs.append(("list", step["list"], process.starts()))
    if "counters" in step:
        pairs.append(("counters", step["counters"], rows(process.counters())))
    for name, expected, actual in pairs:
        if expected != actual:
            yield name, expected, actual


# ---- checkpoint transitions --------------------------------------------------------------


def _run_checkpoint(path: str, document: dict[str, Any]) -> Report:
    """Every cell on the simulator; it has no separate executable specification."""
    from .checkpoint.vectors import play

    report = Report(path)
    try:
        for name, expected, got in play(document):
            report.steps += 1
            if expected != got:
                report.mismatches += 1
                if len(report.details) < SHOWN:
                    report.details.append(f"  {name}: expected {expected}, got {got}")
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
    return report


def main(argv: list[str] | None = None) -> int:
    """Command-line face; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="svmcore conformance", description="Run vector files against the engine."
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument(
        "--reference", action="store_true", help="run the executable specification instead"
    )
    options = parser.parse_args(argv)
    status = 0
    for name in options.files:
        try:
            report = run_file(name, reference=options.reference)
        except SvmError as error:
            print(f"svmcore: {error}", file=sys.stderr)
            return 2
        print(report.line(), flush=True)
        for detail in report.details:
            print(detail)
        status |= report.mismatches > 0
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
