"""The table of options: sound, complete beside torchrun's, and the source of help and reference."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from nvrx_launcher.exit_codes import MEANINGS, ExitCode, meaning
from nvrx_launcher.help_text import WIDTH, help_text
from nvrx_launcher.option import Inert, Refused, Works
from nvrx_launcher.options import GROUPS, OPTIONS
from nvrx_launcher.options_doc import reference
from nvrx_launcher.rdzv_conf import CONF_KEYS

ROOT = Path(__file__).parents[2]
NAMES = {option.name for option in OPTIONS}

TORCHRUN = """
import json
from torch.distributed.run import get_args_parser
rows = [
    {
        "spellings": action.option_strings,
        "dest": action.dest,
        "default": action.default if isinstance(action.default, (int, float)) else str(action.default),
        "takes_value": action.nargs != 0,
        "environment": type(action).__name__ in ("env", "check_env"),
        "choices": list(action.choices or ()),
    }
    for action in get_args_parser()._actions
    if action.option_strings and action.dest != 'help'
]
print(json.dumps(rows))
"""

# Where our default is another one, and why.
OTHER_DEFAULTS = {
    "rdzv_backend": "nodes meet in etcd",
    "log_dir": "logs are always kept",
    "rdzv_id": "a name that two jobs share would merge them",
    "nnodes": "the same in another notation",
    "rdzv_endpoint": "the same in another notation",
    "rdzv_conf": "the same in another notation",
    "node_rank": "nobody asked for a place",
    "master_addr": "names etcd only where it is given",
    "local_ranks_filter": "the same in another notation",
    "duplicate_stdout_filters": "the same in another notation",
    "duplicate_stderr_filters": "the same in another notation",
    "signals_to_handle": "the same in another notation",
    "workers_stop_timeout": "torchrun's None means 30 s",
}


@pytest.fixture(scope="module")
def torchrun():
    done = subprocess.run(
        [sys.executable, "-c", TORCHRUN], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_every_option_of_torchrun_is_in_the_table(torchrun):
    assert len(torchrun) > 25
    spellings = {spelling: option for option in OPTIONS for spelling in option.spellings}
    for row in torchrun:
        found = {spellings[spelling].name for spelling in row["spellings"] if spelling in spellings}
        missing = [spelling for spelling in row["spellings"] if spelling not in spellings]
        assert not missing
        assert len(found) == 1
        option = spellings[row["spellings"][0]]
        assert option.is_flag is not row["takes_value"], option.name
        variable = f"PET_{row['dest'].upper()}"
        assert (variable in option.environment) is row["environment"], option.name
        if isinstance(option.status, Works) and option.name not in OTHER_DEFAULTS:
            assert str(option.default) == str(row["default"]), option.name


def test_choices_of_torchrun_are_taken(torchrun):
    options = {option.name: option for option in OPTIONS}
    for row in torchrun:
        option = options.get(row["dest"])
        if option is not None and not isinstance(option.status, Refused):
            for choice in row["choices"]:
                assert option.parse(choice) == choice


def test_names_and_spellings_are_unique():
    counted = Counter(spelling for option in OPTIONS for spelling in option.spellings)
    assert [spelling for spelling, times in counted.items() if times > 1] == []
    assert len(NAMES) == len(OPTIONS)
    variables = Counter(variable for option in OPTIONS for variable in option.environment)
    assert [variable for variable, times in variables.items() if times > 1] == []


def test_every_long_option_has_both_spellings():
    for option in OPTIONS:
        for spelling in option.spellings:
            if spelling.startswith("--"):
                assert "--" + spelling.removeprefix("--").replace("-", "_") in option.spellings


def test_every_row_is_written_out():
    for option in OPTIONS:
        assert option.doc.endswith(".")
        assert option.group in GROUPS
        if isinstance(option.status, Inert):
            assert not option.status.line.endswith(".")
        if isinstance(option.status, Refused):
            assert option.status.reason
            assert option.status.hint


def test_keys_of_rdzv_conf_point_to_what_they_set():
    for key in CONF_KEYS:
        assert bool(key.option) is isinstance(key.status, Works)
        assert not key.option or key.option in NAMES or key.option == "last_call"


def test_the_common_options_are_few():
    assert sum(option.common for option in OPTIONS) <= 15


def test_help_leads_with_examples_and_ends_with_exit_codes():
    text = help_text(everything=False)
    assert text.startswith("Usage: nvrx-launch")
    assert text.count("\n    nvrx-launch ") == 3
    assert text.index("Examples:") < text.index("--nnodes N|MIN:MAX") < text.index("Exit codes:")
    for code, sentence in MEANINGS:
        assert re.search(rf"^  {re.escape(code)} +{re.escape(sentence)}$", text, re.MULTILINE)
    assert "--help-all" in text
    assert "--monitor-interval" not in text


@pytest.mark.parametrize("everything", [False, True])
def test_help_fits_a_terminal_and_any_encoding(everything):
    text = help_text(everything=everything)
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert text.isascii()


def test_all_help_shows_every_option_once():
    text = help_text(everything=True)
    for option in OPTIONS:
        assert len(re.findall(rf"^  (?:-\w, )?{option.shown}\b(?!-)", text, re.MULTILINE)) == 1
        assert not isinstance(option.status, Inert) or " ".join(option.status.line.split()) in " ".join(
            text.split()
        )


def test_the_reference_page_is_current():
    page = ROOT / "docs" / "reference" / "options.md"
    assert page.read_text() == reference(), (
        "run: python -m nvrx_launcher.options_doc > docs/reference/options.md"
    )


def test_the_reference_page_names_everything():
    text = reference()
    for option in OPTIONS:
        assert option.group == "Help" or f"`{option.shown}`" in text
        assert all(f"`{variable}`" in text for variable in option.environment)
    assert all(f"| `{key.name}` |" in text for key in CONF_KEYS)


def test_exit_codes():
    assert {str(int(code)) for code in ExitCode} == {shown for shown, _ in MEANINGS} - {"128+n"}
    assert meaning(75) == "the infrastructure failed: safe to requeue"
    assert meaning(130) == "ended by signal 2"
    assert meaning(42) == "not an exit code of nvrx-launch"
