"""Tables of checkpoint transitions: the runner, and every cell by the documented rule."""

import gzip
import json

import pytest

from svmcore.conformance import main, run_file
from svmcore.errors import InvalidArgumentError

STATES = ("RUNNING", "LOCKED", "CHECKPOINTED", "FAILED", "CHECKPOINTING", "RESTORING")
#: The cells that succeed and lead on; asking succeeds everywhere; all others are refused.
MOVES = {
    ("RUNNING", "Lock"): "LOCKED",
    ("LOCKED", "Checkpoint(host)"): "CHECKPOINTED",
    ("LOCKED", "Checkpoint(custom)"): "CHECKPOINTING",
    ("LOCKED", "Unlock"): "RUNNING",
    ("CHECKPOINTED", "Restore(host)"): "LOCKED",
    ("CHECKPOINTED", "Restore(custom)"): "RESTORING",
    ("CHECKPOINTING", "OperationComplete(its handle)"): "CHECKPOINTED",
    ("RESTORING", "OperationComplete(its handle)"): "LOCKED",
}
CALLS = {call: None for _, call in MOVES} | dict.fromkeys(
    ("Lock(timeout reached)", "GetState", "GetRestoreThreadId")
)


def expected(state, call):
    if (state, call) in MOVES:
        return ["CUDA_SUCCESS", MOVES[state, call]]
    if call.startswith("Get"):
        return ["CUDA_SUCCESS", state]
    if call == "OperationComplete(its handle)":
        return ["CUDA_ERROR_INVALID_VALUE", state]
    if (state, call) == ("RUNNING", "Lock(timeout reached)"):
        return ["CUDA_ERROR_NOT_READY", state]
    return ["CUDA_ERROR_ILLEGAL_STATE", state]


def table():
    return {state: {call: expected(state, call) for call in CALLS} for state in STATES}


def run(tmp_path, document):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(document, indent=1))
    return run_file(path)


def test_every_cell(tmp_path):
    report = run(tmp_path, table())
    assert report.details == []
    assert (report.steps, report.mismatches) == (60, 0)


def test_the_shared_table(shared, capsys):
    path = shared / "vectors" / "checkpoint_transitions.json"
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 60 steps, 0 mismatches\n"
    assert json.loads(path.read_text()) == table()


def test_packed(tmp_path):
    path = tmp_path / "table.gz"
    path.write_bytes(gzip.compress(json.dumps(table()).encode()))
    assert run_file(path).steps == 60


@pytest.mark.parametrize("part", [0, 1], ids=["result", "state"])
@pytest.mark.parametrize("state", STATES)
def test_a_changed_cell_is_one_mismatch(tmp_path, state, part):
    for call in CALLS:
        changed = table()
        old = changed[state][call][part]
        changed[state][call][part] = {"CUDA_SUCCESS": "CUDA_ERROR_UNKNOWN"}.get(old, "CUDA_SUCCESS")
        report = run(tmp_path, changed)
        assert (report.steps, report.mismatches) == (60, 1)
        assert f"{state} {call}" in report.details[0]
        assert old in report.details[0]


def test_exit_status_of_a_mismatch(tmp_path, capsys):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"LOCKED": {"Unlock": ["CUDA_SUCCESS", "LOCKED"]}}))
    assert main([str(path)]) == 1
    assert "expected ['CUDA_SUCCESS', 'LOCKED'], got ['CUDA_SUCCESS', 'RUNNING']" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"LOCKED": {"Relock": ["CUDA_SUCCESS", "LOCKED"]}}, "'Relock', expected one of Lock"),
        ({"LOCKED": {"Lock": ["CUDA_SUCCESS"]}}, r"expected \[result, state after\]"),
        ({"LOCKED": {"Lock": 3}}, r"expected \[result, state after\]"),
        ({"LOCKED": []}, "LOCKED: expected calls"),
        ({"ASLEEP": {}}, "expected a vector file"),
        ({}, "expected a vector file"),
        ([], "expected a vector file"),
    ],
)
def test_what_is_no_table(tmp_path, document, word):
    with pytest.raises(InvalidArgumentError, match=word) as caught:
        run(tmp_path, document)
    assert str(tmp_path) in str(caught.value)
