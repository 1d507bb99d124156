"""An etcd that agents start themselves, and one that goes away for longer than a lease lives."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.etcd_server import EtcdProcess, free_ports
from support.stage import News, Stage, stage

TTL_S = 3
SHORT = ("--lease-ttl", str(TTL_S), "--etcd-embedded", "off")


def test_standalone_survives_the_death_of_a_rank_and_leaves_no_server(alone: Stage) -> None:
    program = alone.ranks("--fail", "sigkill", "--fail-rank", "1", "--finish-from", "1")
    agent = alone.run("--standalone", "--nproc-per-node", "2", "--max-restarts", "1", *program)
    assert agent.ends() == 0, alone.told()
    assert {(news.round, news.rank) for news in alone.news} >= {(1, 0), (1, 1)}
    assert agent.said(r"etcd \S+ started here at 127\.0\.0\.1:\d+")
    assert alone.left() == []


def test_a_killed_agent_takes_its_etcd_along(alone: Stage) -> None:
    agent = alone.run("--standalone", "--nproc-per-node", "2", *alone.ranks("--offspring"))
    agent.says("round 0 runs")
    alone.until(lambda: sum(news.word == "up" for news in alone.news) == 2, "ranks are up")
    its = [alone.watch(pid) for pid in agent.processes()]
    assert len(its) == 1 + 1 + 1 + 2 + 2, "agent, keeper, etcd, ranks, grandchildren"
    folder = next(path for one in its if (path := _etcd_folder(one.pid)))
    agent.signal(signal.SIGKILL)
    alone.all_gone(its, 1.0)

    # Nobody is left to remove the data: the next agent on this host does, whichever comes first.
    following = alone.run("--standalone", *alone.ranks("--finish-from", "0"))
    assert following.ends() == 0, alone.told()
    assert not folder.exists()


def test_the_early_end_of_an_etcd_that_an_agent_started_is_told(alone: Stage) -> None:
    agent = alone.run("--standalone", *alone.ranks())
    agent.says("round 0 runs")
    (etcd,) = [pid for pid in agent.processes() if _etcd_folder(pid)]
    os.kill(etcd, signal.SIGKILL)
    agent.says(r"warning: the etcd started here ended early \(status -9\); its last words: \S+/etcd\.log")
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 143, alone.told()


def test_a_job_that_ends_with_its_etcd_has_a_summary_too(alone: Stage) -> None:
    logs = ("--log-dir", str(alone.folder / "logs"), "--rdzv-id", "alone", "--lease-ttl", str(TTL_S))
    agent = alone.run("--standalone", *logs, *alone.ranks())
    agent.says("round 0 runs")
    (etcd,) = [pid for pid in agent.processes() if _etcd_folder(pid)]
    os.kill(etcd, signal.SIGKILL)
    assert agent.ends() == 75, alone.told()
    assert "has ended, and the job with it" in (alone.folder / "logs/alone/summary.txt").read_text()
    assert "rounds  0 " in agent.text
    last = json.loads((alone.folder / "logs/alone/history.jsonl").read_text().splitlines()[-1])
    assert (last["record"], last["attempt"], last["exit_code"]) == ("outcome", 0, 75)


def _etcd_folder(pid: int) -> Path | None:
    found = re.search(rb"--data-dir=([^\0]+)/data\0", Path(f"/proc/{pid}/cmdline").read_bytes())
    return Path(os.fsdecode(found[1])) if found else None


@pytest.fixture
def to_be() -> Iterator[Stage]:
    """A stage whose endpoint names this host, with nobody there yet."""
    (port,) = free_ports(1)
    with stage(f"127.0.0.1:{port}") as made:
        yield made


@pytest.mark.parametrize("code", [0, 1])
def test_two_agents_meet_in_an_etcd_that_one_of_them_starts(to_be: Stage, code: int) -> None:
    fails = () if code == 0 else ("--fail", "raise", "--fail-rank", "3")
    program = to_be.ranks("--finish-from", "0", *fails)
    options = ("--nnodes", "2", "--nproc-per-node", "2")
    agents = [to_be.launch(*program, node=f"n{number}", options=options) for number in range(2)]
    assert [agent.ends() for agent in agents] == [code] * 2, to_be.told()
    assert sum(agent.said("started here at") for agent in agents) == 1
    assert to_be.left() == []


@pytest.fixture
def on_own_etcd(own_etcd: EtcdProcess) -> Iterator[Stage]:
    with stage(own_etcd.endpoint) as made:
        yield made


def test_after_an_outage_longer_than_the_limit_the_job_goes_on_in_a_new_round(
    on_own_etcd: Stage, own_etcd: EtcdProcess
) -> None:
    options = ("--nnodes", "2", *SHORT, "--etcd-outage-limit", "2")
    agents = [on_own_etcd.launch(node=f"n{number}", options=options) for number in range(2)]
    watched = [on_own_etcd.watch(one.pid) for one in on_own_etcd.up(0, 2)]
    own_etcd.kill()
    on_own_etcd.all_gone(watched, TTL_S + 2 + 2)
    for agent in agents:
        agent.says(r"etcd does not answer for 2 s \(--etcd-outage-limit\): ranks stop")

    own_etcd.start()
    on_own_etcd.finish(on_own_etcd.up(1, 2))
    assert [agent.ends() for agent in agents] == [0, 0], on_own_etcd.told()


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_without_etcd_for_long_the_agent_asks_for_a_requeue(
    on_own_etcd: Stage, own_etcd: EtcdProcess
) -> None:
    agents = [
        on_own_etcd.launch(node=f"n{number}", options=("--nnodes", "2", *SHORT, "--etcd-outage-limit", "4"))
        for number in range(2)
    ]
    watched = [on_own_etcd.watch(one.pid) for one in on_own_etcd.up(0, 2)]
    own_etcd.kill()
    agents[0].says("etcd does not answer; ranks run on by the promise of 1 other agents, for 4 s at most")
    on_own_etcd.all_gone(watched, TTL_S + 4)
    assert [agent.ends(bound_s=60) for agent in agents] == [75, 75], on_own_etcd.told()
    assert agents[0].said("etcd was away for longer than 29 s")
    assert on_own_etcd.left() == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("away_s", [2.0 * TTL_S, pytest.param(30.0, marks=pytest.mark.soak)])
@pytest.mark.parametrize("count", [1, 2])
def test_no_rank_notices_an_outage_within_the_limit(
    on_own_etcd: Stage, own_etcd: EtcdProcess, count: int, away_s: float
) -> None:
    """etcd is away for longer than a lease's TTL. All ranks that ran before run after it, in the same round."""
    options = ("--nnodes", str(count), "--nproc-per-node", "2", *SHORT)
    agents = [on_own_etcd.launch(node=f"n{number}", options=options) for number in range(count)]
    ranks = on_own_etcd.up(0, 2 * count)
    own_etcd.kill()
    agents[0].says("etcd does not answer; ranks run on", bound_s=20)
    on_own_etcd.for_a_while(away_s)
    assert all(on_own_etcd.watch(rank.pid).alive for rank in ranks), on_own_etcd.told()
    own_etcd.start()
    on_own_etcd.finish(ranks)
    assert [agent.ends(bound_s=30) for agent in agents] == [0] * count, on_own_etcd.told()
    assert {news.round for news in on_own_etcd.news} == {0}


