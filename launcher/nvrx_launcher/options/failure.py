"""Options of how failures and hangs are found, and what follows."""

from __future__ import annotations

from typing import Final

from nvrx_launcher import values
from nvrx_launcher.option import Option, both, ours, torchrun
from nvrx_launcher.options.groups import FAILURE
from nvrx_launcher.signals import STOPPING, signal_numbers

DEFAULT_LIMIT_MARGIN_S: Final = 60.0

DEFAULT_HANG_TIMEOUT_S: Final = 600.0

MIN_LEASE_TTL_S: Final = 3

FAILURE_ROWS: Final = (
    torchrun(
        "--max-restarts",
        group=FAILURE,
        metavar="N",
        parse=values.whole_number(0),
        default=0,
        common=True,
        doc="How often the ranks may be started again after a failure, over the whole job.",
    ),
    Option(
        name="workers_stop_timeout",
        spellings=(*both("--workers-stop-timeout"), *both("--shutdown-timeout")),
        environment=(
            "NVRX_WORKERS_STOP_TIMEOUT",
            "PET_WORKERS_STOP_TIMEOUT",
            "PET_SHUTDOWN_TIMEOUT",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
        ),
        group=FAILURE,
        metavar="SECONDS",
        parse=values.seconds(),
        default=15.0,
        default_text="15, or what $NVRX_TERMINATION_GRACE_S leaves",
        common=True,
        doc="Time between SIGTERM and SIGKILL when ranks are stopped.",
    ),
    ours(
        "--time-limit-margin",
        group=FAILURE,
        metavar="SECONDS|off",
        parse=values.seconds_or_off(1),
        default=DEFAULT_LIMIT_MARGIN_S,
        doc="How long before Slurm's time limit all ranks stop at one step, where they ask should_stop.",
    ),
    torchrun(
        "--signals-to-handle",
        group=FAILURE,
        metavar="NAMES",
        parse=signal_numbers,
        default=STOPPING,
        default_text=",".join(one.name for one in STOPPING),
        doc="Signals that the agent passes on to the ranks while it lives on, beside SIGUSR1 and SIGUSR2. "
        "SIGTERM, SIGINT, SIGHUP and SIGQUIT stop the job, named or not.",
    ),
    ours(
        "--startup-grace",
        group=FAILURE,
        metavar="SECONDS",
        parse=values.seconds(),
        default=30.0,
        doc="A rank that lives this long counts as ready; failing before is a failure to start.",
    ),
    ours(
        "--early-exit-limit",
        group=FAILURE,
        metavar="SECONDS|off",
        parse=values.seconds_or_off(0.1),
        default=None,
        default_text="off",
        doc="How long ranks of a node may go on after one of them has exited with 0; then the round has failed. "
        "That one has left is told in any case.",
    ),
    ours(
        "--takeover",
        group=FAILURE,
        in_file=False,  # said for one start, by who has looked
        doc="Begin at once where the job's last attempt left no verdict: you know that its ranks are dead.",
    ),
    ours(
        "--hang-timeout",
        group=FAILURE,
        metavar="SECONDS|off",
        parse=values.seconds_or_off(1),
        default=DEFAULT_HANG_TIMEOUT_S,
        common=True,
        doc="A rank without any progress for this long is hung. Shorter limits are learned from what it reports.",
    ),
    ours(
        "--hang-startup-timeout",
        group=FAILURE,
        metavar="SECONDS",
        parse=values.seconds(1),
        default_text="twice --hang-timeout",
        doc="A rank without a report for this long after its start is hung, as is one that stands still at its end.",
    ),
    ours(
        "--section-limits",
        group=FAILURE,
        metavar="NAME=SECONDS|off[,...]",
        parse=values.section_limits,
        default={},
        default_text="none",
        doc="How long sections of these names may take where the script gives no limit, instead of --hang-timeout.",
    ),
    ours(
        "--hang-action",
        group=FAILURE,
        metavar="restart|kill-suspects|report",
        parse=values.choice("restart", "kill-suspects", "report"),
        default="restart",
        doc="What a hang leads to. Suspects report nothing and stand still, or work on long after their end.",
    ),
    ours(
        "--warm-workers",
        group=FAILURE,
        metavar="auto|off|N",
        parse=values.warm_workers,
        default="auto",
        doc="Idle processes that wait to become the ranks of a restart; auto: one per rank, where it is safe.",
    ),
    ours(
        "--warm-imports",
        group=FAILURE,
        metavar="MODULE[,...]",
        parse=values.modules,
        default=("torch",),
        default_text="torch",
        doc="What warm workers import beforehand.",
    ),
    ours(
        "--lease-ttl",
        group=FAILURE,
        metavar="SECONDS",
        parse=values.whole_number(MIN_LEASE_TTL_S, unit=" s"),
        default=6,
        doc="A node that etcd does not hear from for this long is lost. Equal on all nodes.",
    ),
    ours(
        "--etcd-outage-limit",
        group=FAILURE,
        metavar="SECONDS",
        parse=values.seconds(),
        default=120.0,
        default_text="120",
        doc="How long ranks run on while no node of the job reaches etcd; 0: until the lease ends. Equal on all nodes.",
    ),
)
