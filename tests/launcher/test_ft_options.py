"""Options and files of ft_launcher: every one is known, and means what the table says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.ft_launcher_options import DEFAULTS, EVER, ROWS, Row

from nvrx_async.hang.policy import HangPolicy
from nvrx_launcher.command_line import parse
from nvrx_launcher.configure import configure
from nvrx_launcher.errors import UsageError
from nvrx_launcher.ft_doc import table, with_table
from nvrx_launcher.ft_options import BY_KEY, BY_SPELLING, FT_OPTIONS, VERSIONS, Becomes
from nvrx_launcher.option import Inert, Refused, Source
from nvrx_launcher.options import OPTIONS

OURS = {spelling: option for option in OPTIONS for spelling in option.spellings}
THEIRS = [row for row in ROWS if any(spelling not in OURS for spelling in row.spellings.split())]

# A value for each option that asks for something; the others take any number.
VALUES = {
    "ft_rank_section_timeouts": "setup:600,step:180",
    "ft_per_cycle_applog_prefix": "/logs/job.log",
    "ft_checkpoint_iteration_file": "/ckpt/latest",
    "ft_rank_termination_signal": "SIGTERM",
    "ft_restart_policy": "min-healthy",
}


def read(*words: str, **environment: str):
    return parse([*words, "train.py"], environment)


def given(arguments: str, name: str, **environment: str):
    return read(*arguments.split(), **environment).given[name]


def config(arguments: str, **environment: str):
    return configure(read(*arguments.split(), **environment), environment, lambda _: 1, lambda _: "")


def refusal(arguments: str, **environment: str) -> UsageError:
    with pytest.raises(UsageError) as raised:
        read(*arguments.split(), **environment)
    return raised.value


def test_the_list_is_whole():
    assert VERSIONS == EVER
    assert len(ROWS) > 75
    assert len(THEIRS) > 45


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.dest)
def test_every_option_of_ft_launcher_is_known_by_every_spelling(row: Row):
    options = [OURS.get(spelling) or BY_SPELLING[spelling] for spelling in row.spellings.split()]
    assert {option.is_flag for option in options} == {row.flag}
    variables = {variable for option in options for variable in option.environment}
    assert not row.variable or f"PET_{row.dest.upper()}" in variables


@pytest.mark.parametrize("row", THEIRS, ids=lambda row: row.dest)
def test_no_option_does_nothing_in_silence(row: Row):
    """It gives a value to one of ours, or is told of, or is refused with a way to go."""
    for spelling in row.spellings.split():
        if spelling in OURS:
            continue
        words = [spelling] if row.flag else [spelling, VALUES.get(row.dest, "7")]
        if spelling.startswith("--fault-tol"):
            with pytest.raises(UsageError, match=r"^--fault-tol-cfg-path 7: No such file"):
                read(*words)
            continue
        meaning = BY_SPELLING[spelling].meaning
        if isinstance(meaning, Refused):
            error = refusal(" ".join(words))
            assert spelling in error.message
            assert meaning.reason in error.message
            assert error.hint == meaning.hint
            continue
        line = read(*words)
        if isinstance(meaning, Inert):
            assert any(spelling in notice and meaning.line in notice for notice in line.notices)
        else:
            assert line.given[meaning.option].spelled == spelling
            assert line.given[meaning.option].value != OURS_BY_NAME[meaning.option].default


OURS_BY_NAME = {option.name: option for option in OPTIONS}


def test_rows_are_sound():
    for one in FT_OPTIONS:
        if isinstance(one.meaning, Becomes):
            assert one.meaning.option in OURS_BY_NAME, one.name
        elif isinstance(one.meaning, Refused):
            assert one.meaning.hint, one.name
    assert not BY_SPELLING.keys() & OURS.keys()
    assert len(BY_SPELLING) == sum(len(one.spellings) for one in FT_OPTIONS)
    variables = {variable for option in OPTIONS for variable in option.environment}
    assert not variables & {variable for one in FT_OPTIONS for variable in one.environment}


@pytest.mark.parametrize("version", EVER)
def test_every_setting_of_a_file_is_known(version: str):
    keys = re.findall(r"^(\w+):", DEFAULTS[version], re.MULTILINE)
    assert keys
    assert not set(keys) - BY_KEY.keys()


def test_nothing_is_made_up():
    spellings = {spelling for row in ROWS for spelling in row.spellings.split()}
    keys = {key for text in DEFAULTS.values() for key in re.findall(r"^(\w+):", text, re.MULTILINE)}
    for one in FT_OPTIONS:
        assert not one.spellings or spellings & set(one.spellings), one.name
        assert one.in_file is (one.name in keys), one.name


@pytest.mark.parametrize("version", ["0.5.0", "0.6.0", "0.7.0"])
def test_a_file_that_ft_launcher_wrote_is_read(tmp_path, version: str):
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance:\n" + DEFAULTS[version].replace("\n", "\n  ").rstrip())
    line = read("--ft-cfg-path", str(path))
    assert line.value("hang_timeout") == (2700 if version == "0.5.0" else 600)
    assert line.value("section_limits") == {}
    assert any("these ask for what happens anyway" in notice for notice in line.notices)


def test_monitors_of_nics_that_0_4_1_turned_on_by_itself_are_refused(tmp_path):
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance:\n" + DEFAULTS["0.4.1"].replace("\n", "\n  ").rstrip())
    error = refusal(f"--ft-cfg-path {path}")
    assert f"{path}:3: enable_nic_monitor: true is not possible" in error.message
    assert "a check of yours before nvrx-launch" in error.hint


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ("--ft-rank-heartbeat-timeout 300", "hang_timeout", 300.0),
        ("--ft-rank-heartbeat-timeout=2.5", "hang_timeout", 2.5),
        ("--ft-rank_heartbeat_timeout 300", "hang_timeout", 300.0),
        ("--ft-param-rank_heartbeat_timeout 300", "hang_timeout", 300.0),
        ("--ft-rank-heartbeat-timeout 1 --ft-rank_heartbeat_timeout 9", "hang_timeout", 9.0),
        ("--ft-rank-out-of-section-timeout 90", "hang_timeout", 90.0),
        ("--ft-rank-out-of-section-timeout 90 --ft-rank-heartbeat-timeout 60", "hang_timeout", 90.0),
        ("--ft-rank-heartbeat-timeout 60 --ft-rank-out-of-section-timeout 9", "hang_timeout", 60.0),
        ("--ft-initial-rank-heartbeat-timeout 1800", "hang_startup_timeout", 1800.0),
        (
            "--ft-rank-section-timeouts setup:900,step:60,checkpointing:300.5",
            "section_limits",
            {"setup": 900.0, "step": 60.0, "checkpointing": 300.5},
        ),
        ("--ft-rank-section-timeouts setup:none,step:60", "section_limits", {"setup": None, "step": 60.0}),
        (
            "--ft-rank-section-timeouts step:60,warmup:300",
            "section_limits",
            {"step": 300.0, "warmup": 300.0},
        ),
        ("--ft-max-no-progress-cycles 5", "no_progress_limit", 5),
        ("--ft-max-no-progress-cycles -1", "no_progress_limit", 0),
        ("--ft-checkpoint-iteration-file /c/latest", "progress_file", "/c/latest"),
        ("--ft-checkpoint-iteration-file /c/latest", "no_progress_limit", 3),
        ("--ft-checkpoint-iteration-file /c/l --ft-max-no-progress-cycles 0", "no_progress_limit", 0),
        ("--ft-checkpoint-iteration-file /c/l --no-progress-limit 7", "no_progress_limit", 7),
        ("--term-timeout 600", "workers_stop_timeout", 600.0),
        ("--term-timeout 600 --workers-stop-timeout 600", "workers_stop_timeout", 600.0),
        ("--ft-per-cycle-applog-prefix /lustre/logs/job.log", "log_dir", "/lustre/logs"),
    ],
)
def test_values(arguments, name, value):
    assert given(arguments, name).value == value


def test_an_option_of_ours_outranks_the_one_that_means_the_same():
    assert given("--hang-timeout 5 --ft-rank-heartbeat-timeout 300", "hang_timeout").value == 5
    assert given("--ft-rank-heartbeat-timeout 300", "hang_timeout", NVRX_HANG_TIMEOUT="5").value == 300
    assert given("", "workers_stop_timeout", PET_TERM_TIMEOUT="60").value == 60
    assert given("--term-timeout 30", "workers_stop_timeout", PET_TERM_TIMEOUT="60").value == 30
    found = given("", "log_dir", PET_FT_PER_CYCLE_APPLOG_PREFIX="/a/b.log")
    assert (found.value, found.source) == ("/a", Source.ENVIRONMENT)


def test_the_larger_time_out_holds_whoever_gave_it(tmp_path):
    """Beats and what lies between sections are two things there: the command line's for one is none for the other."""
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance: {rank_out_of_section_timeout: 300, rank_heartbeat_timeout: 900}\n")
    line = ("--ft-cfg-path", str(path), "--ft-rank-heartbeat-timeout", "10")
    found = read(*line).given["hang_timeout"]
    assert (found.value, found.spelled) == (300, f"{path}:1: rank_out_of_section_timeout")
    assert read(*line, NVRX_HANG_TIMEOUT="50").value("hang_timeout") == 10, "ours outranks what the file says"
    assert read(*line, "--hang-timeout", "5").value("hang_timeout") == 5


