"""Sections and steps of a rank: parts of the work with deadlines of their own. Standard library only."""

from __future__ import annotations

from _thread import get_ident
from contextvars import ContextVar
from time import monotonic_ns
from typing import TYPE_CHECKING

from nvrx_async.ranklink import page as layout
from nvrx_async.ranklink.page import (
    H_LOST,
    S_IDENT,
    S_NAME,
    S_OWN,
    S_SEQUENCE,
    S_SINCE,
    S_START,
    T_OPEN,
)

if TYPE_CHECKING:
    from types import TracebackType

    from nvrx_async.ranklink.rank import Rank
    from nvrx_async.ranklink.rank_reports import Reports

_ENCLOSING: ContextVar[Section | None] = ContextVar("nvrx_section", default=None)


class Section:
    """An open section; see `Rank.section`. One object is good for one `with` at a time."""

    __slots__ = ("_at", "_inner", "_limit_s", "_name", "_outer", "_rank", "_slot", "words")

    def __init__(self, rank: Reports, name: str, limit_s: float | None) -> None:
        self._rank, self._name, self._limit_s = rank, name, limit_s
        self._at = self._slot = self._inner = 0
        self._outer: Section | None = None
        self.words: memoryview | None = None

    def __enter__(self) -> Section:  # noqa: PYI034 - Self would cost an import of typing
        rank = self._rank
        rank.heartbeat()
        words = rank.words
        now, ident = monotonic_ns(), get_ident()
        outer = _ENCLOSING.get()
        if outer is not None and outer.words is not words:  # of an earlier connection, or of the parent
            outer = None
        try:
            at = rank.free_sections.pop()
        except IndexError:
            words[H_LOST] += 1
            return self
        name = rank.name_index(self._name, self._limit_s) + 1
        words[at + S_SEQUENCE] += 1
        words[at + S_IDENT], words[at + S_START], words[at + S_OWN], words[at + S_SINCE] = ident, now, 0, now
        words[at + S_NAME] = name
        words[at + S_SEQUENCE] += 1
        slot = rank.slots[ident]
        words[slot + T_OPEN] += 1
        self._at, self._slot, self.words, self._outer, self._inner = at, slot, words, outer, 0
        if outer is not None:
            outer.pause(now)
        _ENCLOSING.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        words, at, rank = self.words, self._at, self._rank
        if words is None or words is not rank.words:  # no place was free, or the page is gone
            self.words = None
            return
        now = monotonic_ns()
        if words[at + S_SINCE]:
            words[at + S_OWN] += now - words[at + S_SINCE]
        self._account(words, words[at + S_OWN])
        words[at + S_SEQUENCE] += 1
        words[at + S_NAME] = words[at + S_SINCE] = 0
        words[at + S_SEQUENCE] += 1
        rank.heartbeat()
        words[self._slot + T_OPEN] -= 1
        self.words = None
        rank.free_sections.append(at)
        if self._outer is not None:
            self._outer.resume(now)
        if _ENCLOSING.get() is self:
            _ENCLOSING.set(self._outer)

    def _account(self, words: memoryview, own_ns: int) -> None:
        at = layout.NAMES + (words[self._at + S_NAME] - 1) * layout.NAME_WORDS
        if words[at + layout.N_COUNT] == 0:
            words[at + layout.N_FIRST] = own_ns
        elif own_ns > words[at + layout.N_LONGEST]:
            words[at + layout.N_LONGEST] = own_ns
        words[at + layout.N_COUNT] += 1

    def pause(self, now: int) -> None:
        """A section was opened inside this one."""
        self._inner += 1
        words = self.words
        if words is not None and self._inner == 1:
            at = self._at
            words[at + S_SEQUENCE] += 1
            words[at + S_OWN] += now - words[at + S_SINCE]
            words[at + S_SINCE] = 0
            words[at + S_SEQUENCE] += 1

    def resume(self, now: int) -> None:
        """The section inside this one was closed."""
        self._inner -= 1
        words = self.words
        if words is not None and self._inner == 0:
            at = self._at
            words[at + S_SEQUENCE] += 1
            words[at + S_SINCE] = now
            words[at + S_SEQUENCE] += 1


class Steps:
    """Iterator of `Rank.steps`. A loop that is left early closes its step when this object goes."""

    def __init__(self, rank: Rank, start: int, stop: int) -> None:
        self._rank, self._next, self._stop = rank, start, stop
        self._section: Section | None = None
        rank.expect(stop)

    def __iter__(self) -> Steps:
        return self

    def __aiter__(self) -> Steps:
        return self

    def __next__(self) -> int:
        step = self._begin()
        if step is None:
            raise StopIteration
        return step

    async def __anext__(self) -> int:
        step = self._begin()
        if step is None:
            raise StopAsyncIteration
        return step

    def __del__(self) -> None:
        self._end()

    def _begin(self) -> int | None:
        self._end()
        step = self._next
        if step >= self._stop:
            return None
        self._next += 1
        self._rank.progress(step=step)
        self._section = self._rank.section("step").__enter__()
        return step

    def _end(self) -> None:
        section, self._section = self._section, None
        if section is not None:
            section.__exit__(None, None, None)
