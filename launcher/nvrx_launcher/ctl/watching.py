"""A picture that is drawn again: in place on a terminal, as lines elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nvrx_launcher.ctl.table import cut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvrx_launcher.ctl.screen import Screen

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


async def redrawn(
    screen: Screen,
    wait: Callable[[float | None], Awaitable[None]],
    picture: Callable[[], Awaitable[Sequence[str] | None]],
    every_s: float,
) -> None:
    """Draw at the start, at every change, and every so often for what no change tells; ends when `picture` is None.

    `wait` returns at the next change, or after so many seconds. Elsewhere than on a terminal nothing is drawn
    over: a picture is written where it differs from the last one.
    """
    last: Sequence[str] = ()
    with _alternate(screen):
        while (lines := await picture()) is not None:
            if screen.redraws:
                _draw(lines)
            elif list(lines) != list(last):
                screen.lines([*lines, ""])
            last = lines
            await wait(every_s if screen.redraws else None)


def _draw(lines: Sequence[str]) -> None:
    size = shutil.get_terminal_size((80, 24))
    shown = [line if "\x1b" in line else cut(line, size.columns) for line in lines[: size.lines - 1]]
    if len(lines) > size.lines - 1:
        shown[-1] = f"... {len(lines) - size.lines + 2} more lines; a larger window shows them"
    sys.stdout.write(_HOME + "".join(f"{line}{_CLEAR_LINE}\r\n" for line in shown) + _CLEAR_BELOW)
    sys.stdout.flush()


@contextmanager
def _alternate(screen: Screen) -> Iterator[None]:
    """The terminal's second screen, given back whatever happens."""
    if not screen.redraws:
        yield
        return
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
