"""`nvrx` of a history that cannot be read, in part or at all: said, and no internal error."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.nvrx_cli import nvrx

from nvrx_async.job.codec import encode
from nvrx_async.job.records import (
    Assignment,
    End,
    EndedBy,
    FaultKind,
    Level,
    Node,
    Phase,
    Process,
    RankEnd,
    Root,
    Round,
    Seat,
)
from nvrx_launcher.ctl import past

NOWHERE = "127.0.0.1:1"
NODE = Node("n0", "1", "host-a", "127.0.0.1", 2, Process("boot", "pid:[1]", 1, 1), "2026-01-01T00:00:00.000Z")
REGISTERED = b'{"record":"registered","attempt":0,' + encode(NODE)[1:] + b"\n"


def history(log_dir: Path, run_id: str, content: bytes) -> Path:
    folder = log_dir / run_id
    folder.mkdir(parents=True)
    (folder / "history.jsonl").write_bytes(content)
    return folder / "history.jsonl"


def test_lines_that_could_not_be_read_are_told_of(tmp_path: Path) -> None:
    history(tmp_path, "llama", REGISTERED + b'{"record":"outco')
    told = nvrx("status", "llama", "--log-dir", str(tmp_path), etcd=NOWHERE)
    assert (told.code, "one of its lines could not be read" in told.err, "llama" in told.out) == (
        3,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "it is empty"), (REGISTERED.replace(b'"schema":1', b'"schema":99'), "another version")],
)
def test_a_history_that_tells_nothing_is_no_job(tmp_path: Path, content: bytes, says: str) -> None:
    history(tmp_path, "llama", content)

    def asked(verb: str) -> tuple[str, int, str, bool, bool]:
        told = nvrx(verb, "llama", "--log-dir", str(tmp_path), etcd=NOWHERE)
        return verb, told.code, told.out, "tells nothing of job llama" in told.err, says in told.err

    verbs = ["status", "why", "events", "rounds", "trace"]
    with ThreadPoolExecutor() as each:  # at once, since each waits for the etcd that is not there
        assert list(each.map(asked, verbs)) == [(verb, 3, "", True, True) for verb in verbs]


def test_an_outage_is_told_though_a_restart_was_before_it(tmp_path: Path) -> None:
    end = End(
        0, Root(FaultKind.EXCEPTION, "rank 0 raised"), Level.IN_JOB, "restart 1", "2026-01-01T00:01:00.000Z"
    )
    following = Round(1, Phase.RUNNING, "2026-01-01T00:01:01.000Z", "2026-01-01T00:01:02.000Z", "t1")
    away = b'{"record":"outage","away":true,"at_utc":"2026-01-01T00:02:00.000Z","sentence":"etcd does not answer; x"}'
    told = (
        b'{"record":"end",' + encode(end)[1:],
        b'{"record":"round","attempt":0,' + encode(following)[1:],
        away,
    )
    history(tmp_path, "llama", REGISTERED + b"\n".join(told))
    lines = nvrx("why", "llama", "--log-dir", str(tmp_path), etcd=NOWHERE).lines
    assert [line.split(maxsplit=1) for line in lines[1:3]] == [
        ["now", "etcd does not answer; x"],
        ["cause", "rank 0 raised"],
    ]
    assert "does not answer" not in nvrx("why", "llama", "0", "--log-dir", str(tmp_path), etcd=NOWHERE).out


def test_of_one_nodes_history_it_is_told_that_it_is_one_nodes(tmp_path: Path) -> None:
    seated = Assignment(0, Seat("n0", "1", "host-a", 0, 0, 2), 4, 2, "10.0.0.1", 29500)
    stopped = RankEnd(0, 0, 7, FaultKind.STOPPED_BY_US, EndedBy.US)
    end = End(
        0, Root(FaultKind.EXCEPTION, "rank 3 raised"), Level.IN_JOB, "restart 1", "2026-01-01T00:01:00.000Z"
    )
    told = (
        b'{"record":"assignment",' + encode(seated)[1:],
        b'{"record":"rank_end","round":0,' + encode(stopped)[1:],
        b'{"record":"end",' + encode(end)[1:],
    )
    history(tmp_path, "llama", REGISTERED + b"\n".join(told))
    err = nvrx("why", "llama", "--log-dir", str(tmp_path), etcd=NOWHERE).err
    assert "of 2 nodes' ranks it knows how those of n0 ended" in err, err


def test_what_cannot_be_read_hides_no_other_job(tmp_path: Path) -> None:
    history(tmp_path, "llama", REGISTERED)
    (tmp_path / "folder" / "history.jsonl").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "history.jsonl")
    told = nvrx("ps", "--log-dir", str(tmp_path), etcd=NOWHERE)
    assert (told.code, [line.split()[0] for line in told.lines]) == (3, ["JOB", "llama"])


def test_somebody_elses_history_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = history(tmp_path, "theirs", REGISTERED)
    history(tmp_path, "llama", REGISTERED)
    opened = Path.is_file

    def refusing(path: Path) -> bool:
        if path == theirs:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path)

    monkeypatch.setattr(Path, "is_file", refusing)  # the superuser, as whom tests run, may read all
    assert [one.run_id for one in past._read_all(tmp_path)] == ["llama"]
    assert f"{theirs} cannot be read: Permission denied" in capsys.readouterr().err
