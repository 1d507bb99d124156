"""Pages as monitors see them, made by hand."""

from __future__ import annotations

from collections.abc import Callable

from nvrx_async.hang.monitor import HangMonitor, Seen
from nvrx_async.hang.outside import Sample
from nvrx_async.ranklink.page import NameView, PageView, SectionView, ThreadView

MAIN = 11


def thread(
    last_s: float, step: int | None = None, *, reports: int = 9, gap_s: float = 0.0, opened: int = 0
) -> ThreadView:
    """The training thread."""
    return ThreadView(MAIN, 100, True, last_s, reports, step, last_s, gap_s, opened)


def side_thread(last_s: float, *, principal: bool = False, step: int | None = None) -> ThreadView:
    """Another thread that beats; `principal`: the one that had connected."""
    return ThreadView(12, 101, principal, last_s, 1000, step, 0.0, 0.0 if principal else 0.1, 0)


def section(
    name: str, now_s: float, own_s: float, *, runs: bool = True, limit_s: float | None = None
) -> SectionView:
    """An open section in which `own_s` was spent."""
    return SectionView(name, MAIN, now_s - own_s, own_s, runs, limit_s)


def page(
    now_s: float,
    *threads: ThreadView,
    sections: tuple[SectionView, ...] = (),
    names: tuple[NameView, ...] = (),
    hello_s: float | None = 1.0,
    done_s: float | None = None,
) -> PageView:
    """What a rank has reported."""
    return PageView(now_s, 0, 0, 7, hello_s, None, done_s, MAIN, 60, None, threads, sections, names)


def silent(now_s: float) -> PageView:
    """A rank that never said anything."""
    return page(now_s, hello_s=None)


def busy(view: PageView) -> Seen:
    """A rank that uses a whole core."""
    return Seen(view, Sample(view.at_s, view.at_s, "R"))


def still(view: PageView, *, states: str = "S", output_s: float = 0.0) -> Seen:
    """A rank that uses no CPU time."""
    return Seen(view, Sample(view.at_s, 5.0, states, output_s))


Rank = Callable[[float], Seen]


def run(
    watch: HangMonitor, until_s: float, *ranks: Rank, start_s: float = 0.0
) -> list[tuple[float, str, bool]]:
    """Look when the monitor wants to; all findings with their moments."""
    found, now_s, looks = [], start_s, 0
    while now_s <= until_s:
        look = watch.look(now_s, now_s, {i: rank(now_s) for i, rank in enumerate(ranks)})
        found += [(now_s, one.sentence, one.hung) for one in look.findings]
        assert look.next_s > now_s or look.findings
        before_s, now_s, looks = now_s, max(look.next_s, now_s + 1e-6), looks + 1
        while before_s < now_s:  # the lease is renewed all the time
            watch.alive(before_s)
            before_s += 2.0
        assert looks < 1000, "it polls"
    return found
