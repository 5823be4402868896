"""What ``bench/rivals.py`` writes from its figures: docs/performance and the published table."""

from __future__ import annotations

import json
from typing import Any

import goals
import rivals

from svmcore.report import bench

DOCS = rivals.ROOT / "docs" / "performance"
PUBLISHED = rivals.ROOT / "src" / "svmcore" / "data" / "bench.json"
NOTE = "<!-- Made by `python bench/rivals.py --docs`; do not edit. -->\n"

#: Why a goal is hard to meet, by words of its case.
WHY = {
    "64 streams": (
        "A fault reads and writes about six cache lines: range, header, two masks, object, and its "
        "share of records and outcomes. With a million ranges they come from memory, and a core "
        "keeps only 16 or so on their way."
    ),
    "10,000 ranges, warm": (
        "What the faults of a pass read and write is more than a second-level cache holds, and the "
        "instructions of one (case `fault` of the instruction gate) take most of the time."
    ),
    "whole fault in a batch": (
        "A fault reads and writes several times the cache lines of a look-up, and both wait for "
        "them: the ratio goes with the machine's memory, and from run to run."
    ),
    "overwrite against std::map": (
        "An overwrite moves up to half a leaf of 512 bytes, and at a million ranges first waits "
        "for it; the ratio goes with the speed of the machine's memory."
    ),
}


def reasons(missed: list[goals.Row]) -> list[str]:
    """Those that concern goals that are not met."""
    lines = []
    for words, why in WHY.items():
        item = next((item for item in missed if words in item["case"]), None)
        if item is not None:
            lines.append(f"- *{item['goal']}, {words}*: {why}")
    return ["", "Why not:", "", *lines] if lines else []


def publish(machine: dict[str, str]) -> int:
    """Measure the cases of ``svmcore bench`` and write the table that ships."""
    ranges = 10_000
    table = {
        "machine": machine,
        "ranges": ranges,
        "cases": bench.measure(ranges, rounds=30),
    }
    PUBLISHED.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    print(f"wrote {PUBLISHED.relative_to(rivals.ROOT)}")
    return 0


def write(result: dict[str, Any]) -> int:
    pages = {
        "index.md": index(result),
        "goals.md": goals_page(result),
        "rivals.md": rivals_page(result),
    }
    for name, text in pages.items():
        (DOCS / name).write_text(text, "utf-8")
        print(f"wrote {(DOCS / name).relative_to(rivals.ROOT)}")
    return 0


def named(machine: dict[str, str]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} virtual cores shared with other work "
        f"(load {machine['load']} at the start), "
        f"{machine['system']}, Python {machine['python']}, NumPy {machine['numpy']}, "
        f"svmcore {machine['svmcore']}, {machine['date']}. The build is the one that "
        "`pip install .` gives: no `-march`."
    )


def table(head: list[str], rows: list[list[str]], left: int = 1) -> list[str]:
    rule = ["---" if number < left else "--:" for number in range(len(head))]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def of(result: dict[str, Any], ranges: int, case: str) -> dict[str, float]:
    return result["tables"]["sizes"].get(str(ranges), {}).get(case, {})


def open_goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in result["goals"] if item["met"] is False]


def times(ratio: float) -> str:
    """Two digits are enough for a ratio of noisy times."""
    return f"{ratio:.2g}" if ratio < 100 else f"{ratio:,.0f}"


def sized(value: float | None, unit: str) -> str:
    """A figure with its unit; a ratio's ``x`` stands close."""
    if value is None:
        return "-"
    return number(value) + (unit if unit == "x" else f" {unit}")


def bar_of(item: dict[str, Any]) -> str:
    if item["bar"] is None:
        return "-"
    return f"{'at most' if item['most'] else 'at least'} {sized(item['bar'], item['unit'])}"


