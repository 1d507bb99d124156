"""Command lines: what they mean, and how wrong ones are answered."""

from __future__ import annotations

import pytest

from nvrx_launcher.command_line import parse
from nvrx_launcher.errors import UsageError
from nvrx_launcher.option import Inert, Refused, Source
from nvrx_launcher.options import OPTIONS
from nvrx_launcher.streams import Streams
from nvrx_launcher.values import Endpoint, NodeRange


def given(arguments: str, name: str, **environment: str):
    return parse([*arguments.split(), "train.py"], environment).given[name]


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ("", "nnodes", NodeRange(1, 1)),
        ("--nnodes 2", "nnodes", NodeRange(2, 2)),
        ("--nnodes=2:4", "nnodes", NodeRange(2, 4)),
        ("--nproc-per-node 8", "nproc_per_node", 8),
        ("--nproc_per_node=gpu", "nproc_per_node", "gpu"),
        ("--nproc_per_node AUTO", "nproc_per_node", "auto"),
        ("--max_restarts 3", "max_restarts", 3),
        ("--max-restarts 3 --max_restarts 5", "max_restarts", 5),
        ("-m", "module", True),
        ("--module", "module", True),
        ("--no_python", "no_python", True),
        ("--standalone", "standalone", True),
        ("--rdzv-id=a=b", "rdzv_id", "a=b"),
        ("--rdzv-id=", "rdzv_id", ""),
        ("-r3", "redirects", Streams(3)),
        ("-r=3", "redirects", Streams(3)),
        ("-t 0:1,1:2", "tee", Streams(by_rank=((0, 1), (1, 2)))),
        ("--rdzv-endpoint node0", "rdzv_endpoint", (Endpoint("node0", 2379),)),
        ("--rdzv-endpoint node0:29400", "rdzv_endpoint", (Endpoint("node0", 29400),)),
        (
            "--rdzv-endpoint [::1]:1,[fe80::2]",
            "rdzv_endpoint",
            (Endpoint("::1", 1), Endpoint("fe80::2", 2379)),
        ),
        (
            "--rdzv-endpoint https://e0:1,https://e1:2",
            "rdzv_endpoint",
            (Endpoint("e0", 1, secure=True), Endpoint("e1", 2, secure=True)),
        ),
        (
            "--rdzv-conf join_timeout=5,last_call_timeout=1",
            "rdzv_conf",
            {"join_timeout": "5", "last_call_timeout": "1"},
        ),
        ("--workers-stop-timeout 2.5", "workers_stop_timeout", 2.5),
        ("--shutdown_timeout 7", "workers_stop_timeout", 7.0),
        ("--lease-ttl 3", "lease_ttl", 3),
        ("--node-rank 2", "node_rank", 2),
        ("--local-ranks-filter 0,1", "local_ranks_filter", frozenset({0, 1})),
    ],
)
def test_values(arguments, name, value):
    assert given(arguments, name).value == value


def test_the_script_ends_the_options():
    line = parse(["--nnodes", "1", "train.py", "--nnodes", "7", "--help", "-m"], {})
    assert line.program == ("train.py", "--nnodes", "7", "--help", "-m")
    assert line.value("nnodes") == NodeRange(1, 1)


def test_two_hyphens_end_the_options_too():
    assert parse(["--standalone", "--", "-odd-name.py", "x"], {}).program == ("-odd-name.py", "x")
    assert parse(["train.py", "--", "--lr", "--"], {}).program == ("train.py", "--lr", "--")
    assert parse(["--", "train.py", "--", "--lr"], {}).program == ("train.py", "--", "--lr")
    assert parse(["train.py", "--lr", "--", "x"], {}).program == ("train.py", "--lr", "--", "x")


@pytest.mark.parametrize(
    ("arguments", "environment", "value", "source"),
    [
        ("", {}, 0, Source.DEFAULT),
        ("", {"PET_MAX_RESTARTS": "4"}, 4, Source.ENVIRONMENT),
        ("", {"PET_MAX_RESTARTS": ""}, 0, Source.DEFAULT),
        ("--max-restarts 2", {"PET_MAX_RESTARTS": "4"}, 2, Source.COMMAND_LINE),
        ("--max-restarts 0", {"PET_MAX_RESTARTS": "4"}, 0, Source.COMMAND_LINE),
    ],
)
def test_command_line_before_environment_before_default(arguments, environment, value, source):
    found = given(arguments, "max_restarts", **environment)
    assert (found.value, found.source) == (value, source)


def test_our_options_have_our_variables():
    assert given("", "lease_ttl", NVRX_LEASE_TTL="9").value == 9
    assert given("", "lease_ttl", PET_LEASE_TTL="9").value == 6


@pytest.mark.parametrize(("text", "value"), [("1", True), ("0", False), ("true", True), ("", False)])
def test_flags_in_the_environment(text, value):
    assert given("", "standalone", PET_STANDALONE=text).value is value


