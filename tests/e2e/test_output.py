"""Every line of every rank is shown, whole and with its rank; the report comes last."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from support.stage import Stage

RANKS, LINES = 8, 20_000


@pytest.mark.timeout(120)
def test_nothing_is_lost_of_eight_ranks_that_print_a_lot(job: Stage) -> None:
    program = job.ranks("--lines", str(LINES), "--finish-from", "0")
    agent = job.launch(*program, options=("--nproc-per-node", str(RANKS), "--tee", "3"))
    assert agent.ends(bound_s=90) == 0, job.told()

    assert not agent.said("not renewed in time"), "the agent was late"
    shown: dict[int, list[int]] = defaultdict(list)
    for found in re.finditer(r"^\[rank (\d)\] line (\d+) of rank (\d): x{40}$", agent.text, re.MULTILINE):
        assert found[1] == found[3]
        shown[int(found[1])].append(int(found[2]))
    assert dict(shown) == {rank: list(range(LINES)) for rank in range(RANKS)}

    _, closing, report = agent.text.rpartition(f"job {job.run_id} finished")
    assert closing
    assert "[rank" not in report
    assert re.search(r"^ +logs +\S+", report, re.MULTILINE)
    logs = sorted(job.folder.glob(f"logs/{job.run_id}/attempt_0/round_0/rank_*/stdout.log"))
    assert [log.read_text().count("\n") for log in logs] == [LINES] * RANKS
