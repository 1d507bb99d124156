"""`nvrx` against real jobs: seen, explained, steered; in pipes and on terminals."""

from __future__ import annotations

import json
import signal
import tarfile
from pathlib import Path

import pytest
from support.etcd_server import EtcdProcess, etcd_process
from support.nvrx_cli import nvrx, nvrx_beside, on_terminal
from support.stage import Agent, Stage, stage

LINKED = str(Path(__file__).parents[1] / "support" / "linked_program.py")
OPTIONS = ("--max-restarts", "20", "--warm-workers", "off", "--lease-ttl", "3")
LIMITS = ("--hang-timeout", "2", "--hang-startup-timeout", "8", "--startup-grace", "3")
KINDS = (
    *("exception", "exit", "sigkill", "segfault", "hang", "sleep", "gil", "sigstop", "early_exit", "slow"),
)
SAYS = {
    "exception": ("exception", "InjectedError: ordered on rank"),
    "exit": ("exit_code", "exited with code"),
    "sigkill": ("signal", "SIGKILL"),
    "segfault": ("signal", "SIGSEGV"),
    "sigstop": ("hang", "is stopped by a signal"),
    "early_exit": ("early_exit", "exited with 0 without saying that training is over"),
}


def start(
    on: Stage,
    nodes: int,
    *,
    faults: str = "",
    steps: int = 1_000_000,
    options: tuple[str, ...] = ("--nproc-per-node", "2"),
) -> list[Agent]:
    folder = on.folder / "steps"
    folder.mkdir(exist_ok=True)
    return [
        on.launch(
            LINKED,
            str(folder),
            str(steps),
            node=f"n{number}",
            options=("--nnodes", str(nodes), *OPTIONS, *LIMITS, *options),
            environment={"NVRX_FAULTS": faults} if faults else None,
        )
        for number in range(nodes)
    ]


def trains(on: Stage, ranks: int, number: int = 0) -> None:
    on.until(
        lambda: all((on.folder / "steps" / f"{number}.{rank}").exists() for rank in range(ranks)),
        "steps are made",
    )


def data(on: Stage, *arguments: str) -> dict:
    answer = nvrx(*arguments, "-o", "json", etcd=on.endpoint)
    assert answer.code == 0, answer
    return json.loads(answer.out)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("nodes", [1, 2])
