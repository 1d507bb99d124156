"""`--config FILE`: what a file gives, who outranks it, and how a wrong one is answered."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest
import yaml

from nvrx_launcher.command_line import parse
from nvrx_launcher.configure import configure
from nvrx_launcher.errors import UsageError
from nvrx_launcher.option import Source
from nvrx_launcher.options import OPTIONS
from nvrx_launcher.palette import PLAIN
from nvrx_launcher.print_config import print_config
from nvrx_launcher.streams import Streams
from nvrx_launcher.values import Endpoint, NodeRange


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Writes `job.yaml` in the current folder and reads a command line with it."""
    monkeypatch.chdir(tmp_path)

    def read(text: str, *arguments: str, **environment: str):
        (tmp_path / "job.yaml").write_text(text)
        return parse(["--config", "job.yaml", *arguments, "train.py"], environment)

    return read


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("max_restarts: 120", "max_restarts", 120),
        ("section_limits: {setup: 900, save: 60.5}", "section_limits", {"setup": 900, "save": 60.5}),
        ("section_limits: setup=900,save=60.5", "section_limits", {"setup": 900, "save": 60.5}),
        ("max_restarts: !!int 120", "max_restarts", 120),
        ("max-restarts: 120", "max_restarts", 120),
        ('max_restarts: "120"', "max_restarts", 120),
        ("{max_restarts: 120}", "max_restarts", 120),
        ("shutdown_timeout: 7", "workers_stop_timeout", 7.0),
        ("nnodes: 2:4", "nnodes", NodeRange(2, 4)),  # YAML 1.1 would make 124 of it
        ("hang_timeout: off", "hang_timeout", None),  # and False of this
        ("early_exit_limit: 1_0", "early_exit_limit", 10.0),
        ("nproc_per_node: gpu", "nproc_per_node", "gpu"),
        ("standalone: true", "standalone", True),
        ("standalone: yes", "standalone", True),
        ("standalone: false", "standalone", False),
        ("log_dir: a folder # of logs", "log_dir", "a folder"),
        ("log_dir: 2024", "log_dir", "2024"),
        ("rdzv_id: 'null'", "rdzv_id", "null"),
        ("rdzv_endpoint: a:1,b:2", "rdzv_endpoint", (Endpoint("a", 1), Endpoint("b", 2))),
        ("rdzv_endpoint: [a:1, 'b:2']", "rdzv_endpoint", (Endpoint("a", 1), Endpoint("b", 2))),
        ("warm_imports:\n- torch\n- numpy", "warm_imports", ("torch", "numpy")),
        ("rdzv_conf: {join_timeout: 5, timeout: 6}", "rdzv_conf", {"join_timeout": "5", "timeout": "6"}),
        ("redirects: {0: 1, 1: 3}", "redirects", Streams(by_rank=((0, 1), (1, 3)))),
        ("redirects: 3", "redirects", Streams(3)),
        ("local_ranks_filter: [0, 1]", "local_ranks_filter", frozenset({0, 1})),
        ("lease_ttl: null", "lease_ttl", 6),
        ("lease_ttl:", "lease_ttl", 6),
        ("", "lease_ttl", 6),
        ("# nothing\n---\n", "lease_ttl", 6),
        ("warm_imports: &it [torch]\nduplicate_stdout_filters: *it", "duplicate_stdout_filters", ("torch",)),
    ],
)
def test_values(job, text, name, value):
    assert job(text).value(name) == value


@pytest.mark.parametrize(
    ("text", "arguments", "environment", "value", "source"),
    [
        ("hang_timeout: 120", "", {}, 120, Source.FILE),
        ("hang_timeout: 120", "", {"NVRX_HANG_TIMEOUT": ""}, 120, Source.FILE),
        ("hang_timeout: 120", "", {"NVRX_HANG_TIMEOUT": "90"}, 90, Source.ENVIRONMENT),
        ("hang_timeout: 120", "--hang-timeout 60", {"NVRX_HANG_TIMEOUT": "90"}, 60, Source.COMMAND_LINE),
        (
            "hang_timeout: 120",
            "--hang-timeout 600",
            {},
            600,
            Source.COMMAND_LINE,
        ),  # also where it is the default
        ("lease_ttl: 9", "", {}, 600, Source.DEFAULT),
    ],
)
def test_command_line_before_environment_before_file_before_default(
    job, text, arguments, environment, value, source
):
    found = job(text, *arguments.split(), **environment).given["hang_timeout"]
    assert (found.value, found.source) == (value, source)


def test_a_flag_of_the_file_is_taken_back_by_its_variable(job):
    assert job("standalone: true", PET_STANDALONE="0").value("standalone") is False


