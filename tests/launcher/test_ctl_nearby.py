"""`--log-dir` that is a folder too high, too low, or another job's: what to type instead."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.nvrx_cli import Answer, nvrx

from nvrx_async.job.codec import encode
from nvrx_async.job.records import Node, Process
from nvrx_launcher.ctl.nearby import hint_for, job_of

NOWHERE = "127.0.0.1:1"
WHY = ["why", "{job}", "2"]


def job(log_dir: Path, run_id: str, lines: int = 1) -> Path:
    folder = log_dir / run_id
    (folder / "attempt_0" / "round_0").mkdir(parents=True)
    process = Process("boot", "pid:[1]", 1, 1, f"{run_id}/0123")
    node = encode(Node("n0", "1", "host-a", "127.0.0.1", 2, process, "2026-01-01T00:00:00.000Z"))
    line = b'{"record":"registered","attempt":0,' + node[1:] + b"\n"
    (folder / "history.jsonl").write_bytes(line + b"{}\n" * lines)
    return folder


def test_a_folder_of_nodes_names_the_one_that_knows_most(tmp_path: Path) -> None:
    for name, lines in (("n0", 3), ("n 1", 9), ("n2", 4)):
        job(tmp_path / name, "llama", lines)
    hint = hint_for(tmp_path, "llama", WHY)
    assert (
        f"lie in 3 of its folders: nvrx why llama 2 --log-dir {shlex.quote(str(tmp_path / 'n 1'))}, " in hint
    )
    assert hint.endswith("(also n2, n0)")


def test_a_folder_of_other_jobs_names_the_nearest(tmp_path: Path) -> None:
    job(tmp_path, "llama-7b")
    job(tmp_path, "mixtral")
    hint = hint_for(tmp_path, "llama-7", WHY)
    assert hint == f"it holds jobs llama-7b, mixtral: nvrx why llama-7b 2 --log-dir {tmp_path}"


def test_a_folder_within_a_jobs_names_the_job(tmp_path: Path) -> None:
    folder = job(tmp_path, "llama")
    for inside in (folder / "attempt_0", folder / "attempt_0" / "round_0"):
        hint = hint_for(inside, "llama", WHY)
        assert hint == f"it lies in the folder of job llama: nvrx why llama 2 --log-dir {tmp_path}"


def test_another_jobs_folder_is_named_as_that(tmp_path: Path) -> None:
    folder = job(tmp_path, "llama").rename(tmp_path / "archive")
    assert job_of(folder) == "llama"
    assert f"nvrx why llama 2 --log-dir {folder}" in hint_for(folder, "mixtral", WHY)


def test_nothing_is_said_where_nothing_is_near(tmp_path: Path) -> None:
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    assert hint_for(tmp_path, "llama", WHY) == hint_for(tmp_path / "none", "llama", WHY) == ""


def test_the_command_that_is_named_works(tmp_path: Path) -> None:
    job(tmp_path / "n0", "llama")
    log = tmp_path / "n0" / "llama" / "attempt_0" / "round_0" / "rank_0" / "stdout.log"
    log.parent.mkdir()
    log.write_text("step 1\n")
    asked = ["rounds llama", "ps", "logs llama"]
    named = [f"nvrx {words} --log-dir {tmp_path / 'n0'}" for words in asked]
    with ThreadPoolExecutor() as each:  # at once, since each waits for the etcd that is not there
        for typed, told in zip(named, each.map(tell, asked, [tmp_path] * 3), strict=True):
            assert (told.code != 0, told.out) == (True, "")
            assert typed in told.err
        for words, told in zip(asked, each.map(tell, asked, [tmp_path / "n0"] * 3), strict=True):
            assert told.out, words


def tell(words: str, folder: Path) -> Answer:
    return nvrx(*words.split(), "--log-dir", str(folder), etcd=NOWHERE)


def test_a_history_of_another_job_is_not_told_as_this_ones(tmp_path: Path) -> None:
    folder = job(tmp_path, "llama")
    told = nvrx("status", "mixtral", "--log-dir", str(folder), etcd=NOWHERE)
    assert (told.code, told.out) == (3, "")
    assert f"it is the folder of job llama: nvrx status llama --log-dir {tmp_path}" in told.err
