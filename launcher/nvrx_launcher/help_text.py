"""`nvrx-launch --help`, made of the table of options."""

from __future__ import annotations

import textwrap
from typing import Final

from nvrx_launcher.exit_codes import MEANINGS
from nvrx_launcher.option import Inert, Option, Refused
from nvrx_launcher.options import GROUPS, OPTIONS

WIDTH: Final = 80
_COLUMN: Final = 30

_USAGE = """\
Usage: nvrx-launch [OPTIONS] SCRIPT [ARGUMENTS OF THE SCRIPT]

Runs a PyTorch training on one node or many, and keeps it running when ranks or
nodes fail. Takes torchrun's command lines; nodes meet in etcd.

Examples:
  One node, one rank per GPU, three restarts allowed:
    nvrx-launch --standalone --nproc-per-node gpu --max-restarts 3 train.py
  The same on two nodes (run on each; node0 starts etcd):
    nvrx-launch --nnodes 2 --nproc-per-node gpu --rdzv-endpoint node0:2379 \\
        --rdzv-id my-run train.py --lr 0.1
  Two to four nodes, with an etcd of yours:
    nvrx-launch --nnodes 2:4 --rdzv-endpoint etcd0:2379,etcd1:2379,etcd2:2379 \\
        --rdzv-id my-run -m package.train
"""


def help_text(*, everything: bool) -> str:
    """The help page: common options, or all of them."""
    parts = [_USAGE]
    for group in GROUPS:
        rows = [option for option in OPTIONS if option.group == group and (everything or option.common)]
        if rows:
            parts.append(f"{group}:\n" + "".join(_row(option) for option in rows))
    codes = "".join(f"  {code:<7}{meaning}\n" for code, meaning in MEANINGS)
    parts.append(f"Exit codes:\n{codes}")
    parts.append(_closing(everything=everything))
    return "\n".join(parts)


def _closing(*, everything: bool) -> str:
    if everything:
        return (
            "Every option of torchrun is also read from PET_<NAME>, ours from NVRX_<NAME>.\n"
            "Options of ft_launcher (--ft-...) are taken too: see docs/from-nvrx.md.\n"
        )
    return (
        "nvrx-launch --help-all shows all options. They may stand in a YAML file,\n"
        "--config FILE; --print-config shows what each one is, and who said so.\n"
    )


def _row(option: Option) -> str:
    short = [spelling for spelling in option.spellings if not spelling.startswith("--")]
    head = "  " + ", ".join([*short, option.shown]) + option.usage
    lines = textwrap.wrap(describe(option), WIDTH - _COLUMN)
    if len(head) < _COLUMN - 1:
        head = head.ljust(_COLUMN) + lines.pop(0)
    return "\n".join([head, *(" " * _COLUMN + line for line in lines)]) + "\n"


def describe(option: Option) -> str:
    """What an option does, its state and its default, in one paragraph."""
    if isinstance(option.status, Inert):
        return f"{option.doc} No effect: {option.status.line}."
    if isinstance(option.status, Refused):
        return f"{option.doc} Refused: {option.status.reason}."
    default = default_text(option)
    return f"{option.doc} Default: {default}." if default else option.doc


def default_text(option: Option) -> str:
    """The default in words; empty for flags and where there is none."""
    if option.default_text or option.is_flag:
        return option.default_text
    if option.default in (None, ""):
        return ""
    return f"{option.default:g}" if isinstance(option.default, float) else str(option.default)
