"""What a person sees of a job: one line per change of state on stderr, and a closing summary.

A console that fails (a terminal that went away) is silent from then on; the job does not notice.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, TextIO

from nvrx_async.rounds.effects import Finished, Notice, Waiting
from nvrx_launcher.console_text import render
from nvrx_launcher.palette import PLAIN, Palette

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nvrx_async.rounds.events import Now
    from nvrx_launcher.story import Story

REPEAT_WAITING_S: Final = 60.0
SAVE_LIMIT_S: Final = 1.0
_INDENT = " " * 4


def _nothing() -> None:
    pass


class Console:
    """Writes notices as they come.

    `clock` gives seconds of CLOCK_BOOTTIME and the time in UTC. `before_line` is called before anything is
    written, so that a rank's unfinished line on the same terminal can be ended (OutputPrinter.break_line).
    `summary_file` gets the closing summary too.
    """

    def __init__(
        self,
        story: Story,
        *,
        stream: TextIO,
        clock: Callable[[], Now],
        palette: Palette = PLAIN,
        summary_file: Path | None = None,
        before_line: Callable[[], None] = _nothing,
    ) -> None:
        self._story = story
        self._stream = stream
        self._clock = clock
        self._palette = palette
        self._summary_file = summary_file
        self._before_line = before_line
        self._waiting: tuple[str, float] | None = None
        self._day = ""
        self._gone = False

    @property
    def story(self) -> Story:
        """What was told so far."""
        return self._story

    def show(self, notice: Notice) -> None:
        """Show one notice."""
        now = self._clock()
        if isinstance(notice, Waiting):
            if self._told_already(notice, now.s):
                return
            self._waiting = (notice.sentence, now.s)
        else:
            self._waiting = None
        lines = render(notice, self._story, self._palette, now.s)
        if isinstance(notice, Finished):
            plain = render(notice, self._story, PLAIN, now.s)
            self._story = self._story.told(notice, now.s)
            self._keep(plain, now)
            self._write(["", *_stamped(lines, now)])
            return
        self._story = self._story.told(notice, now.s)
        self._write([*self._new_day(now), *_stamped(lines, now)])

    def say(self, text: str) -> None:
        """A line of a service."""
        now = self._clock()
        self._write([*self._new_day(now), *_stamped([text], now)])

    def warn(self, text: str, hint: str = "") -> None:
        """A warning: something helpful is missing, the job goes on."""
        now = self._clock()
        lines = [self._palette.warning("warning:") + f" {text}"]
        if hint:
            lines.append(f"{self._palette.path('hint:')} {hint}")
        self._write([*self._new_day(now), *_stamped(lines, now)])

    def _told_already(self, notice: Waiting, now_s: float) -> bool:
        if self._waiting is None:
            return False
        sentence, told_s = self._waiting
        return notice.sentence == sentence and now_s < told_s + REPEAT_WAITING_S

    def _new_day(self, now: Now) -> list[str]:
        """The date, once a day: lines carry the time only."""
        day = now.utc[:10]
        if day == self._day:
            return []
        self._day = day
        return [self._palette.quiet(f"nvrx {day} UTC, job {self._story.run_id}")]

    def _keep(self, lines: Sequence[str], now: Now) -> None:
        if self._summary_file is None:
            return
        text = "\n".join([f"{now.utc}", *lines]) + "\n"
        trouble = ["its disk does not answer"]
        # Its disk may never answer, and the screen is to have the report in any case.
        writer = threading.Thread(target=_save, args=(self._summary_file, text, trouble), daemon=True)
        writer.start()
        writer.join(SAVE_LIMIT_S)
        if trouble:
            self.warn(f"the summary could not be written to {self._summary_file}: {trouble[0]}")

    def _write(self, lines: Sequence[str]) -> None:
        if self._gone:
            return
        self._before_line()
        try:
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()
        except (OSError, ValueError):  # the terminal or pipe is gone, or the stream closed
            self._gone = True


def _save(path: Path, text: str, trouble: list[str]) -> None:
    """Write the file; `trouble` holds why it is not there yet, or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        trouble[:] = [error.strerror or str(error)]
    else:
        trouble.clear()


def _stamped(lines: Sequence[str], now: Now) -> list[str]:
    """The first line with name and time of day, the others below it."""
    return [f"nvrx {now.utc[11:19]} {lines[0]}", *(f"{_INDENT}{line}" for line in lines[1:])]
