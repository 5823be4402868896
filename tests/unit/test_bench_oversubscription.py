"""The command behind docs/performance/oversubscription.md, at a tiny size."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def command():
    spec = importlib.util.spec_from_file_location(
        "oversubscription", ROOT / "bench" / "oversubscription.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_table_of_policies_and_shares(capsys):
    trace = ROOT / "tests" / "data" / "traces" / "workload.csv"
    names = ["kfd", "never_migrate", "always_migrate(eviction=mru)"]
    assert command().main([str(trace), "--policies", *names, "--shares", "50", "200"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    assert [(row[0].strip(), row[1].strip()) for row in table[2:]] == [
        (name, share) for name in names for share in ("50", "200")
    ]
    assert {len(line) for line in lines if line.startswith("|")} == {len(lines[4])}
    evictions = {(row[0].strip(), row[1].strip()): row[5].strip() for row in table[2:]}
    assert evictions["kfd", "200"] == evictions["never_migrate", "50"] == "0"


def test_the_footprint_is_in_whole_blocks():
    module = command()

    class Two:
        def mappings(self):
            from svmcore.traces.base import Mapping

            return [Mapping(1 << 30, 4096, "a"), Mapping((1 << 30) + 8192, 2 << 20, "b")]

    assert module.footprint(Two()) == 4 << 20
