"""Options that are taken for torchrun's sake alone."""

from __future__ import annotations

from typing import Final

from nvrx_launcher import values
from nvrx_launcher.option import Inert, Refused, torchrun
from nvrx_launcher.options.groups import TORCHRUN

TORCHRUN_ROWS: Final = (
    torchrun(
        "--monitor-interval",
        group=TORCHRUN,
        metavar="SECONDS",
        parse=values.seconds(),
        status=Inert("nothing is polled, the end of a rank is seen at once"),
        doc="Interval of looking at the ranks.",
    ),
    torchrun(
        "--start-method",
        group=TORCHRUN,
        metavar="NAME",
        parse=values.choice("spawn", "fork", "forkserver"),
        status=Inert(
            "every rank is a program of its own; multiprocessing inside the script is left as it is"
        ),
        doc="How ranks are created.",
    ),
    torchrun(
        "--run-path",
        group=TORCHRUN,
        status=Inert("a rank's interpreter runs the script as __main__ either way"),
        doc="Run the script by runpy.",
    ),
    torchrun(
        "--event-log-handler",
        group=TORCHRUN,
        metavar="NAME",
        status=Inert("what happens to the job is recorded in etcd, not through torch's handlers"),
        doc="Handler of torch elastic's events.",
    ),
    torchrun(
        "--logs-specs",
        environment=False,
        group=TORCHRUN,
        metavar="NAME",
        status=Refused(
            "a class of torch elastic cannot take over the ranks' output here",
            "leave it out; the output of every rank is kept in --log-dir",
        ),
        doc="Entry point that handles logs.",
    ),
)
