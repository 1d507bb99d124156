"""What people complain about with torchrun; V1 to V18 are its cases by the numbers of the project's collection."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys

import pytest
from support.stage import Stage

TWO_RANKS = ("--nproc-per-node", "2")


def script(on: Stage, text: str) -> str:
    path = on.folder / "train.py"
    path.write_text(text)
    return str(path)


def test_v1_an_import_error_is_not_tried_again_and_again(job: Stage) -> None:
    agent = job.launch(script(job, "import no_such_module"), options=(*TWO_RANKS, "--max-restarts", "3"))
    assert agent.ends() == 93, job.told()
    assert len(set(re.findall(r"round (\d+) runs", agent.text))) <= 2
    assert agent.said("ModuleNotFoundError: No module named 'no_such_module'")


def test_v14_who_has_finished_waits_for_the_others_without_a_word(job: Stage) -> None:
    early, late = (job.launch(node=f"n{number}", options=("--nnodes", "2")) for number in range(2))
    ranks = {one.node: one for one in job.up(0, 2)}
    with job.etcd.next_change(f"/nvrx/v1/{job.run_id}/0/rounds/0/done/") as done:
        job.finish([ranks["n0"]])
        done()
    said = early.text
    job.finish([ranks["n1"]])
    assert (early.ends(), late.ends()) == (0, 0), job.told()
    assert "error" not in said + early.text


def test_v15_several_nodes_need_a_name_for_their_job(alone: Stage) -> None:
    agent = alone.run("--nnodes", "1:2", "--rdzv-endpoint", "127.0.0.1:1", *alone.ranks())
    assert agent.ends() == 2, alone.told()
    assert agent.said("error: several nodes need a name for their job")
    assert agent.said("hint: give the same --rdzv-id NAME on every node")


def test_v16_two_jobs_with_the_same_master_port(alone: Stage) -> None:
    jobs = [
        alone.run("--master-port", "29555", "--rdzv-id", name, "--log-dir", str(alone.folder), *alone.ranks())
        for name in ("a", "b")
    ]
    for name in ("a", "b"):
        alone.finish(alone.up(0, 1, run_id=name))
    assert [one.ends() for one in jobs] == [0, 0], alone.told()


def test_v17_last_lines_without_an_end_are_not_glued(job: Stage) -> None:
    program = ("sh", "-c", 'printf "the end of $RANK"')
    agent = job.launch(*program, options=(*TWO_RANKS, "--no-python", "--tee", "3"))
    assert agent.ends() == 0, job.told()
    for rank in range(2):
        assert agent.said(rf"^\[rank {rank}\] the end of {rank}$"), job.told()


def test_nodes_that_are_missing_may_never_find_a_loopback_address(job: Stage) -> None:
    agent = job.launch(options=("--nnodes", "2"))
    agent.says(r"waiting: round 0: 1 of 2 nodes joined")
    agent.says(r"warning: other hosts cannot reach 127\.0\.0\.1")
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 143, job.told()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_node_that_leaves_by_any_signal_leaves_the_job_to_the_others(
    job: Stage, number: signal.Signals, code: int
) -> None:
    stays, leaves = (job.launch(node=f"n{place}", options=("--nnodes", "1:2")) for place in range(2))
    job.up(0, 2)
    leaves.signal(number)
    assert leaves.ends() == code, job.told()
    job.finish(job.up(1, 1))
    assert stays.ends() == 0, job.told()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_wished_order_of_nodes_is_kept_whoever_comes_first(job: Stage, order: tuple[int, int]) -> None:
    agents = []
    for place in order:
        agents.append(job.launch(node=f"n{place}", options=("--nnodes", "2", "--node-rank", str(place))))
        job.until(lambda: len([key for key in job.held() if "/join/" in key]) == len(agents), "it has joined")
    ranks = job.up(0, 2)
    assert [(one.rank, one.node) for one in ranks] == [(0, "n0"), (1, "n1")]
    job.finish(ranks)
    assert [agent.ends() for agent in agents] == [0, 0], job.told()


def test_an_interface_gives_this_nodes_address_and_is_told_to_gloo(job: Stage) -> None:
    program = ("sh", "-c", 'echo "$GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME at $MASTER_ADDR"')
    agent = job.launch(*program, options=("--no-python", "--interface", "lo"))
    assert agent.ends() == 0, job.told()
    assert agent.said(r"this node is \S+ at 127\.0\.0\.1 with 1 rank")
    assert agent.said(r"^lo lo at 127\.0\.0\.1$")


@pytest.mark.parametrize("host", ["::1", "127.0.0.1", "localhost"])
def test_agents_meet_at_either_family(alone: Stage, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            pytest.skip(f"this machine has no {host}: {error}")
        port = probe.getsockname()[1]
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    options = ("--nnodes", "2", "--rdzv-endpoint", place, "--rdzv-id", alone.run_id)
    program = ("sh", "-c", 'echo "rank $RANK at $MASTER_ADDR"')
    logs = ("--log-dir", str(alone.folder / "logs"), "--no-python")
    agents = [alone.run(*options, *logs, "--node-id", f"n{number}", *program) for number in range(2)]
    assert [agent.ends() for agent in agents] == [0, 0], alone.told()
    expected = "127.0.0.1" if host == "localhost" else host
    shown = re.findall(r"\] rank (\d) at (\S+)", "".join(agent.text for agent in agents))
    assert sorted(shown) == [("0", expected), ("1", expected)], alone.told()


def test_output_is_not_late_and_not_lost_with_sigkill(job: Stage) -> None:
    """What was printed last is there though nothing flushed it."""
    dies = "import os, sys\nfor n in range(3000): print(n)\nprint('error', file=sys.stderr)\nos.kill(os.getpid(), 9)\n"
    agent = job.launch(sys.executable, script(job, dies), options=("--no-python",))
    assert agent.ends() == 1, job.told()
    log = job.folder / "logs" / job.run_id / "attempt_0" / "round_0" / "rank_0" / "stdout.log"
    assert log.read_text() == "".join(f"{n}\n" for n in range(3000))
    assert agent.said("^2999$")


def test_a_job_of_the_same_name_and_a_new_etcd_has_files_of_its_own(alone: Stage) -> None:
    """As a requeue has it: the number of the scheduler's job is the same, the etcd is another."""
    for number in range(2):
        logs = ("--log-dir", str(alone.folder / "logs"), "--rdzv-id", "again", "--no-python")
        agent = alone.run(*logs, "sh", "-c", f"echo run {number}")
        assert agent.ends() == 0, alone.told()
        assert agent.said("this node is .*, attempt 1$") == bool(number), agent.text
    texts = [
        (alone.folder / f"logs/again/attempt_{number}/round_0/rank_0/stdout.log").read_text()
        for number in range(2)
    ]
    assert texts == ["run 0\n", "run 1\n"]


