"""Sees what happens in one life of the agent where all of it passes, and has an observer told of it later.

It sits among the machines, because there all events pass with the moment they were seen at. Decides nothing and wants
nothing done; what it fails at ends the telling, never the job. It stands in the way of each restart: it notes, and
all that is made of it is made by others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nvrx_async.etcd.types import Scope
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Interrupt, Round
from nvrx_async.rounds.effects import Decision, Notice, Registered
from nvrx_async.rounds.events import Deposed, Elected, Event, KeeperLost, Now, RankEnded, RankHung, RanksGone
from nvrx_async.rounds.mirror import Mirror
from nvrx_launcher.clock import boottime_s
from nvrx_launcher.tracing_observer import Observer
from nvrx_launcher.tracing_round import About, named, trace_root
from nvrx_telemetry import semconv
from nvrx_telemetry.traceparent import SpanName

NOTHING = Decision((), None, "looks on")
_NO_SCOPES: frozenset[Scope] = frozenset()
_TOLD = (RankEnded, RanksGone, RankHung, Elected, Deposed, KeeperLost)


class Lookout:
    """See the module. Implements `nvrx_async.rounds.effects.Machine`.

    `later` has something called later, in order. `hung_since` answers when a rank that hangs last gave a sign of life
    (CLOCK_BOOTTIME). `fails` hears of a bug here.
    """

    def __init__(
        self,
        about: About,
        mirror: Mirror,
        observer: Observer,
        later: Callable[..., None],
        hung_since: Callable[[int, int], float | None],
        fails: Callable[[Exception], None],
    ) -> None:
        self.observer = observer
        self.number: int | None = None
        """The round that is known here, None before the first."""
        self.tag = ""
        """What a line of the log says of its trace; empty before the first round."""
        self._about = about
        self._mirror = mirror
        self._later = later
        self._hung_since = hung_since
        self._fails = fails
        self._keys: AttemptKeys | None = None
        self._round_key = self._interrupt_key = ""
        self._seen_at = 0
        self._root = SpanName(0, 0)

    def scopes(self) -> frozenset[Scope]:
        """Nothing: it sees what the machines follow."""
        return _NO_SCOPES

    def observe(self, event: Event, now: Now) -> None:
        """Note an event."""
        if not isinstance(event, _TOLD):
            return
        since_s = None
        if isinstance(event, RankHung):
            since_s = self._hung_since(event.round, event.rank)
        self._later(self.observer.observe, event, now.s, since_s)

    def decide(self, now: Now) -> Decision:
        """Look at the round; wants nothing done."""
        try:
            self._look(now.s)
        except Exception as error:  # noqa: BLE001 - outermost frame of a helper: the machines beside it go on
            self._fails(error)
        return NOTHING

    def notice(self, notice: Notice) -> None:
        """People are told something."""
        if isinstance(notice, Registered):
            self._about = replace(self._about, node_id=notice.node.node_id, attempt=notice.attempt)
            self._keys = AttemptKeys(self._about.run_id, notice.attempt)
            self._round_key = self._keys.round
        self._later(self.observer.notice, notice, boottime_s())

    def above_ranks(self, number: int) -> SpanName | None:
        """The span that ranks of this round are below; None for a round that is not known here."""
        return named(self._about, self._root, semconv.RUN_START) if number == self.number else None

    # Inside -------------------------------------------------------------------------------------------

    def _look(self, now_s: float) -> None:
        self._look_for_interrupt(now_s)
        mirror = self._mirror
        revision = mirror.revision(self._round_key)
        if revision != self._seen_at:
            self._seen_at = revision
            now_round = mirror.record(Round, self._round_key)
            if now_round is not None and now_round.number != self.number:
                self._opens(now_round, now_s)
                self._look_for_interrupt(now_s)

    def _look_for_interrupt(self, now_s: float) -> None:
        if self._interrupt_key and self._mirror.revision(self._interrupt_key):
            interrupt = self._mirror.record(Interrupt, self._interrupt_key)
            self._interrupt_key = ""
            self._later(self.observer.interrupted, self.number, interrupt, now_s)

    def _opens(self, now_round: Round, now_s: float) -> None:
        self.number, self._root = now_round.number, trace_root(self._about, now_round)
        line = named(self._about, self._root, semconv.CYCLE_START)
        self.tag = f" trace_id={line.trace_id:032x} span_id={line.span_id:016x}"
        self._interrupt_key = self._keys.interrupt(now_round.number) if self._keys is not None else ""
        self._later(self.observer.opened, now_round, now_s)
