"""What a person sees, as golden texts."""

from __future__ import annotations

import io
import textwrap
from dataclasses import replace

import pytest

from nvrx_async.job.records import (
    Assignment,
    End,
    EndedBy,
    Ending,
    FaultKind,
    Level,
    Node,
    Outcome,
    Process,
    PythonError,
    RankEnd,
    Root,
    Seat,
)
from nvrx_async.rounds.effects import (
    Finished,
    Interrupted,
    Judged,
    RankFailed,
    Registered,
    RoundRunning,
    Waiting,
)
from nvrx_async.rounds.events import Now
from nvrx_launcher.console import Console
from nvrx_launcher.palette import PLAIN, Palette, palette_for
from nvrx_launcher.story import Story

NODE = Node("gpu07", "i1", "gpu07", "10.0.0.7", 2, Process("boot", "ns", 42, 7), "2026-11-30T12:00:00Z")
SEAT = Seat("gpu07", "i1", "gpu07", 0, 0, 2)
ERROR = PythonError("RuntimeError", "loss is not finite at step 57", "train_ddp.py", 57, "train_step")
RAISED = RankEnd(
    1,
    1,
    99,
    FaultKind.EXCEPTION,
    EndedBy.ITSELF,
    exit_code=1,
    ran_s=6.8,
    error=ERROR,
    log="nvrx-logs/my-run/round-0/rank-1.err",
)
ROOT = Root(FaultKind.EXCEPTION, "rank 1 on gpu07 raised RuntimeError", "gpu07", "gpu07", end=RAISED)


def running(number: int, why: str = "") -> RoundRunning:
    assignment = Assignment(number, SEAT, 4, 2, "10.0.0.7", 1234)
    return RoundRunning(number, 2, 4, assignment, why)


def outcome(exit_code: int, reason: str, number: int, root: Root | None = None) -> Outcome:
    return Outcome(exit_code == 0, exit_code, reason, number, "", root=root)


class Screen:
    def __init__(self, palette=PLAIN, max_restarts=3, **settings):
        self.now_s = 0.0
        self.stream = io.StringIO()
        story = Story("my-run", max_restarts, "nvrx-logs/my-run", 0.0)
        self.console = Console(story, stream=self.stream, clock=self.now, palette=palette, **settings)

    def now(self):
        day, second = divmod(int(self.now_s) + 12 * 3600, 86400)
        utc = (
            f"2026-11-{29 + day:02d}T{second // 3600:02d}:{second % 3600 // 60:02d}:{second % 60:02d}.5+00:00"
        )
        return Now(self.now_s, utc)

    def show(self, at_s, *notices):
        """What is written for these notices at that time, without the line of the day."""
        self.now_s = at_s
        before = self.stream.tell()
        for notice in notices:
            self.console.show(notice)
        shown = self.stream.getvalue()[before:]
        return "".join(line for line in shown.splitlines(keepends=True) if " UTC, job " not in line)


def text(block: str) -> str:
    return textwrap.dedent(block).lstrip("\n")


def test_one_job_with_a_restart_from_start_to_end(tmp_path):
    screen = Screen(summary_file=tmp_path / "new" / "summary.txt")
    screen.show(0.5, Registered(NODE, 0))
    screen.show(1, Waiting("1 of 2 nodes joined; missing: gpu08", 601))
    screen.show(7, running(0, "first start"))
    screen.show(14, RankFailed(0, RAISED, "gpu07"))
    screen.show(14.3, Judged(End(0, ROOT, Level.IN_JOB, "restart 1 of 3", "")))
    screen.show(15, running(1, "restart 1 of 3"))
    screen.show(192, Finished(outcome(0, "all ranks finished", 1)))
    assert screen.stream.getvalue() == text("""
        nvrx 2026-11-29 UTC, job my-run
        nvrx 12:00:00 this node is gpu07 at 10.0.0.7 with 2 ranks
        nvrx 12:00:01 waiting: 1 of 2 nodes joined; missing: gpu08 (at most 10 min more)
        nvrx 12:00:07 round 0 runs: 4 ranks on 2 nodes, ranks 0-1 here
        nvrx 12:00:14 rank 1 on gpu07 exited with code 1, 6.8 s into round 0
            RuntimeError: loss is not finite at step 57
            at train_ddp.py:57 in train_step
            log nvrx-logs/my-run/round-0/rank-1.err
        nvrx 12:00:14 round 0 failed: rank 1 on gpu07 raised RuntimeError
            next: round 1 with new processes on the same nodes (restart 1 of 3)
        nvrx 12:00:15 round 1 runs: 4 ranks on 2 nodes, ranks 0-1 here

        nvrx 12:03:12 job my-run finished after 1 restart
            rounds  0   7.0 s        4 ranks: rank 1 on gpu07 raised RuntimeError
                    1   2 min 57 s   4 ranks: all ranks finished
            time    3 min 12 s: 3 min 4 s in rounds, 7.0 s before, 1.0 s between
            logs    nvrx-logs/my-run
    """)
    kept = (tmp_path / "new" / "summary.txt").read_text().splitlines()
    assert kept[0] == "2026-11-29T12:03:12.5+00:00"
    assert kept[1] == "job my-run finished after 1 restart"
    assert kept[-1] == "logs    nvrx-logs/my-run"


