"""Options of when a job that fails again and again gives up, and who is told."""

from __future__ import annotations

from typing import Final

from nvrx_launcher import values
from nvrx_launcher.option import ours
from nvrx_launcher.options.groups import FAILURE

LIMIT_ROWS: Final = (
    ours(
        "--restart-limit",
        group=FAILURE,
        metavar="N",
        parse=values.whole_number(0),
        default=0,
        default_text="none",
        doc="Restarts within --restart-window; one more ends the job.",
    ),
    ours(
        "--restart-window",
        group=FAILURE,
        metavar="SECONDS",
        parse=values.seconds(1),
        default=3600.0,
        doc="The window of --restart-limit and --node-loss-limit, in seconds of training.",
    ),
    ours(
        "--no-progress-limit",
        group=FAILURE,
        metavar="N",
        parse=values.whole_number(0),
        default=0,
        default_text="none",
        doc="Rounds in a row that may fail without coming beyond the best step before, then the job ends.",
    ),
    ours(
        "--progress-file",
        group=FAILURE,
        metavar="FILE",
        doc="File that the script writes whenever it gets on: progress for --no-progress-limit, beside steps.",
    ),
    ours(
        "--culprit-limit",
        group=FAILURE,
        metavar="N",
        parse=values.whole_number(0),
        default=2,
        doc="A node to blame for so many of the last 10 rounds gives its seat to a spare; 0 for never.",
    ),
    ours(
        "--node-loss-limit",
        group=FAILURE,
        metavar="N",
        parse=values.whole_number(0),
        default=100,
        doc="Losses of nodes within --restart-window; one more ends the job with exit code 75.",
    ),
    ours(
        "--requeue-command",
        group=FAILURE,
        metavar="COMMAND",
        doc="Run once in an attempt, by one agent, after a preemption, a time limit, or with exit code 75: such as "
        "'scontrol requeue {job}'. {job} is $SLURM_JOB_ID; {run_id} and {attempt} are known too.",
    ),
)
