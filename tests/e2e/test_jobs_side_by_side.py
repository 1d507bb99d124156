"""Several jobs on one etcd, one run id several times, and what a job that is over leaves."""

from __future__ import annotations

import os
import signal

from support.stage import Stage

ONE = ("--nproc-per-node", "2", "--nnodes", "1")


def leased(on: Stage, run_id: str) -> list[str]:
    return [key for key, item in on.etcd.job(run_id).items() if item.lease]


def test_two_jobs_at_once_do_not_disturb_each_other(job: Stage) -> None:
    one, other = f"{job.name}-a", f"{job.name}-b"
    first = job.launch(options=(*ONE, "--max-restarts", "1"), run_id=one)
    second = job.launch(options=ONE, run_id=other)
    (victim, _) = job.up(0, 2, run_id=one)
    untouched = job.up(0, 2, run_id=other)

    os.kill(victim.pid, signal.SIGKILL)
    job.finish(job.up(1, 2, run_id=one))
    assert first.ends() == 0, job.told()
    assert leased(job, one) == []
    job.finish(untouched)
    assert second.ends() == 0, job.told()
    assert {news.round for news in job.news if news.run_id == other} == {0}
    assert leased(job, other) == []


def test_a_run_id_can_be_used_again_once_its_job_has_ended(job: Stage) -> None:
    for attempt in range(2):
        agent = job.launch(*job.ranks("--finish-from", "0"), options=ONE)
        assert agent.ends() == 0, job.told()
        assert {news.attempt for news in job.news} == set(range(attempt + 1))
    held = job.held()
    assert held["current"].value["attempt"] == 1
    assert held["0/outcome"].value["success"]
    assert held["1/outcome"].value["success"]
    assert not any(item.lease for item in held.values())


def test_a_second_living_job_with_another_command_is_refused_with_both_specs(job: Stage) -> None:
    living = job.launch(node="n0", options=ONE)
    ranks = job.up(0, 2)
    before, leases = job.held(), job.etcd.leases()

    stranger = job.launch(*job.ranks("--offspring"), node="n1", options=(*ONE, "--max-restarts", "7"))
    assert stranger.ends() == 2, job.told()
    assert stranger.said(rf"error: run id {job.run_id} belongs to a living job with another specification")
    assert stranger.said(r"^ +its +command: \S+rank_program.py \S+news, max_restarts: 0$")
    assert stranger.said(r"^ +ours +command: \S+rank_program.py \S+news --offspring, max_restarts: 7$")
    assert stranger.said(r"^hint: give this job its own --rdzv-id")
    assert stranger.processes() == []
    assert job.held().keys() == before.keys()
    assert job.etcd.leases() <= leases

    job.finish(ranks)
    assert living.ends() == 0, job.told()


def test_a_finished_job_has_no_lease_and_no_process(job: Stage) -> None:
    leases = job.etcd.leases()
    agents = [
        job.launch(
            *job.ranks("--offspring", "--finish-from", "0"), node=f"n{number}", options=("--nnodes", "2")
        )
        for number in range(2)
    ]
    assert [agent.ends() for agent in agents] == [0, 0], job.told()
    assert sum(news.word == "grandchild" for news in job.news) == 2
    assert leased(job, job.run_id) == []
    assert job.etcd.leases() <= leases
    assert job.left() == []