def test_the_variable_names_the_file_too(tmp_path):
    (tmp_path / "a.yaml").write_text("lease_ttl: 9")
    (tmp_path / "b.yaml").write_text("lease_ttl: 12")
    named = {"NVRX_CONFIG": str(tmp_path / "a.yaml")}
    assert parse(["train.py"], named).value("lease_ttl") == 9
    assert parse(["--config", str(tmp_path / "b.yaml"), "train.py"], named).value("lease_ttl") == 12
    assert parse(["--ft-cfg-path", str(tmp_path / "b.yaml"), "train.py"], {}).value("lease_ttl") == 12


def test_a_pipe_is_read_as_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("lease_ttl: 9"))
    writer.start()
    try:
        assert parse(["--config", str(pipe), "train.py"], {}).value("lease_ttl") == 9
    finally:
        writer.join()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("max_restart: 3", "job.yaml:1: unknown option max_restart", "did you mean max_restarts?"),
        ("\n\nmax-retarts: 3", "job.yaml:3: unknown option max-retarts", "did you mean max_restarts?"),
        ("--nnodes: 2", "job.yaml:1: unknown option --nnodes", "did you mean nnodes?"),
        (
            "rank_heartbeat_timeout: 3",
            "unknown option rank_heartbeat_timeout",
            "fault_tolerance: {rank_heartbeat_t",
        ),
        ("ft-rank-heartbeat-timeout: 3", "unknown option", "fault_tolerance: {rank_heartbeat_timeout: …}"),
        ("learning_rate: 1", "unknown option learning_rate", "--print-config lists the names"),
        ("a: 1\nlease_ttl: 9", "job.yaml:1: unknown option a", ""),
        ("max_restarts: two", "job.yaml:1: max_restarts: two: not a whole number", "max_restarts: N"),
        ("max_restarts: 3.5", "max_restarts: 3.5: not a whole number", ""),
        ("nnodes: 3:2", "job.yaml:1: nnodes: 3:2: the minimum is larger", "nnodes: 2:3"),
        ("max_restarts: [1]", "max_restarts: a list, where one value is expected", "max_restarts: N"),
        ("max_restarts: {a: 1}", "max_restarts: a mapping, where one value is expected", "max_restarts: N"),
        ("standalone: maybe", "standalone: maybe: neither 1 nor 0", "true or false"),
        ("standalone: []", "standalone: a list, where one value is expected", "true or false"),
        ("warm_imports: [[torch]]", "warm_imports: a list in a list of single values", "MODULE"),
        ("warm_imports: ['a,b']", "'a,b' cannot be one of several values", ""),
        ("warm_imports: [~]", "'nothing' cannot be one of several values", ""),
        ("hang_action: never", "hang_action: never: no such choice", "restart"),
        ("log_dir: !env HOME", "the tag !env means nothing here", "value alone"),
        (
            "max_restarts: !!python/name:os.system 3",
            "the tag !!python/name:os.system means nothing",
            "value alone",
        ),
        ("log_dir: !!binary bG9ncw==", "the tag !!binary means nothing here", "value alone"),
        ("lease_ttl: 9\nlease-ttl: 6", "job.yaml:2: lease-ttl is given twice", "job.yaml:1"),
        ("lease_ttl: 9\nlease_ttl: 9", "job.yaml:2: lease_ttl is given twice", "job.yaml:1"),
        ("takeover: true", "job.yaml:1: takeover cannot stand in a file", "--takeover on the command line"),
        ("config: other.yaml", "config cannot stand in a file", "--config"),
        ("help: true", "help cannot stand in a file", ""),
        ("logs_specs: x", "job.yaml:1: logs_specs is not possible", "--log-dir"),
        ("- lease_ttl", "job.yaml:1: options are `name: value`, one a line, but here is a list", ""),
        ("lease_ttl 9", "but here is a single value", "max_restarts: 3"),
        ("[a]: 1", "a name is expected, but here is a list", ""),
        ("lease_ttl: 9\n\tnnodes: 1", "job.yaml:2: no YAML: ", "one `name: value` a line"),
        ("lease_ttl: 9\n---\nlease_ttl: 9", "job.yaml:2: no YAML: ", ""),
        ("lease_ttl: 'a", "no YAML", ""),
        ("log_dir: \x07", "no YAML", "UTF-8"),
        ("[" * 10_000, "nested too deeply", ""),
        ("#" * (1 << 20) + "#", "more than 1048576 bytes", ""),
    ],
)
def test_a_wrong_file_is_answered_with_file_line_and_what_is_expected(job, text, message, hint):
    with pytest.raises(UsageError) as raised:
        job(text)
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(("name", "says"), [("missing.yaml", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read(tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^--config {name}: {says}"):
        parse(["--config", name, "train.py"], {})
    with pytest.raises(UsageError, match=f"^NVRX_CONFIG={name}: {says}"):
        parse(["train.py"], {"NVRX_CONFIG": name})


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "job.yaml").write_bytes(b"log_dir: \xff\n")
    with pytest.raises(UsageError, match=r"job.yaml: no YAML"):
        parse(["--config", str(tmp_path / "job.yaml"), "train.py"], {})


def test_options_that_change_nothing_say_so_with_their_line(job):
    (notice,) = job("lease_ttl: 9\nmonitor_interval: 3").notices
    assert (
        notice
        == "job.yaml:2: monitor_interval changes nothing: nothing is polled, the end of a rank is seen at once"
    )


def test_every_option_but_a_few_may_stand_in_a_file(job):
    assert {option.name for option in OPTIONS if not option.in_file} == {
        "config", "print_config", "takeover", "help", "help_all", "version",
    }  # fmt: skip


def test_messages_later_on_name_the_file(job):
    line = job("nnodes: 4\nrdzv_conf: {join_timeout: 5}")
    assert line.as_given("nnodes") == "job.yaml:1: nnodes: 4"


# The section of ft_launcher's files.

NVIDIA = """\
fault_tolerance:
  rank_heartbeat_timeout: 300
  max_no_progress_cycles: -1
  checkpoint_iteration_file: /ckpt/latest
  initial_rank_heartbeat_timeout: null
  rank_section_timeouts: {setup: 600, step: 180}
  safety_factor: 5.0
  workload_check_interval: 5.0
  enable_nic_monitor: false
"""


def test_the_section_of_ft_launcher_becomes_options(job):
    line = job(NVIDIA)
    assert line.value("hang_timeout") == 300
    assert line.value("no_progress_limit") == 0
    assert line.value("progress_file") == "/ckpt/latest"
    assert line.given["hang_timeout"].spelled == "job.yaml:2: rank_heartbeat_timeout"
    assert line.value("section_limits") == {"setup": 600, "step": 180}
    nothing, anyway = line.notices
    assert nothing.startswith("job.yaml:1: fault_tolerance: these change nothing: safety_factor (")
    assert "workload_check_interval (nothing is polled, a deadline has its own timer)" in nothing
    assert "initial_rank" not in nothing, "null is not given"
    assert anyway == "job.yaml:1: fault_tolerance: these ask for what happens anyway: enable_nic_monitor"


def test_what_ft_launcher_calls_by_the_same_names_is_outranked_by_our_own(job):
    line = job("hang_timeout: 100\n" + NVIDIA, "--print-config")
    assert line.value("hang_timeout") == 100
    assert [one.value for one in line.outranked["hang_timeout"]] == [300]
    assert job(NVIDIA, "--hang-timeout", "5").value("hang_timeout") == 5


MERGED = """\
base: &base
  rank_heartbeat_timeout: 300
  rank_section_timeouts: {setup: 600}
fault_tolerance:
  <<: [*base, {rank_heartbeat_timeout: 1, rank_out_of_section_timeout: 300}]
  rank_section_timeouts: {setup: 700}
"""


def test_what_a_merge_key_lends_stands_behind_what_is_there(job):
    line = job(MERGED)
    assert line.value("hang_timeout") == 300, "the first of several lenders goes before"
    assert line.value("section_limits") == {"setup": 700}
    assert job("<<: {max_restarts: 7}\nnproc_per_node: 2").value("max_restarts") == 7
    assert job("&all\n<<: *all\nmax_restarts: 6").value("max_restarts") == 6
    with pytest.raises(UsageError, match="unknown option <<"):
        job("<<: 3")


def test_a_file_of_somebody_else_is_read_for_its_section_alone(job):
    line = job("trainer: {devices: 8}\nresiliency:\n  " + NVIDIA.replace("\n", "\n  "))
    assert line.value("hang_timeout") == 300
    assert "job.yaml:3: of this file only fault_tolerance is read, not trainer, resiliency" in line.notices
    assert job("a:\n- b\n- - {fault_tolerance: {rank_heartbeat_timeout: 77}}").value("hang_timeout") == 77
    with pytest.raises(UsageError, match="unknown option a"):
        job("a: &it [*it]")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("max_restart: 3\n" + NVIDIA, "job.yaml:1: unknown option max_restart", "max_restarts"),
        ("lease_ttl: 9\ntrainer: {a: 1}\n" + NVIDIA, "job.yaml:2: unknown option trainer", ""),
        ("fault_tolerance: {rank_heart_timeout: 3}", "has no rank_heart_timeout", "rank_heartbeat_timeout"),
        ("fault_tolerance: {xyz: 3}", "fault_tolerance has no xyz", "outside of fault_tolerance"),
        ("fault_tolerance:\n  segment: 4", "job.yaml:2: segment: 4 is not possible", "leave it out"),
        (
            "fault_tolerance:\n  segment: 4\n  enable_nic_monitor: true",
            "2 settings are not possible:\n  job.yaml:2: segment: 4: nodes are not placed",
            "job.yaml:3: enable_nic_monitor: leave it out",
        ),
        (
            "fault_tolerance:\n  term_timeout: 4", "job.yaml:2: fault_tolerance has no term_timeout",
            "--term-timeout on the command line",
        ),
        ("fault_tolerance: {rank_heartbeat_timeout: [3]}", "rank_heartbeat_timeout: a list, where one value", ""),
        ("fault_tolerance: {safety_factor: {a: 3}}", "safety_factor: a mapping, where one value", ""),
        ("fault_tolerance: {rank_section_timeouts: 3}", "rank_section_timeouts: 3: '3' is not section:seconds", ""),
        ("fault_tolerance: {rank_section_timeouts: {a: [3]}}", "a list in a list of single values", "seconds"),
        ("fault_tolerance: {storage_healthcheck_path: [/a, /b]}", "storage_healthcheck_path: /a,/b is not", "check"),
        ("fault_tolerance:\n  rank_heartbeat_timeout: soon", "job.yaml:2: rank_heartbeat_timeout: soon: ", "90"),
        (
            "fault_tolerance:\n  rank_heartbeat_timeout: 3\n  rank_heartbeat_timeout: 9",
            "job.yaml:3: rank_heartbeat_timeout is given twice", "see job.yaml:2",
        ),
        (NVIDIA + "\nfault_tolerance: {}\nfault_tolerance: {}", "fault_tolerance is given twice", "see job.yaml"),
        ("fault_tolerance: 3", "settings of fault_tolerance are `name: value`", ""),
    ],
)  # fmt: skip
def test_a_wrong_section(job, text, message, hint):
    with pytest.raises(UsageError) as raised:
        job(text)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_an_empty_section_is_as_none(job):
    assert job("fault_tolerance:").notices == ()
    assert job("fault_tolerance: {}").notices == ()


def test_a_file_that_contains_itself_ends(job):
    with pytest.raises(UsageError, match="unknown option zzz"):
        job("zzz: &it {inner: *it}")


def test_the_page_on_kubernetes_sets_variables_that_are_read():
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    spec = yaml.safe_load(re.search(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1])["spec"]
    (container,) = spec["containers"]
    named = {one["name"]: one for one in container["env"]}
    known = {variable for option in OPTIONS for variable in option.environment}
    assert set(named) - known == {"NVRX_TERMINATION_GRACE_S", "NVRX_JOB_TOKEN"}
    assert named["NVRX_TERMINATION_GRACE_S"]["value"] == str(spec["terminationGracePeriodSeconds"])
    assert container["command"][1] == next(one.shown for one in OPTIONS if one.name == "config")


def test_settings_survive_as_a_file_of_ours(job, tmp_path):
    """`--print-config=yaml` turns a file of ft_launcher's into one with our names."""
    line = job(NVIDIA, "--print-config=yaml")
    (tmp_path / "ours.yaml").write_text(print_config(line, "yaml", PLAIN, None))
    again = parse(["--config", str(tmp_path / "ours.yaml"), "train.py"], {})
    for name in ("hang_timeout", "no_progress_limit", "progress_file", "section_limits"):
        assert again.value(name) == line.value(name)
        assert not again.given[name].lent
    assert again.notices == ()


@pytest.mark.parametrize(
    ("settings", "more", "start"),
    [
        ("initial_rank_heartbeat_timeout: 15\n  rank_heartbeat_timeout: 10", (), 1200),
        ("initial_rank_heartbeat_timeout: 30", (), 1200),
        ("initial_rank_heartbeat_timeout: 5000", (), 5000),
        ("rank_heartbeat_timeout: 900", (), 1800),
        (
            "initial_rank_heartbeat_timeout: 15\n  rank_section_timeouts: {a: 5}",
            ("--hang-timeout", "off"),
            None,
        ),
    ],
)
def test_a_file_of_ours_gives_a_start_no_less_than_the_settings_did(job, tmp_path, settings, more, start):
    """By our name the limit holds from the start of the process; in ft_launcher's file from the client on."""
    line = job(f"fault_tolerance:\n  {settings}\n", "--print-config=yaml", *more)
    (tmp_path / "ours.yaml").write_text(print_config(line, "yaml", PLAIN, None))
    again = parse(["--config", str(tmp_path / "ours.yaml"), "train.py"], {})
    hang = configure(again, {}, lambda _: 1, lambda _: "").hang
    assert (hang and hang.startup_s) == start
