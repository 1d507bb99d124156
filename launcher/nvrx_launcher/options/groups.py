"""Headings of the table of options, in the order in which they are shown."""

from __future__ import annotations

from typing import Final

SIZE: Final = "Size of the job"
MEETING: Final = "Where nodes meet"
PROGRAM: Final = "What is run"
FAILURE: Final = "When something fails"
OUTPUT: Final = "Output"
TELEMETRY: Final = "Telemetry"
NODE: Final = "This node"
ETCD: Final = "etcd"
FILE: Final = "Options in a file"
TORCHRUN: Final = "Taken for torchrun's sake"
HELP: Final = "Help"
GROUPS: Final = (SIZE, MEETING, PROGRAM, FAILURE, OUTPUT, TELEMETRY, NODE, ETCD, FILE, TORCHRUN, HELP)
