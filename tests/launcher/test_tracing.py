"""The agent's telemetry as a service: what it gathered from ranks is not gathered a second time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from nvrx_launcher.tracing import Traced
from nvrx_launcher.tracing_later import Later

pytestmark = pytest.mark.anyio


class Enough(Exception):  # noqa: N818 - ends the service
    """Looked twice."""


@pytest.mark.parametrize(("delay_s", "done"), [(5.0, ["look", "flush", "look"]), (60.0, ["look", "look"])])
async def test_spans_of_ranks_are_sent_after_one_delay(
    monkeypatch: pytest.MonkeyPatch, delay_s: float, done: list[str]
) -> None:
    """A look gathers what ranks left since the last one; where spans are to be gathered for longer, it goes on."""
    calls: list[str] = []
    traced: Any = Traced.__new__(Traced)

    async def look() -> None:
        calls.append("look")
        if calls.count("look") == 2:
            raise Enough

    async def at_once(_moment_s: float) -> None:
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(anyio, "sleep_until", at_once)
    traced._config = SimpleNamespace(delay_s=delay_s, metrics_port=None)
    traced._later = SimpleNamespace(serve=anyio.sleep_forever)
    traced._outlet = SimpleNamespace(flush=lambda: calls.append("flush"))
    traced._tell_of_start, traced._look = list, look
    with pytest.raises(ExceptionGroup) as ended:
        await traced.serve()
    assert ended.group_contains(Enough)
    assert calls == done


async def test_at_the_end_what_the_agent_did_is_told_before_what_ranks_left_is_read() -> None:
    """Ranks may leave more than can be read in the time that an end has."""
    made: list[str] = []
    failed: list[Exception] = []
    traced: Any = Traced.__new__(Traced)
    traced._later = Later(failed.append)
    traced._broken, traced._watch = False, None
    traced._lookout = SimpleNamespace(
        number=None, observer=SimpleNamespace(finish=lambda _: made.append("finish"))
    )

    def reads() -> None:
        traced._later.put(made.append, "ranks")

    async def nothing(_: object) -> int:
        return 0

    async def sends() -> None:
        made.append("sent")

    traced._spools = SimpleNamespace(look=reads, retire=reads)
    traced._log = SimpleNamespace(new_bytes=nothing)
    traced._outlet = SimpleNamespace(settle=lambda: made.append("settle"), ends=list, close=sends)
    await traced.close()
    assert [what for what in made if what != "settle"] == ["finish", "ranks", "sent"]
    assert made[-2:] == ["settle", "sent"], "what was dropped is counted"
    assert failed == []
