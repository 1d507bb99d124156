"""Pages as monitors see them, made by hand."""

from __future__ import annotations

from nvrx_async.hang.monitor import Seen
from nvrx_async.hang.outside import Sample
from nvrx_async.ranklink.page import NameView, PageView, SectionView, ThreadView

MAIN = 11


def thread(
    last_s: float, step: int | None = None, *, reports: int = 9, gap_s: float = 0.0, opened: int = 0
) -> ThreadView:
    """The training thread."""
    return ThreadView(MAIN, 100, True, last_s, reports, step, last_s, gap_s, opened)


def side_thread(last_s: float) -> ThreadView:
    """Another thread that beats."""
    return ThreadView(12, 101, False, last_s, 1000, None, 0.0, 0.1, 0)


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
