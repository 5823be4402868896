"""Workload traces at a part of their footprint, under every policy: faults, bytes, modelled time.

    python bench/oversubscription.py            # a table for each trace
    python bench/oversubscription.py --docs     # and docs/performance/oversubscription.md

The traces lie beside the repository, in ``../shared/data/workloads``; name others on the
command line. One GPU of ``h200``, whose memory is the given share of the trace's footprint
(whole 2 MiB blocks). A policy is a name, with parameters in brackets where it has some.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import svmcore
from svmcore.policies.base import policy_names

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ROOT.parent / "shared" / "data" / "workloads"
TRACES = ("gpt_train_3steps.csv.gz", "pagerank_10iters.csv.gz")
PAGE = ROOT / "docs" / "performance" / "oversubscription.md"
SHARES = (25, 50, 75, 100, 150)
BLOCK = 2 << 20
#: Policies with another order of eviction, beside each one's own.
VARIANTS = (
    "kfd(eviction=lru)",
    "always_migrate(eviction=mru)",
    "always_migrate(eviction=random)",
    "uvm(eviction=lru)",
)
#: They do what always_migrate does, on one GPU and without advice.
ALIKE = ("advised", "migrate_once_then_pin")
HEAD = ("policy", "memory %", "faults", "to device GiB", "to host GiB", "evictions", "modelled ms")


def footprint(trace: svmcore.traces.Trace) -> int:
    """Bytes of the trace's mappings in whole 2 MiB blocks."""
    blocks: set[int] = set()
    for mapping in trace.mappings():
        blocks.update(
            range(mapping.start // BLOCK, (mapping.start + mapping.size - 1) // BLOCK + 1)
        )
    return len(blocks) * BLOCK


def rows(
    trace: svmcore.traces.Trace, policies: list[str], shares: tuple[int, ...]
) -> list[list[str]]:
    """One row a policy and share."""
    whole, found = footprint(trace), []
    machine = svmcore.Machine.preset("h200")
    for policy in policies:
        for share in shares:
            size = max(1, whole * share // 100 // BLOCK) * BLOCK
            space = svmcore.Space(machine.with_capacity({"gpu0": size}), policy=policy)
            result = svmcore.replay(trace, space)
            count = result.counters
            found.append(
                [
                    policy,
                    str(share),
                    f"{count['faults']:,}",
                    f"{count['bytes_to_device'] / 2**30:.2f}",
                    f"{count['bytes_to_host'] / 2**30:.2f}",
                    f"{count['evictions']:,}",
                    f"{result.time_ns / 1e6:,.1f}",
                ]
            )
    return found


def table(found: list[list[str]]) -> list[str]:
    """The rows as a table of Markdown, columns in line."""
    cells = [list(HEAD), *found]
    width = [max(len(row[k]) for row in cells) for k in range(len(HEAD))]

    def line(row: list[str]) -> str:
        named = row[0].ljust(width[0])
        rest = (cell.rjust(w) for cell, w in zip(row[1:], width[1:], strict=True))
        return f"| {' | '.join([named, *rest])} |"

    rule = ["-" * width[0], *("-" * (w - 1) + ":" for w in width[1:])]
    return [line(cells[0]), f"| {' | '.join(rule)} |", *map(line, found)]


TEXT = """\
<!-- Made by `python bench/oversubscription.py --docs`; do not edit. -->

# When memory is short

Two recorded workloads with 25 to 150 percent of their footprint as device memory, on one GPU of
`h200`. Times are modelled and rest on assumed constants, see [Machines](../reference/machines.md):
trust faults and bytes first. `advised` and `migrate_once_then_pin` do the same as `always_migrate`
on one GPU without advice. How victims are chosen is told in [Eviction](../explain/eviction.md).

```bash
python bench/oversubscription.py
```

"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="*", type=Path, help="default: the recorded workloads")
    parser.add_argument("--policies", nargs="+", help="default: all that differ, and variants")
    parser.add_argument("--shares", nargs="+", type=int, default=SHARES, metavar="PERCENT")
    parser.add_argument("--docs", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(argv)
    known = [name for name in policy_names() if name not in ALIKE]
    policies = options.policies or [*known, *VARIANTS]
    started = time.perf_counter()
    parts: list[str] = []
    for path in options.traces or [WORKLOADS / name for name in TRACES]:
        trace = svmcore.open_trace(path)
        part = [
            f"## {path.name.partition('.')[0]}",
            "",
            f"Footprint {footprint(trace) / 2**30:.2f} GiB.",
            "",
            *table(rows(trace, policies, tuple(options.shares))),
            "",
        ]
        print("\n".join(part))
        parts += part
    if options.docs:
        PAGE.write_text(TEXT + "\n".join(parts), "utf-8")
    print(f"{time.perf_counter() - started:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