def index(result: dict[str, Any]) -> str:
    missed, told = open_goals(result), [i for i in result["goals"] if i["met"] is not None]
    lines = [
        NOTE,
        "# Performance",
        "",
        "Three kinds of numbers, for three purposes:",
        "",
        "- **Work counters** (nodes visited, splits, merges, pages moved) are exact on every",
        "  machine. Tests assert them, so a slower algorithm shows at once.",
        "- **Instructions** per operation are counted under callgrind and gated at 2 %; see",
        "  [the instruction gate](../how-to/develop.md#the-instruction-gate).",
        "- **Time** is for people. It is reported with the machine's name and as a ratio to",
        "  rivals measured in the same run, and never asserted.",
        "",
        f"Faults and goals here are measured on: {named(result['machine'])}",
        "",
        f"Look-ups and overwrites here: {named(result['tables']['machine'])}",
        "",
        "## In short",
        "",
        *short(result),
        "",
        "## Where a flat page table wins",
        "",
        *flat(result),
        "",
        "## Goals that are not met",
        "",
    ]
    if missed:
        lines += [
            f"{len(told) - len(missed)} of {len(told)} goals were met in the run behind this page;",
            "[all of them](goals.md). These were not:",
            "",
            *table(
                ["goal", "case", "reached", "goal is"],
                [
                    [
                        item["goal"],
                        item["case"],
                        sized(item["reached"], item["unit"]),
                        bar_of(item),
                    ]
                    for item in missed
                ],
                left=2,
            ),
            *reasons(missed),
        ]
    else:
        lines += [f"None: all {len(told)} were met; [all of them](goals.md)."]
    lines += [
        "",
        "## Measure it yourself",
        "",
        "| command | tells |",
        "|---|---|",
        "| `svmcore bench` | this machine beside the table in `svmcore/data/bench.json` |",
        "| `python bench/rivals.py` | every structure at 1e2, 1e4 and 1e6 ranges |",
        "| `python bench/rivals.py --goals` | reached / goal of every goal |",
        "| `python bench/state.py` | how fast states are saved and loaded |",
        "| `pytest bench/test_operations.py --benchmark-only` | every operation of svmcore |",
        "| `pytest bench/test_readers.py -s` | every reader beside a plain loop |",
        "| `python bench/compare.py main HEAD` | two revisions, in turns |",
        "| `python bench/instructions.py --check` | the instruction gate |",
        "",
        "`pip install 'svmcore[bench]'` brings the rivals; `bench/` is in the source, not in the",
        "wheel. `std::map` and `boost::icl` take part where a C++ compiler and `libboost-dev` are.",
        "These pages: `python bench/rivals.py --save`, then `python bench/rivals.py --docs`.",
        "",
        "```{toctree}",
        ":maxdepth: 1",
        "",
        "goals",
        "readers",
        "rivals",
        "state-files",
        "oversubscription",
        "```",
    ]
    return "\n".join(lines) + "\n"


def short(result: dict[str, Any]) -> list[str]:
    lines = []
    for ranges in (10_000, 1_000_000):
        for case, word in (("find, uniform", "look-up"), ("overwrite", "overwrite")):
            row = of(result, ranges, case)
            if "svmcore" in row and "sortedcontainers" in row:
                own = row["svmcore"]
                others = ", ".join(
                    f"{name} takes {times(row[name] / own)} times that"
                    for name in ("sortedcontainers", "BTrees", "intervaltree")
                    if name in row
                )
                head = f"- {ranges:,} ranges, one {word} from Python: {number(own)} ns;"
                lines.append(f"{head} {others}.")
    for item in result["goals"]:
        if item["case"].startswith("whole fault in replay") and item["reached"] is not None:
            lines.append(f"- {item['case']}: {number(item['reached'])} million faults/s.")
    return lines