def test_the_first_variable_that_is_set_wins():
    both = {"PET_SHUTDOWN_TIMEOUT": "5", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9"}
    assert given("", "workers_stop_timeout", **both).value == 5


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("--nnodes 3:2 x.py", "--nnodes 3:2: the minimum is larger than the maximum", "--nnodes 2:3"),
        ("--nnodes 0 x.py", "--nnodes 0: a job needs at least one node", "N|MIN:MAX"),
        ("--nnodes a x.py", "--nnodes a: neither a number of nodes N nor a range MIN:MAX", "2:4"),
        ("--nnodes 1:2:3 x.py", "neither a number of nodes", "2:4"),
        ("--nproc-per-node 0 x.py", "--nproc-per-node 0: a node needs at least one rank", "gpu"),
        ("--nproc_per_node xpu x.py", "--nproc_per_node xpu: only CPUs and NVIDIA GPUs", "number"),
        ("--nproc-per-node tpu x.py", "neither a number nor cpu, gpu or auto", ""),
        ("--max-restarts -1 x.py", "--max-restarts -1: the smallest value is 0", ""),
        ("--max-restarts 1.5 x.py", "not a whole number", ""),
        ("--lease-ttl 2 x.py", "--lease-ttl 2: the smallest value is 3 s", ""),
        ("--lease-ttl 6.5 x.py", "not a whole number", ""),
        ("--join-timeout soon x.py", "not a number of seconds", ""),
        ("--join-timeout nan x.py", "must be a number of seconds", ""),
        ("--workers-stop-timeout -1 x.py", "0 or more", ""),
        ("--rdzv-backend zookeeper x.py", "no such choice", "etcd"),
        ("--etcd-embedded on x.py", "no such choice", "auto, off"),
        ("--rdzv-endpoint a:b x.py", "b is not a port", "65535"),
        ("--rdzv-endpoint a:70000 x.py", "70000 is not a port", "65535"),
        ("--rdzv-endpoint ::1:2379 x.py", "without brackets", "[::1:2379]"),
        ("--rdzv-endpoint ftp://a x.py", "ftp:// is not spoken by etcd", "https://"),
        ("--rdzv-endpoint http://a,https://b x.py", "mixes http and https", ""),
        ("--rdzv-endpoint u@a:1 x.py", "holds a user or a password", ""),
        ("--rdzv-conf a x.py", "'a' is not key=value", "join_timeout"),
        ("--rdzv-conf a=1,a=2 x.py", "a is given twice", ""),
        ("--tee 4 x.py", "neither 0, 1, 2, 3", "3 is both"),
        ("--tee 1,2 x.py", "neither 0, 1, 2, 3 nor a list", "2 is stderr"),
        ("--start-method thread x.py", "no such choice", "spawn"),
        ("--local-ranks-filter x x.py", "not a list of local ranks", ""),
        ("--master-port 0 x.py", "smallest value is 1", ""),
        ("--nproc 2 x.py", "unknown option --nproc", "did you mean --nproc-per-node?"),
        ("--nnode 2 x.py", "unknown option --nnode", "did you mean --nnodes?"),
        ("--max-retarts 2 x.py", "unknown option --max-retarts", "did you mean --max-restarts?"),
        ("--log-level 2 x.py", "unknown option --log-level", "come after its name"),
        ("--ft-log-levl 2 x.py", "unknown option --ft-log-levl", "did you mean --ft-log-level?"),
        ("--learning-rate 2 x.py", "unknown option --learning-rate", "come after its name"),
        ("-x x.py", "unknown option -x", "come after its name"),
        ("--standalone=1 x.py", "--standalone takes no value", "alone"),
        ("--rdzv-id --standalone x.py", "--rdzv-id needs a value", "--rdzv-id NAME"),
        ("--rdzv-id", "--rdzv-id needs a value", "--rdzv-id NAME"),
        ("--standalone", "no training script is named", "--help"),
        ("", "no training script is named", "--help"),
    ],
)
def test_wrong_command_lines(arguments, message, hint):
    with pytest.raises(UsageError) as raised:
        parse(arguments.split(), {})
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert raised.value.exit_code == 2


def test_a_wrong_variable_is_named():
    with pytest.raises(UsageError, match="PET_NNODES=3:2: the minimum is larger"):
        parse(["x.py"], {"PET_NNODES": "3:2"})
    with pytest.raises(UsageError, match="PET_STANDALONE=maybe: neither 1 nor 0"):
        parse(["x.py"], {"PET_STANDALONE": "maybe"})


_SAMPLES = {
    "monitor_interval": "1",
    "start_method": "fork",
}


@pytest.mark.parametrize(
    "option", [one for one in OPTIONS if isinstance(one.status, Inert)], ids=lambda one: one.name
)
def test_an_inert_option_says_its_line_in_every_spelling_and_from_the_environment(option):
    sample = _SAMPLES.get(option.name, "word")
    for spelling in option.spellings:
        words = [spelling] if option.is_flag else [spelling, sample]
        (notice,) = parse([*words, "x.py"], {}).notices
        assert notice == f"{spelling} changes nothing: {option.status.line}"
    for variable in option.environment:
        (notice,) = parse(["x.py"], {variable: "1" if option.is_flag else sample}).notices
        assert notice.startswith(f"{variable} changes nothing: ")
    assert parse(["x.py"], {}).notices == ()


@pytest.mark.parametrize(
    "option", [one for one in OPTIONS if isinstance(one.status, Refused)], ids=lambda one: one.name
)
def test_a_refused_option_says_why_and_what_instead(option):
    words = [option.shown] if option.is_flag else [option.shown, "word"]
    with pytest.raises(UsageError) as raised:
        parse([*words, "x.py"], {})
    assert raised.value.message == f"{option.shown} is not possible: {option.status.reason}"
    assert raised.value.hint == option.status.hint


def test_a_refused_flag_that_is_switched_off_is_fine():
    assert parse(["x.py"], {"PET_VIRTUAL_LOCAL_RANK": "0"}).notices == ()


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("-h", "help"),
        ("--help", "help"),
        ("--help-all", "help_all"),
        ("--help_all", "help_all"),
        ("--version", "version"),
    ],
)
def test_help_needs_nothing_else(word, name):
    assert parse([word, "--nonsense"], {"PET_NNODES": "broken"}).asked_for == name
