"""Writes `docs/reference/options.md` from the table of options: `python -m nvrx_launcher.options_doc`."""

from __future__ import annotations

import sys

from nvrx_launcher.exit_codes import MEANINGS
from nvrx_launcher.help_text import default_text
from nvrx_launcher.option import Inert, Option, Refused, Status
from nvrx_launcher.options import GROUPS, OPTIONS
from nvrx_launcher.options.groups import HELP
from nvrx_launcher.rdzv_conf import CONF_KEYS

_INTRODUCTION = """\
# Options of nvrx-launch

Made by `python -m nvrx_launcher.options_doc` from the table that also makes the parser and `--help`;
a test holds this page to it.

`nvrx-launch [OPTIONS] SCRIPT [ARGUMENTS OF THE SCRIPT]`

A value comes from the command line, else from the environment variable (an empty one counts as unset), else
from the file of [`--config`](../config.md), else it is the default. Options stand before the script. Every
long option is also taken with underscores instead of hyphens. Every option of torchrun 2.13 is here: it
works, or it has no effect and the launch says why, or it is refused with the way to go instead. Those of
NVIDIA's ft_launcher (`--ft-…`) are taken too: [From NVRx](../from-nvrx.md) lists them.
"""


def reference() -> str:
    """The page as Markdown."""
    parts = [_INTRODUCTION]
    parts.extend(_group(group) for group in GROUPS if group != HELP)
    parts.append(_conf_keys())
    rows = "\n".join(f"| {code} | {meaning} |" for code, meaning in MEANINGS)
    parts.append(f"## Exit codes\n\n| code | meaning |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def _group(group: str) -> str:
    return f"## {group}\n\n" + "\n".join(_entry(one) for one in OPTIONS if one.group == group)


def _entry(option: Option) -> str:
    hyphened = [spelling for spelling in option.spellings if "_" not in spelling]
    names = ", ".join(f"`{spelling}`" for spelling in hyphened)
    usage = option.usage.strip()
    value = f" `{usage}`" if usage else ""
    facts = [option.doc]
    state = _state(option.status)
    if state:
        facts.append(state)
    default = default_text(option)
    if default:
        facts.append(f"Default: {default}.")
    if option.environment:
        facts.append("Environment: " + ", ".join(f"`{variable}`" for variable in option.environment) + ".")
    return f"### {names}{value}\n\n" + " ".join(facts) + "\n"


def _state(status: Status) -> str:
    if isinstance(status, Inert):
        return f"**No effect:** {status.line}."
    if isinstance(status, Refused):
        return f"**Refused:** {status.reason}. Instead: {status.hint}."
    return ""


def _conf_keys() -> str:
    rows = [f"| `{key.name}` | {' '.join([key.doc, _state(key.status)]).strip()} |" for key in CONF_KEYS]
    return "## Keys of `--rdzv-conf`\n\n| key | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
