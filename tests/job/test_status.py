"""What is told of a job that waits: pure, from what etcd holds."""

from __future__ import annotations

import pytest

from nvrx_async.job.records import Current, Exclusion, Job, JobSpec, Phase, Round
from nvrx_async.job.round_record import RoundRecord
from nvrx_async.job.status import Held, job_status

SPEC = JobSpec(("train.py",), 2, 2, 3, 6, 2.0, 120.0, 600.0, 30.0)


@pytest.mark.parametrize(
    ("joined", "excluded_by", "told"),
    [
        (("a",), {}, "1 of 2 nodes joined"),
        (("a", "b"), {"b": "root@vm"}, "1 of 2 nodes joined; excluded: b"),
        (("a", "b"), {"c": "root@vm"}, "2 nodes joined; the coordinator seals"),
        (("a", "b"), {"b": "policy"}, "2 nodes joined; the coordinator seals"),
        (("a", "b", "c"), {"c": "root@vm"}, "2 nodes joined; excluded: c; the coordinator seals"),
    ],
)
def test_a_forming_round_waits_for_nodes_that_may_take_a_seat(
    joined: tuple[str, ...], excluded_by: dict[str, str], told: str
) -> None:
    forming = Round(1, Phase.FORMING, "2026-01-01T00:00:00.000Z")
    held = Held(
        "train",
        Current(0, ""),
        Job(SPEC, None, ""),
        forming,
        RoundRecord("train", 0, 1, Phase.FORMING),
        nodes_present=len(joined),
        joined=joined,
        excluded={name: Exclusion(name, "fan", by, "") for name, by in excluded_by.items()},
    )
    assert job_status(held).waits_for.startswith(told)
