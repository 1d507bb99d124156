"""Options of options: a file of them, and help."""

from __future__ import annotations

from typing import Final

from nvrx_launcher import values
from nvrx_launcher.option import Option, both
from nvrx_launcher.options.groups import FILE, HELP

FILE_ROWS: Final = (
    Option(
        name="config",
        spellings=(*both("--config"), *both("--ft-cfg-path"), "--ft-cfg_path"),
        environment=("NVRX_CONFIG", "PET_FT_CFG_PATH"),
        group=FILE,
        metavar="FILE",
        in_file=False,
        doc="YAML file with options by name, such as `max_restarts: 3`. Environment and command line outrank it. "
        "A section fault_tolerance of ft_launcher is read too.",
    ),
    Option(
        name="print_config",
        spellings=both("--print-config"),
        group=FILE,
        metavar="table|json|yaml",
        parse=values.choice("table", "json", "yaml"),
        bare="table",
        in_file=False,
        doc="Show the value of every option and who gave it, and start nothing. yaml: as a file for --config.",
    ),
)

HELP_ROWS: Final = (
    Option("help", ("--help", "-h"), HELP, "Show the common options.", common=True, in_file=False),
    Option("help_all", both("--help-all"), HELP, "Show all options.", common=True, in_file=False),
    Option("version", ("--version",), HELP, "Show the version.", common=True, in_file=False),
)