def test_redirected_output_is_in_the_files_only_and_chosen_lines_in_one_more(job: Stage) -> None:
    program = ("sh", "-c", 'echo "loss of $RANK"; echo "noise of $RANK"; echo "bad $RANK" >&2')
    options = (
        *TWO_RANKS, "--no-python", "-r", "0:1,1:3", "--tee", "1:2", "--duplicate-stdout-filters", "loss,gain",
    )  # fmt: skip
    agent = job.launch(*program, options=options)
    assert agent.ends() == 0, job.told()
    assert sorted(re.findall(r"\[rank \d\] .*", agent.text)) == ["[rank 0] bad 0", "[rank 1] bad 1"]
    assert agent.said(
        "stdout of local rank 0, stdout of local rank 1 is not shown|stdout of all ranks is not shown"
    )
    folder = job.folder / "logs" / job.run_id / "attempt_0" / "round_0"
    assert (folder / "rank_1" / "stdout.log").read_text() == "loss of 1\nnoise of 1\n"
    lines = (folder / "filtered_stdout.log").read_text().splitlines()
    assert sorted(lines) == ["[rank 0] loss of 0", "[rank 1] loss of 1"]


def test_one_rank_on_a_terminal_looks_as_without_a_launcher(job: Stage) -> None:
    draws = (
        "import sys\n"
        "sys.stdout.write(f'{sys.stdout.isatty()} {sys.stderr.isatty()}\\n')\n"
        "sys.stderr.write('\\r 50%\\r100%\\n')\n"
    )
    reader, writer = pty.openpty()
    arguments = ["--log-dir", str(job.folder / "logs"), script(job, draws)]
    with subprocess.Popen(
        [sys.executable, "-m", "nvrx_launcher", *arguments],
        stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, cwd=job.folder, start_new_session=True,
    ) as agent:  # fmt: skip
        os.close(writer)
        text = read_all(reader)
        assert agent.wait(30) == 0, text
    assert "True True\r\n" in text
    assert "\r 50%\r100%\r\n" in text


def read_all(reader: int) -> str:
    """What comes from a terminal until everybody has closed it."""
    text = b""
    try:
        while select.select([reader], [], [], 30)[0] and (data := os.read(reader, 1 << 16)):
            text += data
    except OSError:
        pass  # nobody has it open any more
    finally:
        os.close(reader)
    return text.decode(errors="replace")
