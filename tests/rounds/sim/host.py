"""Hosts, and processes that freeze and die; what reaches a frozen process waits, what reaches a dead one is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from rounds.sim.timeline import Call, Timeline, Timer


@dataclass(slots=True)
class Host:
    """One machine (or container): its own clock, its own process table.

    `rate` is the drift of its clock; `flaky` delays and loses what it sends. Containers of one machine share
    `boot_id`, not `pid_namespace`.
    """

    name: str
    timeline: Timeline
    boot_id: str
    pid_namespace: str
    rate: float = 1.0
    offset_s: float = 0.0
    cut: bool = False
    cut_from_peers: bool = False
    answers_lost: bool = False
    requests_lost: bool = False
    answer_delay_s: float = 0.0
    flaky: bool = False
    frozen: bool = False
    next_pid: int = 100
    next_port: int = 20000
    processes: dict[int, Process] = field(default_factory=dict)
    _backlog: list[Call] = field(default_factory=list)

    def clock_s(self) -> float:
        return self.offset_s + self.timeline.now_s * self.rate

    def at_clock(self, clock_s: float, call: Call) -> Timer:
        """Call when this host's clock shows `clock_s`."""
        return self.timeline.at((clock_s - self.offset_s) / self.rate, call)

    def pid(self) -> int:
        self.next_pid += 1
        return self.next_pid

    def run(self, call: Call) -> None:
        """Call now, or when the whole host thaws."""
        if self.frozen:
            self._backlog.append(call)
        else:
            call()

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        backlog, self._backlog = self._backlog, []
        for call in backlog:
            call()


class Process:
    """A process on a host. All that happens in it goes through `run`."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.pid = host.pid()
        self.start_ticks = int(host.clock_s() * 100)
        self.alive = True
        self.frozen = False
        self._backlog: list[Call] = []
        host.processes[self.pid] = self

    def run(self, call: Call) -> None:
        """Call now; when frozen, on thawing; when dead, never."""
        self.host.run(lambda: self._run(call))

    def after(self, delay_s: float, call: Call) -> Timer:
        return self.host.timeline.after(delay_s, lambda: self.run(call))

    def at_clock(self, clock_s: float, call: Call) -> Timer:
        return self.host.at_clock(clock_s, lambda: self.run(call))

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        backlog, self._backlog = self._backlog, []
        while backlog:
            if self.frozen:
                self._backlog = backlog + self._backlog
                return
            call = backlog.pop(0)
            self._run(call)

    def freeze_before(self, call: Call) -> None:
        """Freeze right before doing `call`, which is the first thing done on thawing."""
        self.frozen = True
        self._backlog.insert(0, call)

    def die(self) -> None:
        self.alive = False
        self._backlog.clear()

    def _run(self, call: Call) -> None:
        if not self.alive:
            return
        if self.frozen:
            self._backlog.append(call)
        else:
            call()