def test_why_is_right_for_each_fault_of_the_kit(job: Stage, nodes: int) -> None:
    """One job of four ranks, one kind of fault a round."""
    culprit = 3
    faults = "; ".join(f"{kind} rank={culprit} step=20 s=60 round={n}" for n, kind in enumerate(KINDS))
    agents = start(job, nodes, faults=faults, steps=60, options=("--nproc-per-node", str(4 // nodes)))
    assert [agent.ends(bound_s=120) for agent in agents] == [0] * nodes, job.told()
    for number, fault in enumerate(KINDS):
        why = data(job, "why", job.run_id, str(number))
        kind, says = SAYS.get(fault, ("hang", "is at linked_program.py"))
        end = why["root"]["end"] or {}
        assert (why["root"]["kind"], end.get("rank")) == (kind, culprit), (
            fault,
            why["headline"],
            why["stacks"],
        )
        assert why["root"]["node_id"] == f"n{nodes - 1}"
        assert says in f"{why['headline']} {why['error_line']}", fault
        assert why["level"] == "in_job"
        assert f"restart {number + 1} of" in why["decision"]
        assert {one["rank"] for one in why["consequences"]} == {0, 1, 2}
        if kind == "hang":
            hung = [one for one in why["stacks"] if one["rank"] == culprit]
            assert hung[0]["state"], "what the kernel says is there, whatever the rank could say"
        fall = why["waterfall"]
        assert fall["complete"], fall
        assert fall["missing"] == []
        named = sum(step["seconds"] for step in fall["steps"])
        assert named >= 0.95 * fall["seconds"]
    text = nvrx("why", job.run_id, "4", etcd=job.endpoint).out
    assert "what the ranks did" in text
    assert "in _hang" in text or "rank_inject.py" in text


def test_a_lost_agent_is_explained(job: Stage) -> None:
    agents = start(job, 2)
    trains(job, 4)
    agents[1].signal(signal.SIGKILL)
    agents[0].says(r"round 0 (failed|is over)")
    answer = nvrx("wait", job.run_id, "--for", "round=1", "--timeout", "1s", etcd=job.endpoint)
    assert answer.code == 1
    why = data(job, "why", job.run_id, "0")
    assert (why["root"]["kind"], why["root"]["node_id"]) == ("node_lost", "n1")
    assert "its lease ended" in why["headline"]
    status = data(job, "status", job.run_id)
    assert status["state"] == "restarting"
    assert "1 of 2 nodes joined" in status["waits_for"]
    agents[0].signal(signal.SIGTERM)
    agents[0].ends()


def test_a_job_is_seen_and_steered(job: Stage) -> None:
    agents = start(job, 2)
    trains(job, 4)
    status = data(job, "status", job.run_id)
    assert (status["state"], status["kind"], status["schema"]) == ("running", "JobStatus", 1)
    assert [rank["state"] for rank in status["ranks"]] == ["running"] * 4
    assert all(
        rank["step"] >= 0 and rank["pid"] and rank["beat_age_s"] is not None for rank in status["ranks"]
    )
    assert sum(node["leads"] for node in status["nodes"]) == 1
    assert nvrx("wait", job.run_id, "--for", "step=5", "--timeout", "20s", etcd=job.endpoint).code == 0
    (listed,) = [one for one in data(job, "ps")["items"] if one["run_id"] == job.run_id]
    assert listed["nodes_present"] == 2

    refused = nvrx("grow", job.run_id, etcd=job.endpoint)
    assert refused.code == 1
    assert "grow: refused" in refused.err
    asked = nvrx("restart", job.run_id, "--reason", "try it", etcd=job.endpoint)
    assert (asked.code, asked.err) == (0, ""), asked
    trains(job, 4, 1)
    assert data(job, "rounds", job.run_id)["items"][0]["root"]["kind"] == "asked"
    events = [
        json.loads(line)
        for line in nvrx("events", job.run_id, "-o", "json", etcd=job.endpoint).out.splitlines()
    ]
    (told,) = [one for one in events if "asked to restart" in one["sentence"]]
    assert "(try it)" in told["sentence"]
    assert "@" in told["sentence"]

    for what in (("node", "n1"), ("rank", "3"), ("round", "0")):
        described = nvrx("describe", job.run_id, *what, etcd=job.endpoint)
        assert described.code == 0, described
    assert nvrx("stop", job.run_id, etcd=job.endpoint).code == 0
    assert [agent.ends() for agent in agents] == [143, 143], job.told()
    assert data(job, "status", job.run_id)["state"] == "stopped"
    gone = nvrx("stop", job.run_id, etcd=job.endpoint)
    assert (gone.code, "has ended" in gone.err) == (1, True)


def test_looking_moves_no_revision(own_etcd: EtcdProcess) -> None:
    with stage(own_etcd.endpoint) as job:
        agents = start(job, 1)
        trains(job, 2)
        names = ("status", "nodes", "ranks", "rounds", "describe", "events", "why")
        before = job.etcd.revision()
        for name in names:
            assert nvrx(name, job.run_id, etcd=job.endpoint).code == 0, name
        assert nvrx("ps", etcd=job.endpoint).code == 0
        assert nvrx("logs", job.run_id, etcd=job.endpoint).code == 0
        assert nvrx("gc", etcd=job.endpoint).code == 0
        assert job.etcd.revision() == before
        agents[0].signal(signal.SIGTERM)
        agents[0].ends()


def test_a_standalone_job_is_found_by_itself(alone: Stage) -> None:
    folder = alone.folder / "steps"
    folder.mkdir()
    agent = alone.run(
        "--standalone",
        "--rdzv-id",
        alone.run_id,
        "--log-dir",
        str(alone.folder / "logs"),
        LINKED,
        str(folder),
        "1000000",
    )
    agent.says("steps are made")
    answer = nvrx("status", alone.run_id, etcd=None)
    assert answer.code == 0, answer
    assert f"{alone.run_id}  running" in answer.out
    wrong = nvrx("status", alone.run_id[:-1], etcd=None)
    assert (wrong.code, f"did you mean {alone.run_id}" in wrong.err) == (2, True), wrong
    agent.signal(signal.SIGTERM)
    agent.ends()
    past = nvrx("events", alone.run_id, "--log-dir", str(alone.folder / "logs"), etcd=None)
    assert past.code == 0, past
    assert "exit code 143" in past.out
    assert "remembers" in past.err


def test_an_etcd_that_is_away_is_named_and_the_history_answers() -> None:
    with etcd_process() as server, stage(server.endpoint) as job:
        agents = start(job, 1, faults="exception rank=1 step=20", steps=60)
        assert agents[0].ends() == 0, job.told()
        server.kill()
        away = nvrx("status", job.run_id, etcd=job.endpoint)
        assert (away.code, server.endpoint in away.err) == (3, True), away
        why = nvrx("why", job.run_id, "0", "--log-dir", str(job.folder / "logs" / "n0"), etcd=job.endpoint)
        assert why.code == 3
        assert "InjectedError: ordered on rank 1 at step 20" in why.out
        assert "restart 1 of --max-restarts 20" in why.out
        assert "no etcd endpoint answered" in why.err
        folder = str(job.folder / "logs" / "n0")
        status = nvrx("status", job.run_id, "--log-dir", folder, etcd=job.endpoint)
        assert (status.code, f"{job.run_id}  finished" in status.out) == (3, True), status
        assert "1 of 20 restarts" in status.out
        assert "InjectedError: ordered on rank 1" in status.out
        listed = nvrx("ps", "--log-dir", folder, "-o", "json", etcd=job.endpoint)
        assert listed.code == 3
        assert [one["run_id"] for one in json.loads(listed.out)["items"]] == [job.run_id]


def test_tables_fit_their_terminal(job: Stage) -> None:
    agents = start(job, 1, faults="exception rank=1 step=20")
    trains(job, 2, 1)
    for columns in (80, 200):
        for verb in ("ps", "status", "nodes", "ranks", "rounds", "why"):
            target = () if verb == "ps" else (job.run_id,)
            answer = on_terminal(verb, *target, etcd=job.endpoint, columns=columns)
            assert answer.code == 0, answer.out
            assert "\x1b[" in answer.out, f"{verb} is coloured"
            wide = [line for line in answer.lines if len(line) > columns]
            assert not wide, (verb, columns, wide)
    assert "\x1b" not in on_terminal("status", job.run_id, etcd=job.endpoint, NO_COLOR="1").out
    assert "\x1b" not in on_terminal("status", job.run_id, etcd=job.endpoint, term="dumb").out
    assert "\x1b" not in nvrx("status", job.run_id, etcd=job.endpoint).out
    agents[0].signal(signal.SIGTERM)
    agents[0].ends()


def test_watching_redraws_on_a_terminal_and_writes_lines_elsewhere(job: Stage) -> None:
    agents = start(job, 1)
    trains(job, 2)
    drawn = on_terminal("status", job.run_id, "-w", etcd=job.endpoint, until="2 running")
    assert drawn.code == 130
    assert drawn.out.count("\x1b[?1049h") == drawn.out.count("\x1b[?1049l") == 1, "the screen is given back"
    topped = on_terminal("top", job.run_id, etcd=job.endpoint, until="2 running")
    assert topped.code == 130
    dumb = on_terminal("status", job.run_id, "-w", etcd=job.endpoint, term="dumb", until="2 running")
    assert "\x1b" not in dumb.out
    agents[0].signal(signal.SIGTERM)
    agents[0].ends()
    ended = nvrx("status", job.run_id, "-w", etcd=job.endpoint)
    assert (ended.code, "stopped" in ended.out) == (0, True), ended


def test_logs_show_the_first_error_ahead_of_what_followed(job: Stage) -> None:
    agents = start(job, 2, faults="exception rank=3 step=20", steps=60)
    assert [agent.ends() for agent in agents] == [0, 0], job.told()
    shown = nvrx("logs", job.run_id, "--round", "0", "--errors", etcd=job.endpoint)
    assert shown.code == 0, shown
    head, _, rest = shown.out.partition("what followed:")
    assert "[rank 3] " in head
    assert "InjectedError" in head
    assert "[rank 3] " not in rest
    one = nvrx("logs", job.run_id, "--rank", "2", etcd=job.endpoint)
    assert "finished round 1" in one.out
    none = nvrx("logs", job.run_id, "--rank", "9", etcd=job.endpoint)
    assert (none.code, "no log of rank 9" in none.err) == (2, True)


def test_logs_are_followed(job: Stage) -> None:
    agents = start(job, 1)
    trains(job, 2)
    followed = on_terminal("logs", job.run_id, "-f", etcd=job.endpoint, until="steps are made")
    assert followed.code == 130
    with nvrx_beside("logs", job.run_id, "-f", etcd=job.endpoint) as beside:
        beside.says("steps are made")
        agents[0].signal(signal.SIGTERM)
        agents[0].ends()
        ended = beside.ends()
    assert ended.code == 0, ended
    assert "finished round 0" in ended.out
    assert ended.err == f"job {job.run_id} stopped, exit code 143: told to stop by SIGTERM\n"
    again = nvrx("logs", job.run_id, "-f", etcd=job.endpoint)
    assert (again.code, "stopped, exit code 143" in again.err) == (0, True), again


def test_logs_of_a_standalone_job_end_with_it_though_it_takes_its_etcd_along(alone: Stage) -> None:
    folder = alone.folder / "steps"
    folder.mkdir()
    options = ("--rdzv-id", alone.run_id, "--log-dir", str(alone.folder / "logs"))
    agent = alone.run("--standalone", *options, LINKED, str(folder), "1000000")
    agent.says("steps are made")
    with nvrx_beside("logs", alone.run_id, "-f", etcd=None) as beside:
        beside.says("steps are made")
        agent.signal(signal.SIGTERM)
        agent.ends()
        ended = beside.ends()
    assert ended.code == 0, ended
    assert "finished round 0" in ended.out
    assert "stopped, exit code 143" in ended.err


def test_a_dump_holds_the_story_and_no_secret(job: Stage, tmp_path: Path) -> None:
    agent = job.launch(
        *job.ranks("--fail", "raise", "--fail-rank", "0"),
        "--api-key",
        "hunter2",
        options=("--max-restarts", "0"),
    )
    agent.ends()
    path = tmp_path / "dump.tar.gz"
    answer = nvrx("dump", job.run_id, "-f", str(path), etcd=job.endpoint)
    assert answer.code == 0, answer
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        files = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}
    assert {"why.txt", "etcd.jsonl", "events.jsonl", "status.json", "versions.json"} <= names
    assert any(name.endswith("history.jsonl") for name in names)
    assert not [name for name, text in files.items() if "hunter2" in text]


def test_old_jobs_are_removed_and_living_ones_are_not(job: Stage) -> None:
    ended = job.launch(*job.ranks("--finish-from", "0"), run_id=f"{job.run_id}-old", node="n0")
    assert ended.ends() == 0
    agents = start(job, 1)
    trains(job, 2)
    listed = nvrx("gc", "--older-than", "0s", etcd=job.endpoint)
    assert f"{job.run_id}-old  finished" in listed.out
    assert job.etcd.job(f"{job.run_id}-old")
    assert nvrx("gc", "--older-than", "0s", "--yes", etcd=job.endpoint).code == 0
    assert not job.etcd.job(f"{job.run_id}-old")
    assert job.held()
    agents[0].signal(signal.SIGTERM)
    agents[0].ends()


def test_live_numbers_are_for_those_who_hold_the_token(job: Stage) -> None:
    folder = job.folder / "steps"
    folder.mkdir()
    agent = job.launch(LINKED, str(folder), "1000000", node="n0", environment={"NVRX_JOB_TOKEN": "sesame"})
    agent.says("steps are made")
    known = nvrx("status", job.run_id, etcd=job.endpoint, NVRX_JOB_TOKEN="sesame")
    assert "1 running" in known.out, known
    stranger = nvrx("status", job.run_id, etcd=job.endpoint)
    assert (stranger.code, "no live numbers from n0" in stranger.out) == (0, True), stranger
    agent.signal(signal.SIGTERM)
    agent.ends()
