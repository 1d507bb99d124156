"""What this agent tells people: its console, the history and decisions in its log folder, the reply to who started it.

All of it is written by threads of its own (`Screen`): nothing here waits for a terminal or a disk.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from nvrx_async.job.records import Ending, Outcome
from nvrx_async.rounds.effects import Finished, Notice
from nvrx_launcher.clock import boottime_s, now
from nvrx_launcher.config import LaunchConfig
from nvrx_launcher.console import Console
from nvrx_launcher.history import FILE, DecisionLog, History, HistoryThread
from nvrx_launcher.output import Output
from nvrx_launcher.palette import palette_for
from nvrx_launcher.reply_file import write_reply
from nvrx_launcher.screen import Screen
from nvrx_launcher.story import Story


class Reporter:
    """See the module. `screen` writes to the console `messages`, `files` to the log folder."""

    def __init__(
        self,
        config: LaunchConfig,
        environment: Mapping[str, str],
        *,
        files: Screen,
        screen: Screen,
        output: Output,
        messages: TextIO,
    ) -> None:
        self._environment = environment
        self._files = files
        self._screen = screen
        self._output = output
        self._console = Console(
            Story(config.run_id, config.job.max_restarts, str(config.logs.folder), boottime_s()),
            stream=messages,
            clock=now,
            palette=palette_for(terminal=sys.stderr.isatty(), environment=environment),
            summary_file=config.logs.summary,
            before_line=output.break_line,
        )
        self.history = HistoryThread(
            History(config.logs.folder / FILE, config.job, config.launch_id), files.do
        )
        self._decisions = DecisionLog(config.logs.folder / f"agent-{os.getpid()}.log")

    def say(self, text: str) -> None:
        """A line on the console."""
        self._screen.do(lambda: self._console.say(text))

    def warn(self, text: str) -> None:
        """A line on the console that asks for somebody's attention."""
        self._screen.do(lambda: self._console.warn(text))

    def explain(self, line: str) -> None:
        """A line of the decisions' log."""
        self._files.do(lambda: self._decisions.add(f"{now().utc} {line}"))

    def show(self, notice: Notice) -> None:
        """What the machines tell, on the console and in the history; a failure is replied, too."""
        if isinstance(notice, Finished):
            self._screen.do(self._output.settle)  # the report is the last on the screen
        self._screen.do(lambda: self._console.show(notice))
        self.history.add(notice)
        if isinstance(notice, Finished) and not notice.outcome.success:
            self._files.do(lambda: self._reply(notice.outcome))

    def close_early(self, code: int, reason: str, ending: Ending | None, *, alone: bool) -> None:
        """The summary of a job that ended on this node alone; what became of the others nobody knows.

        Where there are none (`alone`) the history has its end, too.
        """
        ended = Outcome(
            success=False, exit_code=code, reason=reason, round=0, decided_utc=now().utc, ending=ending
        )
        self._screen.do(self._output.settle)
        self._screen.do(lambda: self._console.show(Finished(ended)))
        if alone:
            self.history.add(Finished(ended))

    def close_alone(self, code: int, reason: str) -> None:
        """The end of a job of one node, which left it without an outcome."""
        ended = Outcome(success=False, exit_code=code, reason=reason, round=0, decided_utc=now().utc)
        self.history.add(Finished(ended))

    def _reply(self, outcome: Outcome) -> None:
        """Where what started this agent reads how it failed, as it would of torchrun."""
        path = self._environment.get("TORCHELASTIC_ERROR_FILE")
        if not path:
            return
        try:
            write_reply(Path(path), outcome, time.time())
        except OSError as error:
            self._console.warn(f"TORCHELASTIC_ERROR_FILE={path} cannot be written: {error.strerror}")