def test_the_last_round_is_told_like_the_others_and_a_stop_has_no_cause_of_before():
    screen = Screen()
    judged = Judged(End(0, ROOT, Level.IN_JOB, "restart 1 of 3", ""))
    screen.show(5, running(0), RankFailed(0, RAISED, "gpu07"), judged, running(1))
    failed = screen.show(
        9, RankFailed(1, RAISED, "gpu07"), Finished(outcome(93, "the same twice", 1, root=ROOT))
    )
    assert failed.count("4 ranks: rank 1 on gpu07 raised RuntimeError\n") == 2

    screen = Screen()
    screen.show(5, running(0), RankFailed(0, RAISED, "gpu07"), judged, running(1))
    stopped = screen.show(
        9, Finished(replace(outcome(143, "told to stop by SIGTERM", 1), ending=Ending.PREEMPTED))
    )
    assert "cause" not in stopped
    assert "4 ranks: told to stop by SIGTERM" in stopped


def test_a_failed_job_ends_with_its_cause_and_what_to_do():
    screen = Screen(max_restarts=0)
    screen.show(5, running(0), RankFailed(0, RAISED, "gpu07"))
    judged = screen.show(6, Judged(End(0, ROOT, Level.STOP, "no restarts are allowed", "")))
    assert judged == text("""
        nvrx 12:00:06 round 0 failed: rank 1 on gpu07 raised RuntimeError
            next: no further round, the job stops (no restarts are allowed)
            hint: --max-restarts N lets the ranks start again after a failure
    """)
    assert screen.show(8, Finished(outcome(1, "no restarts are allowed", 0, root=ROOT))) == "\n" + text("""
        nvrx 12:00:08 job my-run failed: no restarts are allowed (exit code 1)
            cause   rank 1 on gpu07 exited with code 1, 6.8 s into its round
                    RuntimeError: loss is not finite at step 57
                    at train_ddp.py:57 in train_step
                    log nvrx-logs/my-run/round-0/rank-1.err
            rounds  0   0.0 s        4 ranks: rank 1 on gpu07 raised RuntimeError
            time    8.0 s: 0.0 s in rounds, 5.0 s before, 3.0 s after
            logs    nvrx-logs/my-run
            next    --max-restarts N lets the ranks start again after a failure
    """)


