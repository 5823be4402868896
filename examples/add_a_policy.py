"""A policy in one file: pages come to a GPU only when it touches them a second time.

Run the demo under it and under always_migrate, from any folder:

    python examples/add_a_policy.py

The decorator makes the policy known where this file is imported. An installed package makes its
policies known everywhere, with a line in its pyproject.toml:

    [project.entry-points."svmcore.policies"]
    second_touch = "my_package.my_module:SecondTouch"
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import svmcore
from svmcore.policies.actions import Fault, Map, Mark, Move, Unmap
from svmcore.policies.base import register
from svmcore.policies.paged import Action, Paged


@register("second_touch")
@dataclass(frozen=True)
class SecondTouch(Paged):
    """The first faults read over the link, a page at a time; then the window moves.

    Parameters
    ----------
    patience : int
        Faults in a window that are served over the link.
    """

    patience: int = 1

    def service(self, view: Any, batch: Sequence[Fault]) -> Iterable[Action]:
        """The mark of a window counts its faults."""
        for fault in batch:
            start, size = view.window(fault.addr)
            seen = view.mark(fault.addr)
            if view.where(fault.addr) > 0 and view.reaches(fault.by, view.where(fault.addr)):
                yield Map(start, size, fault.by)
            elif fault.by and seen < self.patience:
                yield Mark(start, size, seen + 1)
                yield Map(fault.addr, 4096, fault.by)
            else:
                yield Unmap(start, size, fault.by)
                yield Move(start, size, fault.by)
                yield Map(start, size, fault.by)


def main() -> None:
    """Faults, bytes and modelled time of the demo."""
    demo = resources.files("svmcore") / "data" / "demo.csv.gz"
    with resources.as_file(demo) as path:
        trace = svmcore.open_trace(path)
        for policy in ("always_migrate", "second_touch(granularity=4)", "second_touch(patience=0)"):
            result = svmcore.replay(trace, svmcore.Space("gpu-80g", policy=policy))
            count = result.counters
            print(
                f"{policy:28} {count['faults']:6} faults {count['bytes_to_device'] >> 20:5} MiB "
                f"{result.time_ns / 1e6:9.3f} ms modelled"
            )


if __name__ == "__main__":
    main()
