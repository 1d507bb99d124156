"""An agent is killed, frozen, replaced; its keeper is killed; etcd is restarted."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from support.etcd_server import EtcdProcess
from support.stage import Agent, Stage, stage

TTL_S = 3
KILL_TIME_S, MARGIN_S = 1.0, 0.3
TWO = ("--nnodes", "2", "--nproc-per-node", "2", "--lease-ttl", str(TTL_S), "--max-restarts", "3")
ONE_OR_TWO = ("--nnodes", "1:2", *TWO[2:])


def two_agents(on: Stage, options: tuple[str, ...], *rank_options: str) -> tuple[Agent, Agent]:
    """Two agents whose ranks are up."""
    program = on.ranks(*rank_options)
    agents = (
        on.launch(*program, node="n0", options=options),
        on.launch(*program, node="n1", options=options),
    )
    on.up(0, 4)
    return agents


def finishes(on: Stage, number: int, count: int, *agents: Agent) -> None:
    on.finish(on.up(number, count))
    assert [agent.ends() for agent in agents] == [0] * len(agents), on.told()


@pytest.mark.parametrize("role", ["coordinator", "other"])
def test_nothing_of_a_killed_agent_lives_and_a_replacement_fills_its_place(job: Stage, role: str) -> None:
    agents = two_agents(job, TWO, "--offspring")
    leader = job.coordinator(*agents)
    victim = leader if role == "coordinator" else next(agent for agent in agents if agent is not leader)
    (survivor,) = [agent for agent in agents if agent is not victim]
    seats = {one.node: one.group_rank for one in job.up(0, 4)}
    job.until(lambda: sum(one.word == "grandchild" for one in job.news) == 4, "each rank has a grandchild")
    bystander = job.bystander()
    its = [job.watch(pid) for pid in victim.processes()]
    assert len(its) == 1 + 1 + 2 + 2, "agent, keeper, ranks, grandchildren"

    victim.signal(signal.SIGKILL)
    job.all_gone(its, 1.0)
    assert bystander.alive
    survivor.says(r"round 0 is over: node n\d \(host \S+\) lost: its lease ended", bound_s=TTL_S + 10)
    survivor.says(rf"waiting: round 1: 1 of 2 nodes joined; missing: {victim.node}")

    assert victim.node is not None
    replacement = job.launch(*job.ranks("--offspring"), node=victim.node, options=TWO)
    again = job.up(1, 4)
    assert {one.node: one.group_rank for one in again} == seats
    finishes(job, 1, 4, survivor, replacement)


@pytest.mark.parametrize("role", ["coordinator", "other"])
def test_an_agent_that_is_restarted_at_once_proves_its_predecessor_dead_and_keeps_its_group_rank(
    job: Stage, role: str
) -> None:
    slow = ("--nnodes", "2", "--nproc-per-node", "2", "--lease-ttl", "60")
    agents = two_agents(job, slow)
    leader = job.coordinator(*agents)
    victim = leader if role == "coordinator" else next(agent for agent in agents if agent is not leader)
    (survivor,) = [agent for agent in agents if agent is not victim]
    seats = {one.node: one.group_rank for one in job.up(0, 4)}

    victim.signal(signal.SIGKILL)
    assert victim.node is not None
    successor = job.launch(node=victim.node, options=slow)
    again = job.up(1, 4)  # long before a lease of 60 s ends
    assert {one.node: one.group_rank for one in again} == seats
    assert successor.said(
        rf"earlier agent: its process \(pid {victim.pid}\) is dead and nothing it started lives on this host"
    )
    finishes(job, 1, 4, survivor, successor)


@pytest.mark.parametrize("role", ["coordinator", "other"])
def test_the_other_goes_on_alone_where_one_node_suffices(job: Stage, role: str) -> None:
    agents = two_agents(job, ONE_OR_TWO)
    leader = job.coordinator(*agents)
    victim = leader if role == "coordinator" else next(agent for agent in agents if agent is not leader)
    (survivor,) = [agent for agent in agents if agent is not victim]

    victim.signal(signal.SIGKILL)
    alone = job.up(1, 2, bound_s=TTL_S + 15)
    assert {(one.node, one.world_size) for one in alone} == {(survivor.node, 2)}
    finishes(job, 1, 2, survivor)


def test_a_killed_keeper_takes_its_ranks_along_and_is_replaced(job: Stage) -> None:
    agent = job.launch(*job.ranks("--offspring"), options=("--nproc-per-node", "2", "--max-restarts", "1"))
    job.up(0, 2)
    keeper = agent.keeper()
    its = [job.watch(pid) for pid in agent.processes() if pid != agent.pid]

    os.kill(keeper, signal.SIGKILL)
    job.all_gone(its, 1.0)
    job.up(1, 2)
    assert agent.keeper() != keeper
    assert agent.said("the keeper is lost")
    finishes(job, 1, 2, agent)


@pytest.fixture
def on_own_etcd(own_etcd: EtcdProcess) -> Iterator[Stage]:
    with stage(own_etcd.endpoint) as made:
        yield made


def test_ranks_do_not_notice_an_etcd_that_restarts_within_the_ttl(
    on_own_etcd: Stage, own_etcd: EtcdProcess
) -> None:
    ttl_s = 6
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--lease-ttl", str(ttl_s))
    agents = [on_own_etcd.launch(node=f"n{number}", options=options) for number in range(2)]
    ranks = on_own_etcd.up(0, 2)
    watched = [on_own_etcd.watch(one.pid) for one in ranks]

    own_etcd.restart()
    on_own_etcd.for_a_while(ttl_s + 1)  # past every deadline that was set before the restart
    assert all(one.alive for one in watched), on_own_etcd.told()
    finishes(on_own_etcd, 0, 2, *agents)
    assert {one.round for one in on_own_etcd.news} == {0}


def test_ranks_of_a_frozen_agent_die_before_its_lease_ends_and_it_returns_to_a_later_round(
    job: Stage,
) -> None:
    keeps, frozen = two_agents(job, ONE_OR_TWO)
    its = [job.watch(one.pid) for one in job.up(0, 4) if one.node == frozen.node]

    frozen_s = time.monotonic()
    frozen.freeze()
    job.all_gone(its, TTL_S + 5)
    deadline_s = frozen_s + TTL_S - KILL_TIME_S - MARGIN_S  # of a renewal sent at the last moment
    assert max(one.ended_s or 0.0 for one in its) <= deadline_s + KILL_TIME_S
    job.up(1, 2, bound_s=TTL_S + 15)

    frozen.signal(signal.SIGCONT)
    frozen.says("round 1 runs: 2 ranks on 1 node, this node is a spare")
    (first, _) = job.up(1, 2)
    job.until(lambda: f"0/rounds/2/join/{frozen.node}" in job.held(), "it is ready for the next round")
    os.kill(first.pid, signal.SIGKILL)
    again = job.up(2, 4)
    assert {one.node: one.group_rank for one in again} == {keeps.node: 0, frozen.node: 1}
    finishes(job, 2, 4, keeps, frozen)


def test_a_spare_ends_well_with_the_job(job: Stage) -> None:
    """The frozen agent again, but the round that it missed is the last one."""
    keeps, frozen = two_agents(job, ONE_OR_TWO)
    frozen.freeze()
    job.up(1, 2, bound_s=TTL_S + 15)
    frozen.signal(signal.SIGCONT)
    frozen.says("this node is a spare")
    finishes(job, 1, 2, keeps, frozen)
