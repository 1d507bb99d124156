"""TORCHELASTIC_ERROR_FILE: what torch's own `record` writes is read, and what is written torch can read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nvrx_async.job.records import EndedBy, FaultKind, Outcome, PythonError, RankEnd, Root
from nvrx_launcher.reply_file import MESSAGE_CHARS, recorded_error, write_reply

RAISES = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError("no such shard\\nas this")

main()
"""


def test_what_record_writes_is_read(tmp_path: Path) -> None:
    script, reply = tmp_path / "train.py", tmp_path / "error.json"
    script.write_text(RAISES)
    done = subprocess.run(
        [sys.executable, str(script)], env={"TORCHELASTIC_ERROR_FILE": str(reply)}, stderr=subprocess.DEVNULL,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert recorded_error(reply) == PythonError(
        "ValueError", "no such shard\nas this", str(script), 6, "main"
    )


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ('{"message": "CudaError: out of it"}', PythonError("CudaError", "out of it")),
        ('{"message": {"message": "just words"}}', PythonError("Error", "just words")),
        ('{"message": {"message": "ValueError: x", "extraInfo": null}}', PythonError("ValueError", "x")),
        ('{"message": ""}', None),
        ('{"mess', None),
        ("[1]", None),
        ('{"message": 3}', None),
        ("[" * 100_000, None),
    ],
)
def test_other_makers_files(tmp_path: Path, written: str, error: PythonError | None) -> None:
    (tmp_path / "error.json").write_text(written)
    assert recorded_error(tmp_path / "error.json") == error


@pytest.mark.parametrize("message", ["x" * 900_000, "ValueError: " + "x" * 900_000])
def test_a_message_is_cut_before_it_makes_a_report_too_large_for_etcd(tmp_path: Path, message: str) -> None:
    (tmp_path / "error.json").write_text(json.dumps({"message": message}))
    error = recorded_error(tmp_path / "error.json")
    assert error is not None
    assert len(error.message) <= MESSAGE_CHARS
    assert error.message.endswith("x…")


def test_no_file_is_the_usual_case(tmp_path: Path) -> None:
    assert recorded_error(tmp_path / "none") is None


def test_the_agents_own_file_is_what_torch_reads(tmp_path: Path) -> None:
    error = PythonError("ValueError", "no such shard", "train.py", 6, "main")
    end = RankEnd(3, 1, 77, FaultKind.EXCEPTION, EndedBy.ITSELF, exit_code=1, error=error)
    root = Root(FaultKind.EXCEPTION, "rank 3 raised", end=end)
    path = tmp_path / "reply.json"
    outcome = Outcome(
        success=False, exit_code=1, reason="it failed", round=0, decided_utc="2026-01-01T00:00:00Z", root=root
    )
    write_reply(path, outcome, 1700000000.5)
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "ValueError: no such shard"
    assert message["extraInfo"]["timestamp"] == "1700000000"
    assert message["errorCode"] == 1
    assert recorded_error(path) == error
