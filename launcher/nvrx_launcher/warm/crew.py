"""The idle processes of a node: when they are prepared, which ranks they may become, and why not.

`docs/restart.md` says what is promised. The keeper owns the processes, `nvrx_launcher.warm.hook` runs in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from nvrx_launcher.config import WorkersConfig
from nvrx_launcher.keeper_events import HookTold, IdleLost
from nvrx_launcher.warm import plan
from nvrx_launcher.workers import Hook, RankCommand

SETTLE_S = 5.0
"""How long a round must run before idle processes for the next one are prepared."""

MAX_FAILURES = 2
"""So many idle processes may be lost in a row; then the job's ranks start cold."""

PREPARE_LIMIT_S = 120.0
"""An idle process that is not ready by then is given up."""


class Orders(Protocol):
    """The keeper, as far as it is needed here."""

    def prepare(self, command: RankCommand, hook: Hook) -> None:
        """Start an idle process."""

    def discard(self, local_rank: int) -> None:
        """Kill an idle process."""


@dataclass(slots=True)
class _Idle:
    """An idle process; `pid` is 0 until it is ready. `blind`: no rank of this node was seen to import."""

    command: RankCommand
    blind: bool = False
    pid: int = 0
    account: str = ""


class WarmCrew:
    """See the module. `say` is for people, `explain` for the agent's log, `quiet_in_s` as in `quiet`."""

    def __init__(
        self,
        workers: WorkersConfig,
        environment: Mapping[str, str],
        *,
        say: Callable[[str], None],
        explain: Callable[[str], None],
        quiet_in_s: Callable[[], float] = lambda: 0.0,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._quiet_in_s = quiet_in_s
        self._warm = workers.warm
        self._say = say
        self._explain = explain
        self._settle_s = settle_s
        self._cold_because = plan.refusal(workers, environment)
        self._idle: dict[int, _Idle] = {}
        self._commands: tuple[RankCommand, ...] = ()
        self._watched: dict[str, tuple[str, str]] = {}
        self._failures = 0
        self._keeper: Orders | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._settled = False
        self._stands_by = False
        self._told: dict[str, tuple[str, str]] = {}
        if self._cold_because is not None:
            self._explain(f"warm workers: none; {self._cold_because}")

    # A round ------------------------------------------------------------------------------------------

    def dress(self, commands: Sequence[RankCommand]) -> tuple[RankCommand, ...]:
        """The commands of a round's ranks, each warm where that is safe, else cold or watched."""
        self._stop_timer()
        if self._cold_because is not None:
            return tuple(commands)
        dressed = tuple(self._dressed(command) for command in commands)
        if self._commands:
            warm = sum(command.release is not None for command in dressed)
            self._explain(f"warm workers: {warm} of {len(dressed)} ranks start warm")
        return dressed

    def runs(self, commands: Sequence[RankCommand]) -> None:
        """A round was started; if it lives for a while, the next one is prepared."""
        self._stands_by = False
        self._commands = tuple(plan.idle_command(command) for command in commands)
        self._later(self._settle_s, self._next)

    def awaits(self, commands: Sequence[RankCommand]) -> None:
        """This node is a spare. It has seen no rank run: what others saw decides whether its processes are used."""
        if not self._idle:
            self.runs(commands)
            self._stands_by = True

    @property
    def seen(self) -> dict[str, list[str]]:
        """For each module that ranks of this node were seen to import: its file, and variables changed before."""
        return {name: [origin, changed] for name, (origin, changed) in self._watched.items()}

    def told(self, seen: object) -> None:
        """What ranks of other nodes were seen to import; what is not of that form is ignored."""
        if isinstance(seen, Mapping):
            self._told = {
                str(name): (str(said[0]), str(said[1]))
                for name, said in seen.items()
                if isinstance(said, list) and len(said) == len(("file", "changed"))
            }

    def _dressed(self, command: RankCommand) -> RankCommand:
        idle = self._idle.pop(command.local_rank, None)
        if idle is not None and idle.blind and (why := self._blind_doubt(idle)) is not None:
            self._explain(f"warm workers: local rank {command.local_rank} of this spare starts cold: {why}")
            if self._keeper is not None:
                self._keeper.discard(command.local_rank)
            idle = None
        if idle is None:
            watch = None if self._knows_all() else plan.hook("watch", self._warm.imports)
            return replace(command, hook=watch)
        release = plan.release(idle.pid, idle.command, command) if idle.pid else None
        if release is None:
            why = plan.difference(idle.command, command) if idle.pid else "it is not ready yet"
            self._explain(f"warm workers: local rank {command.local_rank} starts cold: {why}")
            if self._keeper is not None:
                self._keeper.discard(command.local_rank)
        return replace(command, release=release)

    def _blind_doubt(self, idle: _Idle) -> str | None:
        """Why an idle process of a spare may differ from a cold rank; a number of them is a person's word."""
        if self._warm.count is not None:
            return None
        untold = [name for name in self._warm.imports if name not in self._told]
        if untold:
            return f"no node told that its ranks import {', '.join(untold)}"
        return plan.doubt(self._told, idle.account)

    def _knows_all(self) -> bool:
        return all(name in self._watched for name in self._warm.imports)

    # Idle processes -----------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """How many idle processes could become ranks now."""
        return sum(1 for idle in self._idle.values() if idle.pid)

    def keeper(self, keeper: Orders | None) -> None:
        """Another keeper, or none: idle processes died with the one before."""
        self._keeper = keeper
        self._idle.clear()
        self._stop_timer()

    def on(self, event: HookTold | IdleLost) -> None:
        """What became of a hooked process."""
        match event:
            case HookTold(kind="imports", text=text):
                self._noted(text)
            case HookTold(kind="ready", local_rank=local_rank, pid=pid, text=text):
                self._ready(local_rank, pid, text)
            case HookTold(kind="unfit", text=text):
                self._stay_cold(text)
            case IdleLost(local_rank=local_rank, why=why):
                self._lost(local_rank, why)
            case _:
                pass

    def _next(self) -> None:
        """Prepare idle processes one after the other: one core at most is taken from training."""
        if self._cold_because is not None or self._keeper is None:
            return
        if self._warm.count is None and not self._stands_by and not self._knows_all():
            missing = [name for name in self._warm.imports if name not in self._watched]
            self._explain(f"warm workers: none yet; no rank was seen to import {', '.join(missing)}")
            self._settled = True
            return
        free = [command for command in self._commands if command.local_rank not in self._idle]
        wanted = plan.wanted(self._warm, len(self._commands)) - len(self._idle)
        if not free or wanted <= 0:
            self._all_ready()
        elif self._warm.count is None and (have := available_bytes()) < plan.AUTO_NEEDS_BYTES:
            self._explain(f"warm workers: {len(self._idle)}; only {have >> 20} MiB of memory are available")
        elif (wait_s := self._quiet_in_s()) > 0:
            self._explain(f"warm workers: a rank saves or evaluates; looked at again in {wait_s:.1f} s")
            self._later(wait_s, self._next)
        else:
            self._idle[free[0].local_rank] = _Idle(free[0], blind=not self._knows_all())
            self._keeper.prepare(free[0], plan.hook("warm", self._warm.imports))
            self._later(PREPARE_LIMIT_S, lambda: self._give_up(free[0].local_rank))

    def _ready(self, local_rank: int, pid: int, account: str) -> None:
        idle = self._idle.get(local_rank)
        if idle is None or idle.pid:
            return  # it was given up meanwhile
        why = plan.doubt(self._watched, account)
        if why is not None:
            self._stay_cold(why)
            return
        idle.pid, idle.account, self._failures = pid, account, 0
        self._next()

    def _all_ready(self) -> None:
        self._stop_timer()
        pids = [idle.pid for idle in self._idle.values()]
        if pids:
            own = sum(proportional_bytes(pid) for pid in pids)
            self._explain(f"warm workers: {len(pids)} ready, {own >> 20} MiB of memory")

    def _give_up(self, local_rank: int) -> None:
        if self._keeper is not None:
            self._keeper.discard(local_rank)
        self._lost(local_rank, f"it was not ready after {PREPARE_LIMIT_S:g} s")

    def _lost(self, local_rank: int, why: str) -> None:
        if self._idle.pop(local_rank, None) is None:
            return
        self._failures += 1
        self._explain(f"warm workers: the one of local rank {local_rank} is lost: {why}")
        if self._failures >= MAX_FAILURES:
            self._stay_cold(why)
        else:
            self._later(self._settle_s, self._next)

    def _stay_cold(self, why: str) -> None:
        """From now on every rank starts cold."""
        self._cold_because = why
        self._stop_timer()
        for local_rank in self._idle:
            if self._keeper is not None:
                self._keeper.discard(local_rank)
        self._idle.clear()
        self._say(f"restarts will be cold: {why}")

    def _noted(self, text: str) -> None:
        name, origin, changed = text.split("\t")
        known = self._watched.get(name)
        if known is None or not known[1]:
            self._watched[name] = (origin, changed)
        if self._settled and self._knows_all():
            self._settled = False
            self._next()

    # Timers -------------------------------------------------------------------------------------------

    def _later(self, delay_s: float, job: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, job)

    def _stop_timer(self) -> None:
        self._settled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def available_bytes() -> int:
    """Memory that programs can still get (MemAvailable)."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return 0


def proportional_bytes(pid: int) -> int:
    """Memory of a process, what it shares with others counted in parts; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))
