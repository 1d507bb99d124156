"""What `nvrx wait` says when it has waited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from nvrx_async.job.status import JobState, JobStatus
from nvrx_launcher.ctl import look
from nvrx_launcher.ctl.place import EtcdOptions
from nvrx_launcher.ctl.screen import screen_for


class Job:
    """It came to run a minute after it was first asked for."""

    async def wait_for(self, condition: str, timeout_s: float | None = None) -> JobStatus:
        del condition, timeout_s
        since = (datetime.now(UTC) - timedelta(seconds=42)).isoformat()
        return JobStatus("a", 0, JobState.RUNNING, since, since, (), 0, 1, 1, 1)


async def test_how_long_it_runs_is_told_of_the_moment_at_which_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def job_client(*_: object) -> AsyncIterator[Job]:
        yield Job()

    monkeypatch.setattr(look, "job_client", job_client)
    before = screen_for("table")
    asked = replace(before, now=before.now - timedelta(minutes=1))
    assert await look.wait(EtcdOptions(()), "a", "running", None, asked) == 0
    assert "a  running for 4" in capsys.readouterr().out