def test_a_file_stands_below_and_what_it_brings_along_below_all(tmp_path):
    path = tmp_path / "ft.yaml"
    path.write_text("fault_tolerance:\n  rank_heartbeat_timeout: 70\n  max_no_progress_cycles: 5\n")
    words = ("--ft-cfg-path", str(path), "--ft-checkpoint-iteration-file", "/c/latest")
    line = read(*words, "--print-config")
    assert line.value("hang_timeout") == 70
    assert line.value("no_progress_limit") == 5, "the file says it, and 3 is only what ft_launcher takes else"
    assert [one.value for one in line.outranked["no_progress_limit"]] == [3]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("--ft-rank-heartbeat-timout 3", "unknown option --ft-rank-heartbeat-timout", "--ft-rank-heartbeat-timeout?"),
        ("--ft-heartbeat 3", "unknown option --ft-heartbeat", "docs/from-nvrx.md those of ft_launcher"),
        ("--ft-rank-heartbeat-timeout soon", "--ft-rank-heartbeat-timeout soon: not a number", "90 for a minute"),
        ("--ft-rank-heartbeat-timeout --standalone", "--ft-rank-heartbeat-timeout needs a value", "VALUE"),
        ("--ft-rank-section-timeouts 60", "--ft-rank-section-timeouts 60: '60' is not section:seconds", "setup:600"),
        ("--ft-rank-heartbeat-timeout off", "--ft-rank-heartbeat-timeout off: not a number", "--hang-timeout off"),
        ("--ft-initial-rank-heartbeat-timeout off", "timeout off: not a number", "--hang-timeout off"),
        ("--ft-rank-section-timeouts a:1,b:2,a:3", "a is given twice", ""),
        ("--ft-rank-section-timeouts a:soon", "a=soon: not a number of seconds", ""),
        ("--ft-ignore-missing-cfg=1", "takes no value", ""),
        ("--term-timeout 600 --workers-stop-timeout 15", "--term-timeout 600 and --workers-stop-timeout 15: ", "600"),
        ("--ft-segment 4 --ft-enable-nic-monitor true", "2 settings are not possible", "--ft-segment: leave it out"),
        ("--rdzv-conf segment=4", "segment", "--node-rank"),
        ("--rdzv-conf upscaling_enabled=false", "upscaling_enabled", "--grow"),
    ],
)  # fmt: skip
def test_wrong_ones(arguments, message, hint):
    with pytest.raises(UsageError) as raised:
        config(arguments)
    assert message in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    ("arguments", "notice"),
    [
        ("--ft-rank-heartbeat-timeout none", "--ft-rank-heartbeat-timeout none turns nothing off: --hang-timeout"),
        ("--ft-enable-nic-monitor off", "command line: these ask for what happens anyway: --ft-enable-nic-monitor"),
        ("--ft-rank-termination-signal sigkill", "these ask for what happens anyway: --ft-rank-termination-signal"),
        ("--ft-safety_factor 3 --ft-log-level INFO", "--ft-safety_factor (limits are learned as 5 times"),
        ("--ft-rank-section-timeouts a:5", "--ft-rank-section-timeouts: all else has --hang-timeout, 600 s"),
        ("--ft-rank-heartbeat-timeout 60 --nnodes 2:4", "are --nnodes 2 --spares 2"),
        ("--ft-initial-rank-heartbeat-timeout 60", "--ft-initial-rank-heartbeat-timeout 60 is shorter than"),
        (
            "--hang-timeout off --ft-rank-section-timeouts a:5",
            "--ft-rank-section-timeouts changes nothing: --hang-timeout off",
        ),
    ],
)  # fmt: skip
def test_notes(arguments, notice):
    line = arguments + (" --rdzv-endpoint h:1 --rdzv-id a" if "nnodes" in arguments else "")
    assert any(notice in one for one in config(line).notices), config(line).notices


