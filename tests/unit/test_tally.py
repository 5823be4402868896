"""The compiled sums by buffer against plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svmcore._replay import OUTCOME
from svmcore._tally import first_stranger, tally
from svmcore.errors import InvalidArgumentError
from svmcore.records import RECORD, UNKNOWN
from svmcore.result import BUFFER

TOP = 1 << 64


def expected(records, out, table):
    table = table.copy()
    for record, done in zip(records, out, strict=True):
        addr, size = int(record["addr"]), int(record["size"]) or 1
        below = [i for i, row in enumerate(table) if int(row["start"]) <= addr]
        if record["kind"] > 1 or not below:
            continue
        row = table[below[-1]]
        if addr - int(row["start"]) >= int(row["size"]):
            continue
        row["records"] += 1
        row["pages"] += ((addr + size - 1) >> 12) - (addr >> 12) + 1
        row["faults"] += done["faults"]
        row["moved_pages"] += done["moved"]
        row["remote_pages"] += done["remote"]
        row["errors"] += done["code"] != 0
    return table


def chunk(n, seed, limit):
    rng = np.random.default_rng(seed)
    records, out = np.zeros(n, RECORD), np.zeros(n, OUTCOME)
    records["addr"] = rng.integers(0, limit, n)
    records["size"] = rng.integers(0, 40_000, n)
    records["kind"] = rng.choice([0, 1, 2, 4, 17], n, p=[0.6, 0.2, 0.1, 0.05, 0.05])
    for name in ("faults", "moved", "remote"):
        out[name] = rng.integers(0, 1 << 32, n)
    out["code"] = rng.choice([0, -14, -22], n)
    return records, out


def table_of(spans):
    table = np.zeros(len(spans), BUFFER)
    for row, (start, size) in zip(table, spans, strict=True):
        row["start"], row["size"] = start, size
    return table


@given(
    spans=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 1 << 18)), max_size=70),
    n=st.integers(0, 150),
    seed=st.integers(0, 1000),
    cut=st.integers(1, 70),
)
def test_sums_are_those_of_plain_python(spans, n, seed, cut):
    table = table_of(sorted(spans))
    records, out = chunk(n, seed, 1 << 20)
    wanted = expected(records, out, table)
    starts = np.ascontiguousarray(table["start"])
    fatal = 0
    for at in range(0, n, cut):
        fatal += tally(records[at : at + cut], out[at : at + cut], starts, table)
    assert fatal == np.count_nonzero(out["code"])
    assert table.tolist() == wanted.tolist()


def test_the_ends_of_the_address_space():
    table = table_of([(0, 4096), (1 << 63, 4096), (TOP - 4096, 4096)])
    records = np.zeros(6, RECORD)
    records["addr"] = [0, 4095, 4096, 1 << 63, TOP - 4096, TOP - 1]
    records["size"] = 1
    out = np.zeros(6, OUTCOME)
    for _ in range(2):
        tally(records, out, np.ascontiguousarray(table["start"]), table)
    assert table["records"].tolist() == [4, 2, 4]


def test_sums_are_exact_beyond_floats():
    table = table_of([(0, TOP - 1)])
    table["pages"] = (1 << 53) + 1
    records = np.zeros(1, RECORD)
    records["size"] = 8192
    tally(records, np.zeros(1, OUTCOME), np.ascontiguousarray(table["start"]), table)
    assert int(table["pages"][0]) == (1 << 53) + 3


def test_lengths_must_fit():
    records, out = chunk(3, 1, 100)
    table = table_of([(0, 1), (5, 1)])
    starts = np.ascontiguousarray(table["start"])
    with pytest.raises(InvalidArgumentError, match="2 outcomes of 3 records"):
        tally(records, out[:2], starts, table)
    with pytest.raises(InvalidArgumentError, match="1 buffers of 2 starts"):
        tally(records, out, starts, table[:1])
    with pytest.raises(ValueError, match="mismatch"):
        tally(out, out, starts, table)


def test_first_stranger():
    records = np.zeros(9, RECORD)
    assert first_stranger(records[:0], 1) == -1
    records["proc"] = [0, 1, 2, UNKNOWN, 3, 3, 2, 64, 3]
    records["kind"] = [0, 1, 1, 0, 17, 2, 1, 0, 0]
    assert first_stranger(records, 2) == 7
    assert first_stranger(records, 1) == 2
    assert first_stranger(records, 64) == -1
    records.flags.writeable = False
    assert first_stranger(records[3:], 2) == 4
