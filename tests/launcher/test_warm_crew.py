"""When idle processes are prepared, which ranks they become, and when ranks start cold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from nvrx_async.hang.flight_recorder import DUMPS
from nvrx_launcher.config import ProgramKind, WarmConfig, WorkersConfig
from nvrx_launcher.keeper_events import HookTold, IdleLost
from nvrx_launcher.warm import WarmCrew, plan
from nvrx_launcher.workers import Hook, RankCommand

TORCH = "/lib/torch/__init__.py"


class Orders:
    def __init__(self) -> None:
        self.prepared: list[RankCommand] = []
        self.discarded: list[int] = []
        self.came = asyncio.Event()

    def prepare(self, command: RankCommand, hook: Hook) -> None:
        assert hook.mode == "warm"
        self.prepared.append(command)
        self.came.set()

    def discard(self, local_rank: int) -> None:
        self.discarded.append(local_rank)

    async def next(self) -> RankCommand:
        await asyncio.wait_for(self.came.wait(), 5)
        self.came.clear()
        return self.prepared[-1]


class Stand:
    def __init__(
        self,
        *,
        count: int | None = None,
        kind: ProgramKind = ProgramKind.SCRIPT,
        quiet_in_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.over = False
        workers = WorkersConfig(("python",), kind, "x", "r", 1.0, 1.0, warm=WarmConfig(count, ("torch",)))
        self.said: list[str] = []
        self.log: list[str] = []
        self.explained = asyncio.Event()
        self.orders = Orders()
        self.crew = WarmCrew(
            workers, {}, say=self.said.append, explain=self.explain, quiet_in_s=quiet_in_s, settle_s=0.0
        )
        self.crew.keeper(self.orders)

    def explain(self, line: str) -> None:
        self.log.append(line)
        self.explained.set()

    def begin(self, number: int = 0, **changes: str) -> tuple[RankCommand, ...]:
        plain = commands(number, **changes)
        dressed = self.crew.dress(plain)
        self.crew.runs(plain)
        return dressed

    def watched(self, changed: str = "", origin: str = TORCH) -> None:
        self.crew.on(HookTold(0, 10, "imports", f"torch\t{origin}\t{changed}"))

    async def all_ready(self) -> None:
        for pid in (100, 101):
            rank = (await self.orders.next()).local_rank
            self.crew.on(HookTold(rank, pid + 0, "ready", f"torch={TORCH}"))


def commands(number: int, **changes: str) -> tuple[RankCommand, ...]:
    env = {"STATIC": "x", "NVRX_ROUND": str(number), "WORLD_SIZE": "2", **changes}
    return tuple(
        RankCommand(i, ("python", "x"), {**env, "RANK": str(i), "LOCAL_RANK": str(i)}, "/", "o", "e")
        for i in range(2)
    )


async def test_the_first_round_is_watched_and_the_second_is_warm() -> None:
    stand = Stand()
    assert [one.hook and one.hook.mode for one in stand.begin()] == ["watch", "watch"]
    stand.watched()
    await stand.all_ready()
    warm = stand.begin(1)
    assert [(one.release and one.release.pid, one.hook) for one in warm] == [(100, None), (101, None)]
    assert [one.release and one.release.wait_ms for one in warm] == [0, plan.HEAD_START_MS]
    assert warm[1].release is not None
    assert warm[1].release.names == {"NVRX_ROUND": "1", "WORLD_SIZE": "2", "RANK": "1"}
    assert all("RANK" not in one.env and one.env["STATIC"] == "x" for one in stand.orders.prepared)
    await stand.all_ready()  # filled again
    stand.crew.keeper(None)


async def test_nothing_is_prepared_before_a_rank_was_seen_to_import() -> None:
    stand = Stand()
    stand.begin()
    await asyncio.wait_for(stand.explained.wait(), 5)
    assert stand.log == ["warm workers: none yet; no rank was seen to import torch"]
    assert not stand.orders.prepared
    stand.watched()
    assert len(stand.orders.prepared) == 1
    stand.crew.keeper(None)


@pytest.mark.parametrize(
    ("changed", "origin", "why"),
    [
        ("OMP_NUM_THREADS", TORCH, "the script changes OMP_NUM_THREADS before it imports torch"),
        ("", "/else/torch.py", f"the script imports torch from /else/torch.py, an idle process from {TORCH}"),
    ],
)
async def test_a_script_that_differs_stays_cold(changed: str, origin: str, why: str) -> None:
    stand = Stand()
    stand.begin()
    stand.watched(changed, origin)
    rank = await stand.orders.next()
    stand.crew.on(HookTold(rank.local_rank, 100, "ready", f"torch={TORCH}"))
    assert stand.said == [f"restarts will be cold: {why}"]
    assert stand.orders.discarded == [0]
    assert [(one.release, one.hook) for one in stand.begin(1)] == [(None, None)] * 2


async def test_another_environment_starts_cold() -> None:
    stand = Stand()
    stand.begin()
    stand.watched()
    await stand.all_ready()
    assert [one.release for one in stand.begin(1, STATIC="y")] == [None, None]
    assert stand.orders.discarded == [0, 1]
    assert "warm workers: local rank 1 starts cold: STATIC changed" in stand.log


@pytest.mark.parametrize("name", DUMPS)
async def test_the_flight_recorders_folder_is_one_of_the_round(name: str) -> None:
    stand = Stand()
    stand.begin(**{name: "/logs/round_0/"})
    stand.watched()
    await stand.all_ready()
    warm = stand.begin(1, **{name: "/logs/round_1/"})
    assert [one.release and one.release.names[name] for one in warm] == ["/logs/round_1/"] * 2
    stand.crew.keeper(None)
    stand.crew.keeper(None)


async def test_two_losses_in_a_row_are_enough() -> None:
    stand = Stand()
    stand.begin()
    stand.watched()
    for _ in range(2):
        rank = await stand.orders.next()
        stand.crew.on(IdleLost(rank.local_rank, 100, "it exited with 1: boom"))
    assert stand.said == ["restarts will be cold: it exited with 1: boom"]


async def test_a_new_keeper_has_no_idle_processes() -> None:
    stand = Stand()
    stand.begin()
    stand.watched()
    await stand.all_ready()
    stand.crew.keeper(None)
    stand.crew.keeper(Orders())
    assert [one.release for one in stand.begin(1)] == [None, None]
    stand.crew.keeper(None)


async def test_a_spare_prepares_as_many_as_a_person_says_and_uses_them() -> None:
    asked = Stand(count=1)
    asked.crew.awaits(commands(0))
    assert (await asked.orders.next()).local_rank == 0
    asked.crew.on(HookTold(0, 100, "ready", f"torch={TORCH}"))
    assert len(asked.orders.prepared) == 1
    assert [one.release and one.release.pid for one in asked.begin(1)] == [100, None]
    asked.crew.keeper(None)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"torch": [TORCH, ""]}, None),
        (None, "no node told that its ranks import torch"),
        ({"torch": "nonsense"}, "no node told that its ranks import torch"),
        (
            {"torch": [TORCH, "OMP_NUM_THREADS"]},
            "the script changes OMP_NUM_THREADS before it imports torch",
        ),
        (
            {"torch": ["/else.py", ""]},
            f"the script imports torch from /else.py, an idle process from {TORCH}",
        ),
    ],
)
async def test_a_spare_uses_its_processes_when_another_node_tells_what_ranks_import(
    told: object, why: str | None
) -> None:
    stand = Stand()
    stand.crew.awaits(commands(0))
    await stand.all_ready()
    stand.crew.told(told)
    started = stand.begin(1)
    if why is None:
        assert [one.release and one.release.pid for one in started] == [100, 101]
    else:
        assert [one.hook and one.hook.mode for one in started] == ["watch", "watch"]
        assert stand.orders.discarded == [0, 1]
        assert f"warm workers: local rank 0 of this spare starts cold: {why}" in stand.log
        assert not stand.said, "its own ranks may be warm at the next restart"
    stand.crew.keeper(None)


async def test_what_ranks_were_seen_to_import_is_for_other_nodes_too() -> None:
    stand = Stand()
    stand.begin()
    stand.watched("A,B")
    assert stand.crew.seen == {"torch": [TORCH, "A,B"]}
    stand.crew.keeper(None)


async def test_nothing_is_prepared_while_a_rank_saves_or_evaluates() -> None:
    waits = iter([0.01, 0.02, 0.0])
    stand = Stand(quiet_in_s=lambda: next(waits, 0.0))
    stand.begin()
    stand.watched()
    assert (await stand.orders.next()).local_rank == 0
    busy = [line for line in stand.log if "saves or evaluates" in line]
    assert len(busy) == 2
    assert next(waits, None) is None, "it asked each time"
    stand.crew.keeper(None)


async def test_a_round_that_ends_while_one_waits_for_a_save_asks_no_more() -> None:
    stand = Stand(quiet_in_s=lambda: 0.0 if stand.over else 1e6)
    stand.begin()
    stand.watched()
    await asyncio.wait_for(stand.explained.wait(), 5)
    stand.over = True
    assert stand.begin(1)[0].release is None
    assert (await stand.orders.next()).local_rank == 0, "the next round asks anew"
    stand.crew.keeper(None)


@pytest.mark.parametrize(
    ("kind", "count", "environment"),
    [
        (ProgramKind.EXECUTABLE, None, {}),
        (ProgramKind.SCRIPT, 0, {}),
        (ProgramKind.SCRIPT, None, {"PYTHONPROFILEIMPORTTIME": "1"}),
    ],
)
def test_who_can_never_be_warm(kind: ProgramKind, count: int | None, environment: dict[str, str]) -> None:
    workers = WorkersConfig(("python",), kind, "x", "r", 1.0, 1.0, warm=WarmConfig(count, ("torch",)))
    assert plan.refusal(workers, environment)
    assert plan.refusal(replace(workers, kind=ProgramKind.MODULE, warm=WarmConfig(1, ("torch",))), {}) is None