def test_who_says_how_long_all_else_may_take_is_not_told_of_it():
    for more in ("--hang-timeout 600", "--hang-timeout off", "--ft-rank-out-of-section-timeout 90"):
        notices = config(f"--ft-rank-section-timeouts a:5 {more}").notices
        assert not any("all else" in one for one in notices), notices


def test_without_anything_of_ft_launcher_nothing_is_said():
    assert read("--hang-timeout", "60", "--nnodes", "2:4").notices == ()


def test_what_becomes_of_the_time_outs_in_the_end():
    """A start has the first heartbeat's limit, but who never reports is not killed for it, as there."""
    found = config("--ft-initial-rank-heartbeat-timeout 1800 --ft-rank-heartbeat-timeout 300").hang
    assert found == HangPolicy(300.0, 1800.0, startup_given=True, first_report_s=1800.0)
    assert config("--ft-initial-rank-heartbeat-timeout 60").hang == HangPolicy(
        600.0, 1200.0, startup_given=True, first_report_s=600.0
    )
    assert config("--ft-initial-rank-heartbeat-timeout 15 --ft-rank-heartbeat-timeout 10").hang == HangPolicy(
        10.0, 1200.0, startup_given=True, first_report_s=15.0
    ), "the first beat's limit is none for what comes before the client connects, nor for the end"
    assert config("--ft-rank-heartbeat-timeout 60").hang == HangPolicy(
        60.0, 1200.0, startup_given=True, first_report_s=1200.0
    ), "a start has what it has without any setting"
    assert config("--ft-rank-heartbeat-timeout 900").hang.startup_s == 1800
    assert (
        config("--ft-rank-out-of-section-timeout 9 --ft-rank-section-timeouts a:3600").hang.startup_s == 3600
    )
    assert config("--ft-rank-heartbeat-timeout 60 --hang-startup-timeout 90").hang == HangPolicy(
        60.0, 90.0, startup_given=True
    )
    assert config("--ft-rank-heartbeat-timeout 60 --hang-timeout 70").hang == HangPolicy(70.0, 140.0)
    assert config("--hang-timeout off --ft-initial-rank-heartbeat-timeout 60").hang is None
    assert config("--ft-rank-section-timeouts a:5").hang == HangPolicy(
        600.0, 1200.0, section_limits_s={"a": 5.0}
    )
    assert config("--section-limits a=5,b=7").hang.section_limits_s == {"a": 5.0, "b": 7.0}
    with pytest.raises(UsageError, match="turns the detection off"):
        config("--hang-timeout off --section-limits a=5")


def test_the_table_of_the_page_is_current():
    page = Path(__file__).parents[2] / "docs" / "from-nvrx.md"
    assert with_table(page.read_text()) == page.read_text(), (
        "run: python -m nvrx_launcher.ft_doc docs/from-nvrx.md"
    )


def test_the_table_names_everything():
    text = table()
    for one in FT_OPTIONS:
        assert f"`{one.name}`" in text or f"`{one.shown}`" in text
