"""The table of options, of which the parser, `--help` and the reference page are made."""

from __future__ import annotations

from typing import Final

from nvrx_launcher.option import Option
from nvrx_launcher.options.failure import FAILURE_ROWS
from nvrx_launcher.options.general import FILE_ROWS, HELP_ROWS
from nvrx_launcher.options.groups import GROUPS
from nvrx_launcher.options.job import ELASTIC_ROWS, MEETING_ROWS, SIZE_ROWS
from nvrx_launcher.options.limits import LIMIT_ROWS
from nvrx_launcher.options.node import ETCD_ROWS, NODE_ROWS
from nvrx_launcher.options.output import OUTPUT_ROWS, TELEMETRY_ROWS
from nvrx_launcher.options.program import PROGRAM_ROWS
from nvrx_launcher.options.torchrun import TORCHRUN_ROWS

__all__ = ["GROUPS", "OPTIONS"]

OPTIONS: Final[tuple[Option, ...]] = (
    *SIZE_ROWS,
    *ELASTIC_ROWS,
    *MEETING_ROWS,
    *PROGRAM_ROWS,
    *FAILURE_ROWS,
    *LIMIT_ROWS,
    *OUTPUT_ROWS,
    *TELEMETRY_ROWS,
    *NODE_ROWS,
    *ETCD_ROWS,
    *FILE_ROWS,
    *TORCHRUN_ROWS,
    *HELP_ROWS,
)
