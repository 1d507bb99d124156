"""Cases of users, rows 32 to 50 of the project's collection: processes, signals, exits. What other files hold is not
here."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stage import Stage

TWO_RANKS = ("--nproc-per-node", "2")
DEAF = "trap : TERM; echo deaf; while :; do sleep 3600; done"
EMBEDS = """
import sys, threading
from nvrx_launcher.launch_cli import main
codes = []
thread = threading.Thread(target=lambda: codes.append(main(sys.argv[1:])))
thread.start()
thread.join()
sys.exit(codes[0])
"""
SAYS_ITS_SIZE = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH, signal.SIGUSR1})
print("size", *os.get_terminal_size(1), flush=True)
while signal.sigwait({signal.SIGWINCH, signal.SIGUSR1}) == signal.SIGWINCH:
    print("size", *os.get_terminal_size(1), *os.get_terminal_size(2), flush=True)
"""
IGNORES = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\nsignal.pause()\n"
FREEZER = Path("/sys/fs/cgroup/freezer")


def script(on: Stage, text: str, name: str = "train.py") -> str:
    path = on.folder / name
    path.write_text(text)
    return str(path)


def ends_of(on: Stage) -> list[dict[str, object]]:
    kept = (on.folder / "logs" / on.run_id / "history.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, kept) if record["record"] == "rank_end"]


def test_39_off_the_main_thread_a_job_runs_restarts_and_warns_once(job: Stage) -> None:
    options = ("--rdzv-endpoint", job.endpoint or "", "--rdzv-id", job.run_id, "--nnodes", "1", *TWO_RANKS)
    logs = ("--log-dir", str(job.folder / "logs"), "--max-restarts", "1")
    agent = job.start(sys.executable, script(job, EMBEDS, "embeds.py"), *options, *logs, *job.ranks())
    os.kill(job.up(0, 2)[1].pid, signal.SIGKILL)
    job.finish(job.up(1, 2))
    assert agent.ends() == 0, job.told()
    assert agent.text.count("warning:") == 1, agent.text
    assert agent.said("warning: started outside the main thread: signals are not handled here")


def test_34_the_grace_follows_the_schedulers_and_counts_down(job: Stage) -> None:
    environment = {"NVRX_TERMINATION_GRACE_S": "12"}
    agent = job.launch("sh", "-c", DEAF, options=("--no-python",), environment=environment)
    agent.says("deaf")
    agent.signal(signal.SIGTERM)
    agent.says("SIGTERM: stopping; ranks have 7 s")
    agent.says(r"rank 0 still runs after SIGTERM, SIGKILL in \d")
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 143, job.told()


def test_34_the_grace_is_no_longer_than_the_allocation(job: Stage) -> None:
    environment = {"SLURM_JOB_END_TIME": str(int(time.time()) + 300)}
    options = ("--no-python", "--workers-stop-timeout", "600")
    agent = job.launch("sh", "-c", DEAF, options=options, environment=environment)
    agent.says("deaf")
    agent.signal(signal.SIGTERM)
    agent.says(r"SIGTERM: stopping; ranks have 2[0-9]{2}(\.\d)? s")
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 143, job.told()


def test_35_helpers_of_a_rank_are_gone_before_the_next_start_also_those_of_another_session(
    job: Stage,
) -> None:
    program = job.ranks("--offspring", "--fail", "sigkill", "--fail-rank", "1", "--fail-always")
    agent = job.launch(*program, options=(*TWO_RANKS, "--max-restarts", "3"))
    for number in range(1, 4):
        job.up(number, 1)
        helpers = [one.pid for one in job.news if one.word == "grandchild" and one.round < number]
        assert len(helpers) >= number
        assert not any(job.watch(pid).alive for pid in helpers), job.told()
    assert agent.ends() == 1, job.told()
    assert job.left() == []


def test_43_what_ignores_sigterm_is_gone_before_slurm_would_drain_the_node(job: Stage) -> None:
    agent = job.launch(script(job, IGNORES), options=TWO_RANKS)
    agent.says("deaf")
    its = [job.watch(pid) for pid in agent.processes()]
    assert len(its) == 4, "agent, keeper, ranks"
    agent.signal(signal.SIGTERM)
    job.all_gone(its, 25.0)
    assert agent.ends() == 143, job.told()


@pytest.mark.soak
@pytest.mark.timeout(90)
def test_43_what_clings_is_gone_too_with_the_default_grace(job: Stage) -> None:
    agent = job.launch("sh", "-c", DEAF, options=("--no-python", *TWO_RANKS))
    agent.says("deaf")
    its = [job.watch(pid) for pid in agent.processes()]
    agent.signal(signal.SIGTERM)
    job.all_gone(its, 25.0)
    assert agent.ends() == 143, job.told()


def test_45_a_failure_waits_for_nobody(job: Stage) -> None:
    """The other node has finished and waits; a failure ends it at once, with the same verdict."""
    early = job.launch(*job.ranks(), node="n0", options=("--nnodes", "2"))
    late = job.launch(*job.ranks(), node="n1", options=("--nnodes", "2"))
    ranks = {one.node: one for one in job.up(0, 2)}
    with job.etcd.next_change(f"/nvrx/v1/{job.run_id}/0/rounds/0/done/") as done:
        job.finish([ranks["n0"]])
        done()
    os.kill(ranks["n1"].pid, signal.SIGKILL)
    assert (early.ends(), late.ends()) == (1, 1), job.told()
    for agent in (early, late):
        assert "rank 1" in agent.text.rpartition(f"job {job.run_id} failed")[2], agent.text


def test_48_a_rank_that_leaves_while_others_train_is_reported_and_fails_the_round_where_one_wants_it(
    job: Stage,
) -> None:
    agent = job.launch(options=(*TWO_RANKS, "--early-exit-limit", "1"))
    job.finish(job.up(0, 2)[1:])
    agent.says(r"warning: rank 1 finished 1\.0 s ago, rank 0 still runs here")
    assert agent.ends() == 1, job.told()
    assert agent.said(r"rank 0 on \S+ still ran 1\.0 s after rank 1 had exited with 0"), agent.text


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_45_who_has_finished_waits_as_long_as_the_others_run(job: Stage) -> None:
    """V14 in real time."""
    early, late = (job.launch(node=f"n{number}", options=("--nnodes", "2")) for number in range(2))
    ranks = {one.node: one for one in job.up(0, 2)}
    job.finish([ranks["n0"]])
    job.for_a_while(60)
    job.finish([ranks["n1"]])
    assert (early.ends(), late.ends()) == (0, 0), job.told()
    assert "rror" not in early.text + late.text


def test_46_the_report_is_the_last_on_the_screen_and_in_a_file(job: Stage) -> None:
    """Ranks that shout until they are killed come before it."""
    shouts = (
        "import os, sys, time\nrank = os.environ['RANK']\nif rank == '0':\n"
        " while True: print('noise', flush=True)\n"
        "sys.stdin = open(sys.argv[1]); sys.stdin.readline()\nraise ValueError('bad shard')\n"
    )
    go = job.folder / "go"
    os.mkfifo(go)
    agent = job.launch(script(job, shouts), str(go), options=TWO_RANKS)
    agent.says("noise")
    go.write_text("\n")
    assert agent.ends() == 1, job.told()
    last = agent.text.splitlines()[-20:]
    report = "\n".join(last).rpartition(f"job {job.run_id} failed")[2]
    kept = (job.folder / "logs" / job.run_id / "summary.txt").read_text()
    for place in (report, kept):
        assert "ValueError: bad shard" in place
        assert "rank 1" in place
        assert "noise" not in place


def test_a_second_ctrl_c_still_ends_with_a_summary(job: Stage) -> None:
    agent = job.launch("sh", "-c", DEAF, options=("--no-python", "--workers-stop-timeout", "600"))
    agent.says("deaf")
    agent.signal(signal.SIGINT)
    agent.says("stopping; ranks have 600 s")
    agent.signal(signal.SIGINT)
    agent.says("SIGINT again: killing the ranks")
    for impatient in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):
        agent.signal(impatient)  # changes nothing any more, least of all the report
    assert agent.ends() == 130, job.told()
    assert "Traceback" not in agent.text
    _, closing, summary = agent.text.rpartition(f"job {job.run_id} cancelled: ended on this node by SIGINT")
    assert closing, agent.text
    assert "(exit code 130)" in summary
    assert "logs " in summary
    assert (job.folder / "logs" / job.run_id / "summary.txt").read_text().count(
        "cancelled: ended on this node"
    ) == 1


