import pytest

from nvrx_async.job.conditions import Answer, condition
from nvrx_async.job.errors import NoSuchError
from nvrx_async.job.status import JobState, JobStatus, RankStatus


def status(state: JobState, number: int = 0, steps: tuple[int | None, ...] = ()) -> JobStatus:
    ranks = tuple(RankStatus(i, i, "a", "host", "running", step=step) for i, step in enumerate(steps))
    return JobStatus("job", 0, state, "", "", (), number, 1, 1, 1, ranks=ranks)


@pytest.mark.parametrize(
    ("text", "seen", "answer"),
    [
        ("running", status(JobState.RUNNING), Answer.YES),
        ("running", status(JobState.RESTARTING), Answer.NOT_YET),
        ("running", status(JobState.FAILED), Answer.NEVER),
        ("ended", status(JobState.ABANDONED), Answer.YES),
        ("ended", status(JobState.RUNNING), Answer.NOT_YET),
        ("round=2", status(JobState.RESTARTING, 2), Answer.NOT_YET),
        ("round=2", status(JobState.RUNNING, 2), Answer.YES),
        ("round=2", status(JobState.RESTARTING, 3), Answer.YES),
        ("round=2", status(JobState.FINISHED, 1), Answer.NEVER),
        ("step=10", status(JobState.RUNNING, 0, (10, 12)), Answer.YES),
        ("step=10", status(JobState.RUNNING, 0, (9, 12)), Answer.NOT_YET),
        ("step=10", status(JobState.RUNNING, 0, (None, 12)), Answer.NOT_YET),
        ("step=10", status(JobState.RUNNING), Answer.NOT_YET),
        ("step=10", status(JobState.FINISHED), Answer.NEVER),
    ],
)
def test_a_condition(text, seen, answer):
    assert condition(text).holds(seen) is answer


@pytest.mark.parametrize("text", ["", "step", "step=x", "round=-1", "finished"])
def test_what_nobody_can_wait_for(text):
    with pytest.raises(NoSuchError, match="running, ended, round=N or step=N"):
        condition(text)


@pytest.mark.parametrize("text", [f"step={2**63 - 1}", f"round={2**63}"])
def test_a_number_that_nothing_can_hold(text):
    assert condition(f"step={2**63 - 2}").step == 2**63 - 2
    with pytest.raises(NoSuchError) as caught:
        condition(text)
    assert "at most" in caught.value.hint