SEGFAULT = """
    nvrx 12:00:00 rank 1 on gpu07 was killed by SIGSEGV (invalid memory access), 6.8 s into round 0
        | a
        | bred
        log nvrx-logs/my-run/round-0/rank-1.err
"""


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        (
            replace(
                RAISED, exit_code=None, signal=11, error=None, last_lines=("a", "", "b\x1b[31mred\x1b[0m\x07")
            ),
            SEGFAULT,
        ),
        (
            replace(
                RAISED,
                exit_code=None,
                signal=9,
                kind=FaultKind.OUT_OF_MEMORY,
                by=EndedBy.SOMEONE_ELSE,
                error=None,
                detail="oom_kill of the cgroup rose to 1",
                log="",
                ran_s=7200,
            ),
            """
            nvrx 12:00:00 rank 1 on gpu07 was killed by SIGKILL (out of memory), 2 h into round 0
                oom_kill of the cgroup rose to 1
            """,
        ),
        (
            replace(RAISED, exit_code=None, signal=9, by=EndedBy.SOMEONE_ELSE, error=None, log=""),
            (
                "nvrx 12:00:00 rank 1 on gpu07 was killed by SIGKILL (not sent by nvrx-launch), "
                "6.8 s into round 0\n"
            ),
        ),
        (
            replace(RAISED, exit_code=None, signal=63, error=None, log=""),
            "nvrx 12:00:00 rank 1 on gpu07 was killed by signal 63, 6.8 s into round 0\n",
        ),
        (
            replace(RAISED, exit_code=None, error=None, log="", detail="fork: no memory", ran_s=0.0),
            """
            nvrx 12:00:00 rank 1 on gpu07 could not be started, 0.0 s into round 0
                fork: no memory
            """,
        ),
        (
            replace(RAISED, error=PythonError("ValueError", "\n".join("abcdefgh")), log=""),
            """
            nvrx 12:00:00 rank 1 on gpu07 exited with code 1, 6.8 s into round 0
                ValueError: a
                  b
                  c
                  d
                  e
                  ... 3 more lines in the log
            """,
        ),
        (
            replace(RAISED, error=PythonError("KeyboardInterrupt", ""), log=""),
            """
            nvrx 12:00:00 rank 1 on gpu07 exited with code 1, 6.8 s into round 0
                KeyboardInterrupt
            """,
        ),
    ],
)
def test_how_a_rank_failed(end, shown):
    assert Screen().show(0, RankFailed(0, end, "gpu07")) == text(shown)


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (Level.IN_PROCESS, "next: round 3 in the same processes (why)"),
        (Level.IN_JOB, "next: round 3 with new processes on the same nodes (why)"),
        (Level.REPLACE_NODE, "next: round 3 without gpu07 (why)"),
        (Level.REQUEUE, "next: no further round here, exit code 75: safe to requeue (why)"),
        (Level.STOP, "next: no further round, the job stops (why)"),
    ],
)
def test_what_happens_next(level, shown):
    assert shown in Screen().show(0, Judged(End(2, ROOT, level, "why", "")))


def test_a_spare_says_so():
    assert "this node is a spare\n" in Screen().show(0, RoundRunning(0, 1, 1, None, ""))


def test_what_became_of_an_earlier_agent():
    shown = Screen().show(0, Registered(NODE, 2, took_over="its process (pid 41) is dead"))
    assert shown == text("""
        nvrx 12:00:00 this node is gpu07 at 10.0.0.7 with 2 ranks, attempt 2
            in the place of an earlier agent: its process (pid 41) is dead
    """)


def test_waiting_is_told_when_it_changes_and_else_once_a_minute():
    screen = Screen()
    assert screen.show(0, Waiting("1 of 3 nodes")) == "nvrx 12:00:00 waiting: 1 of 3 nodes\n"
    assert screen.show(59, Waiting("1 of 3 nodes")) == ""
    assert screen.show(60, Waiting("1 of 3 nodes")) == "nvrx 12:01:00 waiting: 1 of 3 nodes\n"
    assert screen.show(61, Waiting("2 of 3 nodes")) == "nvrx 12:01:01 waiting: 2 of 3 nodes\n"
    screen.show(62, running(0))
    assert screen.show(63, Waiting("2 of 3 nodes")) != ""


def test_the_date_is_told_once_a_day():
    screen = Screen()
    for at_s in (0, 10, 86400, 86410):
        screen.now_s = at_s
        screen.console.say("x")
    days = [line for line in screen.stream.getvalue().splitlines() if " UTC, job " in line]
    assert days == ["nvrx 2026-11-29 UTC, job my-run", "nvrx 2026-11-30 UTC, job my-run"]


def test_many_rounds_are_folded():
    screen = Screen()
    for number in range(30):
        screen.show(number * 10, running(number))
        screen.show(number * 10 + 9, Interrupted(number, f"reason {number} " + "long " * 30))
    shown = screen.show(300, Finished(outcome(75, "no nodes", 29)))
    assert "reason 0 " in shown
    assert "... 20 more, 3 min in all" in shown
    assert "reason 20 " not in shown
    assert "reason 21 " in shown
    assert "(exit code 75: the infrastructure failed: safe to requeue)" in shown
    assert "next    start it again" in shown
    assert max(len(line) for line in shown.splitlines() if "reason" in line) <= 80


def test_a_job_without_a_round():
    shown = Screen().show(601, Finished(outcome(3, "1 of 2 nodes came in 10 min", 0)))
    assert "job my-run stopped: 1 of 2 nodes came in 10 min (exit code 3: never became ready" in shown
    assert "time    10 min 1 s, no round ran" in shown