def test_a_rank_that_kills_itself_is_not_said_to_have_been_killed_by_somebody_else(job: Stage) -> None:
    agent = job.launch(*job.ranks("--fail", "sigkill", "--fail-rank", "0"))
    assert agent.ends() == 1, job.told()
    assert agent.said(r"rank 0 on \S+ was killed by SIGKILL \(not sent by nvrx-launch\)")
    assert "somebody" not in agent.text
    assert "someone" not in agent.text


@pytest.mark.parametrize("spelled", ["--rdzv-id", "--rdzv_id"])
def test_an_empty_name_is_refused(alone: Stage, spelled: str) -> None:
    agent = alone.run(spelled, "", *alone.ranks())
    assert agent.ends() == 2, alone.told()
    assert agent.said(f"^error: {spelled} is empty$")


def test_a_terminal_that_changes_its_size_changes_the_ranks_too(job: Stage) -> None:
    reader, writer = pty.openpty()
    resize(writer, 30, 100)
    arguments = ["--log-dir", str(job.folder / "logs"), script(job, SAYS_ITS_SIZE)]
    with subprocess.Popen(
        [sys.executable, "-m", "nvrx_launcher", *arguments],
        stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, cwd=job.folder, start_new_session=True,
    ) as agent:  # fmt: skip
        os.close(writer)
        try:
            read_until(reader, b"size 100 30\r\n")
            resize(reader, 40, 132)
            agent.send_signal(signal.SIGWINCH)  # as the kernel does where the terminal controls the session
            read_until(reader, b"size 132 40 132 40\r\n")
            agent.send_signal(signal.SIGUSR1)
            assert agent.wait(30) == 0
        finally:
            agent.kill()
            os.close(reader)


def resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(reader: int, awaited: bytes) -> None:
    text = b""
    while awaited not in text:
        assert select.select([reader], [], [], 30)[0], (
            f"not seen: {awaited!r} in {text.decode(errors='replace')}"
        )
        text += os.read(reader, 1 << 16)


@pytest.fixture
def frozen() -> Iterator[Path]:
    """A cgroup whose processes no signal ends, which stands for a rank in a driver that never answers."""
    group = FREEZER / f"nvrx-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer of version 1 here: {error}")
    try:
        yield group
    finally:
        thaw(group)
        group.rmdir()


def thaw(group: Path) -> None:
    (group / "freezer.state").write_text("THAWED")


@pytest.mark.soak
def test_38_a_rank_that_no_signal_ends_makes_its_node_unfit_and_the_others_go_on(
    job: Stage, frozen: Path
) -> None:
    """The keeper's side of it, in short, is in tests/launcher/test_keeper.py, the other nodes' in tests/rounds."""
    options = ("--nnodes", "1:2", *TWO_RANKS, "--max-restarts", "2", "--workers-stop-timeout", "1")
    agents = {name: job.launch(node=name, options=options) for name in ("n0", "n1")}
    ranks = job.up(0, 4)
    stuck = next(one for one in ranks if one.node == "n1")
    (frozen / "cgroup.procs").write_text(str(stuck.pid))
    (frozen / "freezer.state").write_text("FROZEN")
    held = job.watch(stuck.pid)
    try:
        os.kill(next(one for one in ranks if one.node == "n0").pid, signal.SIGKILL)
        agents["n1"].says(r"rank \d still runs \d\.\d s after it should have been killed")
        agents["n1"].says(r"a process of local rank \d outlives SIGKILL: this node joins no more")
        alone = job.up(1, 2)
        assert {one.node for one in alone} == {"n0"}
        assert held.alive
        job.finish(alone)
        assert agents["n0"].ends() == 0, job.told()
    finally:
        thaw(frozen)
    job.all_gone([held], 5.0)
    assert agents["n1"].ends() is not None