def flat(result: dict[str, Any]) -> list[str]:
    lines = [
        "Ranges have an identity and attributes; if all you need is one byte for every page of",
        "a small address space, an array of bytes is faster to read, and a batch in NumPy far",
        "faster. It costs memory by address space, not by ranges (2.4 TiB of addresses are",
        "640 MB), and a change costs by its pages.",
        "",
    ]
    rows = []
    for ranges in map(int, result["tables"]["sizes"]):
        for case in ("batch, uniform", "batch, sequential", "find, uniform", "overwrite"):
            row = of(result, ranges, case)
            cells = [row.get(n) for n in ("svmcore", "numpy, flat pages", "bytearray, flat pages")]
            if cells[0] is None or cells[1] is None:
                continue
            best = min(cell for cell in cells if cell is not None)
            rows.append(
                [
                    f"{ranges:,}",
                    case,
                    *(f"**{number(cell)}**" if cell == best else number(cell) for cell in cells),
                ]
            )
    head = ["ranges", "ns an operation", "svmcore", "NumPy, flat", "bytearray, flat"]
    return lines + table(head, rows, left=2)


def goals_page(result: dict[str, Any]) -> str:
    rows = [
        [
            item["goal"],
            item["case"],
            sized(item["reached"], item["unit"]),
            bar_of(item),
            goals.verdict(item).lower(),
            item["note"] or "",
        ]
        for item in result["goals"]
    ]
    lines = [
        NOTE,
        "# Goals",
        "",
        "Ratios within one run: the cases take turns, svmcore first and last, and the least of",
        "at least five rounds counts, in the thread's own processor time. Structures are held",
        "equal first: look-ups, ranges, and the hash of the state after overwrites and holes;",
        "faults against the windows that they must move and against a model in plain Python.",
        "`bar` marks the figures that the engine has to reach, `told` a figure without a goal.",
        "",
        f"Measured on: {named(result['machine'])}",
        "",
        "A fault here is delivered once by the driver's rules: its range and attributes, the",
        "window, the best location, residency masks, counters and a 40-byte outcome. Ranges are",
        "1 to 1023 pages long and registered by `set_attr` in address order. In *all move* each",
        "fault moves its window: between passes the CPU touches the pages, untimed, and the",
        "clock moves on by 10 ms. In *mix* half of the ranges have their pages on the GPU",
        "already and 20 % give it no access.",
        "",
        *table(["goal", "case", "reached", "goal is", "", "note"], rows, left=2),
        "",
        "    python bench/rivals.py --goals",
    ]
    return "\n".join(lines) + "\n"


def rivals_page(result: dict[str, Any]) -> str:
    lines = [
        NOTE,
        "# Rivals",
        "",
        "ns an operation, the least of at least five rounds in turns; in brackets how many times",
        "svmcore's. Ranges are 1 to 31 pages long, a gap follows after a quarter of them;",
        "overwrites are 1 to 7 pages anywhere. A structure that cannot change is timed on look-ups",
        "only; one that would take minutes or gigabytes at a size is left out there.",
        "",
        f"Measured on: {named(result['tables']['machine'])}",
    ]
    sizes = list(result["tables"]["sizes"])
    cases = list(dict.fromkeys(case for size in sizes for case in result["tables"]["sizes"][size]))
    for case in cases:
        names = list(dict.fromkeys(name for size in sizes for name in of(result, int(size), case)))
        rows = []
        for name in names:
            cells = []
            for size in sizes:
                row = of(result, int(size), case)
                ns, own = row.get(name), row.get("svmcore")
                if ns is None or own is None:
                    cells.append("-" if ns is None else number(ns))
                else:
                    cells.append(
                        number(ns) + ("" if name == "svmcore" else f" ({times(ns / own)}x)")
                    )
            rows.append([name, *cells])
        lines += ["", f"## {case[0].upper()}{case[1:]}", ""]
        lines += table(["", *(f"{int(size):,} ranges" for size in sizes)], rows)
    missing = result["tables"]["missing"]
    if missing:
        lines += ["", f"Not installed in this run: {', '.join(missing)}."]
    lines += [
        "",
        "`superintervals` holds 32-bit coordinates: page numbers from zero, never addresses.",
        "",
        "    python bench/rivals.py",
    ]
    return "\n".join(lines) + "\n"