def test_a_repeated_notice_of_a_round_counts_once():
    screen = Screen()
    screen.show(1, running(0))
    screen.show(2, running(0), Interrupted(0, "first"), Interrupted(0, "second"))
    (told,) = screen.console.story.rounds
    assert (told.started_s, told.ended_s, told.why) == (1, 2, "first")


def test_times_add_up():
    screen = Screen()
    screen.show(2, running(0))
    screen.show(5, Interrupted(0, "x"))
    screen.show(9, running(1))
    assert screen.console.story.times(20.0) == (20.0, 2.0, 14.0, 4.0, 0.0)


def test_warnings_have_hints():
    screen = Screen()
    screen.console.warn("GPU health is not checked", "pip install nvidia-ml-py")
    assert screen.stream.getvalue().endswith(
        "warning: GPU health is not checked\n    hint: pip install nvidia-ml-py\n"
    )


def test_a_summary_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    screen = Screen(summary_file=tmp_path / "file" / "summary.txt")
    shown = screen.show(1, Finished(outcome(0, "", 0)))
    assert "warning: the summary could not be written to" in shown
    assert shown.splitlines()[-1].startswith("    logs")


def test_what_others_wrote_cannot_paint_the_terminal():
    screen = Screen()
    shown = screen.show(1, Registered(NODE, 0, "ended 7 (\x1b[2Jsh)"))
    shown += screen.show(2, Waiting("a\x1b[31m still to join"))
    shown += screen.show(3, running(4, "rank 1 raised \x1b]0;title\x07E"))
    assert "\x1b" not in shown
    assert "waiting: a still to join" in shown


def test_a_summary_holds_text_that_is_no_utf8(tmp_path):
    screen = Screen(summary_file=tmp_path / "summary.txt")
    screen.show(1, Finished(outcome(1, "no /data/m\udcfcller", 0)))
    assert r"no /data/m\udcfcller" in (tmp_path / "summary.txt").read_text()


def test_the_rank_s_unfinished_line_is_ended_first():
    ended = []
    screen = Screen(before_line=lambda: ended.append(screen.stream.tell()))
    screen.show(1, Waiting("x"))
    screen.show(2, Waiting("x"))
    assert ended == [0]


def test_a_terminal_that_is_gone_is_no_error():
    class Gone(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError

    screen = Screen()
    screen.console._stream = Gone()
    screen.console.show(Waiting("x"))
    screen.console._stream = io.StringIO()
    screen.console.show(running(0))
    assert screen.console._stream.getvalue() == ""
    assert len(screen.console.story.rounds) == 1


def test_colours_change_no_text():
    notices = (
        Registered(NODE, 0, "x"),
        Waiting("y", 5),
        running(0, "z"),
        RankFailed(0, RAISED, "gpu07"),
        Interrupted(0, "x"),
        Judged(End(0, ROOT, Level.STOP, "x", "")),
        Finished(outcome(1, "x", 0, root=ROOT)),
    )
    plain = Screen().show(1, *notices)
    coloured = Screen(Palette(coloured=True)).show(1, *notices)
    for code in ("\x1b[1;31m", "\x1b[36m", "\x1b[1;32m", "\x1b[33m", "\x1b[2m"):
        assert code in coloured
        coloured = coloured.replace(code, "")
    assert coloured.replace("\x1b[0m", "") == plain


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (False, {"TERM": "xterm"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_when_there_are_colours(terminal, environment, coloured):
    assert palette_for(terminal=terminal, environment=environment).coloured is coloured


def contrast(code: str, behind: int) -> float:
    """WCAG 2 contrast of a colour of the 6 x 6 x 6 cube with white (255) or black (0)."""
    level = (0, 95, 135, 175, 215, 255)
    place = int(code.removesuffix("m").rpartition(";")[2]) - 16
    parts = [level[place // 36] / 255, level[place // 6 % 6] / 255, level[place % 6] / 255]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    high, low = max(light, behind / 255), min(light, behind / 255)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("behind", [0, 255])
@pytest.mark.parametrize("term", ["xterm-256color", "screen", "tmux"])
def test_colours_are_read_on_white_and_on_black(term, behind):
    palette = palette_for(terminal=True, environment={"TERM": term})
    for paint in (palette.warning, palette.success, palette.path):
        code = paint("x").removeprefix("\x1b[").partition("x")[0]
        assert contrast(code, behind) >= 4, code
