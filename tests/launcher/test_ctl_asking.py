"""Agents that do not take this shell's job token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from nvrx_async.probe.errors import UntrustedError
from nvrx_launcher.ctl import place


async def test_that_the_token_is_not_accepted_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask(address: str, *_: object, token: str | None) -> Mapping[str, Any]:
        assert token == "other"
        raise UntrustedError(f"{address} does not accept this job token (NVRX_JOB_TOKEN)")

    monkeypatch.setattr(place, "ask", ask)
    question = place.asking("other")
    for port in (1, 2, 1):
        with pytest.raises(UntrustedError):
            await question(f"h:{port}", "live", {}, 1.0)
    said = "warning: the agent at h:1 does not accept this job token (NVRX_JOB_TOKEN)\n"
    assert capsys.readouterr().err == said