def test_agents_whose_leases_are_revoked_register_again_and_their_ranks_go_on(
    on_own_etcd: Stage, own_etcd: EtcdProcess
) -> None:
    """What a stuck old leader of an etcd before 3.5.13 does to all leases when it wakes."""
    options = ("--nnodes", "2", "--nproc-per-node", "2", *SHORT)
    agents = [on_own_etcd.launch(node=f"n{number}", options=options) for number in range(2)]
    ranks = on_own_etcd.up(0, 4)
    leases = on_own_etcd.etcd.leases()
    for agent in agents:
        agent.freeze()  # etcd ends one lease after the other: nobody is to see the one gone and the other not
    for lease in leases:
        on_own_etcd.etcd.revoke(lease)
    for agent in agents:
        agent.signal(signal.SIGCONT)
    on_own_etcd.finish(ranks)
    assert [agent.ends() for agent in agents] == [0, 0], on_own_etcd.told()
    assert {entry.value["node_id"] for key, entry in on_own_etcd.held().items() if "/done/" in key} == {
        "n0",
        "n1",
    }
    assert {news.round for news in on_own_etcd.news} == {0}


def test_an_etcd_that_came_back_empty_asks_for_a_requeue(on_own_etcd: Stage, own_etcd: EtcdProcess) -> None:
    agent = on_own_etcd.launch(options=("--nnodes", "1", "--etcd-embedded", "off"))
    (rank,) = on_own_etcd.up(0, 1)
    own_etcd.kill()
    own_etcd.wipe()
    own_etcd.start()
    assert agent.ends() == 75, on_own_etcd.told()
    assert agent.said(r"error: etcd at \S+ has lost its data")
    assert not on_own_etcd.watch(rank.pid).alive


def test_a_signal_during_an_outage_ends_the_agent(on_own_etcd: Stage, own_etcd: EtcdProcess) -> None:
    agent = on_own_etcd.launch(options=("--nnodes", "1", "--lease-ttl", str(TTL_S), "--etcd-embedded", "off"))
    (rank,) = on_own_etcd.up(0, 1)
    own_etcd.kill()
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.ends(bound_s=20) == 143, on_own_etcd.told()
    assert not on_own_etcd.watch(rank.pid).alive


def test_a_node_that_comes_back_with_an_empty_etcd_waits_for_the_ranks_elsewhere() -> None:
    """Its own etcd was the job's, MIN is met by it alone, and ranks on the other node live until their T."""
    (port,) = free_ports(1)
    with stage(f"127.0.0.1:{port}") as made:
        options = ("--nnodes", "1:2", "--nproc-per-node", "1", "--lease-ttl", "3", "--grow-pause", "0")
        options = (*options, "--rdzv-conf", "last_call_timeout=0.1")
        first = made.launch(node="n0", options=options)
        first.says("started here at")
        other = made.launch(node="n1", options=options)
        ranks = {news.node: made.watch(news.pid) for news in both_up(made)}
        other.freeze()  # so that only its keeper ends its rank, and only at T
        for pid in [first.pid, *first.processes()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        first.ends()
        made.news.clear()
        again = made.launch(node="n0", options=options)
        again.says(
            r"history\.jsonl tells of attempt 0, which left no verdict: ranks of it may live elsewhere, 7 s"
        )
        (began,) = made.up(0, 1)
        assert began.attempt == 1
        assert not ranks["n1"].alive, "no two worlds at once"
        made.finish([began])
        assert again.ends() == 0, made.told()


def both_up(on: Stage) -> list[News]:
    """The ranks of the first round that both nodes are in."""

    def found() -> list[News]:
        worlds = [news for news in on.news if news.word == "up" and news.world_size == 2]
        newest = [news for news in worlds if news.round == max(one.round for one in worlds)]
        return newest if len(newest) == 2 else []

    return on.until(found, "a round of both nodes")
