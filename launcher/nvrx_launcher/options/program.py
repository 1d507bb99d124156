"""Options of what is run."""

from __future__ import annotations

from typing import Final

from nvrx_launcher import values
from nvrx_launcher.option import torchrun
from nvrx_launcher.options.groups import PROGRAM

PROGRAM_ROWS: Final = (
    torchrun(
        "--module",
        "-m",
        group=PROGRAM,
        common=True,
        doc="The script is the name of a module, as in `python -m`.",
    ),
    torchrun(
        "--no-python", group=PROGRAM, common=True, doc="The script is a program of its own, started as it is."
    ),
    torchrun("--role", group=PROGRAM, metavar="NAME", default="default", doc="The ranks' ROLE_NAME."),
    torchrun(
        "--numa-binding",
        environment=False,
        group=PROGRAM,
        metavar="node|socket",
        parse=values.choice("node", "socket", "exclusive", "core-complex"),
        doc="Each rank runs on the CPUs of its GPU's NUMA node, or of its socket. torchrun's exclusive and "
        "core-complex are refused.",
    ),
    torchrun(
        "--virtual-local-rank",
        group=PROGRAM,
        doc="LOCAL_RANK is 0 for all, and CUDA_VISIBLE_DEVICES leaves each rank its own GPU.",
    ),
)
