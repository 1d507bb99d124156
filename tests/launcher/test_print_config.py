"""`--print-config`: every option with its value and who gave it, in three forms; nothing is started."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from nvrx_launcher.command_line import parse
from nvrx_launcher.launch_cli import main
from nvrx_launcher.options import OPTIONS
from nvrx_launcher.palette import PLAIN
from nvrx_launcher.print_config import print_config

FILE = "hang_timeout: 120\nmax_restarts: 1\nmonitor_interval: 2\n"


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Runs `nvrx-launch --config job.yaml` with more arguments: stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PET_MAX_RESTARTS", "2")

    def run(*arguments: str, text: str = FILE):
        (tmp_path / "job.yaml").write_text(text)
        assert main(["--config", "job.yaml", *arguments]) == 0
        out, err = capsys.readouterr()
        return out, err

    return run


def row(text: str, name: str) -> list[str]:
    (line,) = re.findall(rf"^{name} .*", text, re.MULTILINE)
    return re.split(r"  +", line)


def test_a_table_says_who_gave_what_and_whom_that_outranked(printed):
    out, err = printed("--print-config", "--max-restarts", "3")
    assert row(out, "OPTION") == ["OPTION", "VALUE", "GIVEN BY", "OUTRANKS"]
    assert row(out, "hang_timeout") == ["hang_timeout", "120", "file: job.yaml:1: hang_timeout"]
    assert row(out, "max_restarts") == [
        "max_restarts", "3", "command line: --max-restarts", "2 (PET_MAX_RESTARTS); 1 (job.yaml:2: max_restarts)",
    ]  # fmt: skip
    assert row(out, "lease_ttl") == ["lease_ttl", "6", "default"]
    assert row(out, "standalone") == ["standalone", "false", "default"]
    assert err.startswith("note: job.yaml:3: monitor_interval changes nothing")


def test_every_option_is_there(printed):
    out, _ = printed("--print-config")
    shown = [line.partition(" ")[0] for line in out.splitlines()[1:]]
    assert sorted(shown) == sorted(
        option.name
        for option in OPTIONS
        if option.name not in {"help", "help_all", "version", "print_config"}
    )


def test_json_has_values_as_they_are(printed):
    out, _ = printed("--print-config=json", "--nnodes", "2:4", "--rdzv-conf", "timeout=3", "--tee", "0:1")
    told = json.loads(out)
    assert (told["schema"], told["kind"]) == (1, "Options")
    options = told["options"]
    assert options["hang_timeout"] == {
        "value": 120.0, "source": "file", "spelled": "job.yaml:1: hang_timeout", "outranks": [],
    }  # fmt: skip
    assert options["max_restarts"]["value"] == 2
    assert options["max_restarts"]["source"] == "environment"
    assert [one["value"] for one in options["max_restarts"]["outranks"]] == [1]
    values = {name: one["value"] for name, one in options.items()}
    assert values["nnodes"] == "2:4"
    assert values["rdzv_conf"] == {"timeout": "3"}
    assert values["tee"] == "0:1"
    assert values["standalone"] is False
    assert values["signals_to_handle"] == ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"]
    assert values["warm_imports"] == ["torch"]
    assert values["node_rank"] is None


GIVEN = (
    "--nnodes=2:4 --rdzv-endpoint=a:1,[::1]:2 --rdzv-id=null --rdzv-conf=timeout=3,rank=1 --tee=0:1,1:3 -m "
    "--requeue-command='a # b: \"c\"' --log-dir=~ --hang-timeout=off --role=@x --node-id=a: --numa-binding=node"
)


def test_yaml_is_a_file_that_gives_the_same(tmp_path):
    first = parse([*shlex.split(GIVEN), "--print-config=yaml"], {})
    text = print_config(first, "yaml", PLAIN, None)
    (tmp_path / "again.yaml").write_text(text)
    again = parse(["--config", str(tmp_path / "again.yaml"), "train.py"], {})
    for option in OPTIONS:
        if option.in_file:
            assert again.value(option.name) == first.value(option.name), text
            assert again.given[option.name].by_user is first.given[option.name].by_user


def test_no_secret_is_shown(printed):
    secret = "requeue_command: 'curl -H \"Authorization: Bearer hunter2\" https://me:hunter2@ci/'\n"
    for form in ("table", "json", "yaml"):
        out, err = printed(
            f"--print-config={form}", "--otlp-endpoint", "http://me:hunter2@collector", text=secret
        )
        assert "hunter2" not in out + err
        assert "(left out)" in out


def test_no_secret_in_a_mapping_is_shown(printed):
    for form in ("table", "json", "yaml"):
        out, err = printed(
            f"--print-config={form}", "--rdzv-conf", "password=hunter2,token=hunter2,timeout=3"
        )
        assert "hunter2" not in out + err
        assert "(left out)" in out
    values = json.loads(printed("--print-config=json", "--rdzv-conf", "token=hunter2,timeout=3")[0])[
        "options"
    ]
    assert values["rdzv_conf"]["value"] == {"token": "(left out)", "timeout": "3"}


def test_an_empty_value_is_shown_as_that(tmp_path):
    line = parse(["--print-config=yaml", "--log-dir", "", "--standalone"], {})
    text = print_config(line, "yaml", PLAIN, None)
    assert 'log_dir: ""  # command line: --log-dir' in text
    assert "standalone: true  # command line: --standalone" in text
    (tmp_path / "again.yaml").write_text(text)
    assert parse(["--config", str(tmp_path / "again.yaml"), "train.py"], {}).value("log_dir") == line.value(
        "log_dir"
    )


def test_a_narrow_terminal_gets_narrow_lines():
    line = parse(["--rdzv-endpoint", ",".join(f"etcd{n}:2379" for n in range(9)), "--print-config"], {})
    assert max(map(len, print_config(line, "table", PLAIN, 80).splitlines())) <= 80


def test_it_needs_no_script_and_ignores_one(printed):
    assert printed("--print-config")[0] == printed("--print-config", "no-such-script.py")[0]


def test_wrong_values_are_refused_as_ever(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("max_restarts: many")
    assert main(["--config", "job.yaml", "--print-config"]) == 2
    assert capsys.readouterr().err == (
        "error: job.yaml:1: max_restarts: many: not a whole number\n\nhint: max_restarts: N\n"
    )
    assert main(["--print-config=xml"]) == 2
    assert "one of: table, json, yaml" in capsys.readouterr().err


def test_commands_and_output_of_the_page(tmp_path, monkeypatch, capsys):
    """The page's file, given to each of its commands that starts nothing; what it shows is what comes."""
    page = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(re.search(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1])
    monkeypatch.setenv("PET_MAX_RESTARTS", "5")
    commands = re.findall(r"^\$ (?:PET_MAX_RESTARTS=5 )?nvrx-launch (.*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command.partition(" > ")[0])
        if not any(word.startswith("--print-config") for word in words):
            assert parse(words, {}).value("hang_timeout") == 120
            continue
        assert main(words) == 0
        out = capsys.readouterr().out
        if words[-1] == "--print-config":
            shown = re.search(r"^(OPTION .*?)\n…", page, re.MULTILINE | re.DOTALL)[1]
            for line in shown.splitlines():
                assert row(out, line.split()[0]) == re.split(r"  +", line)
    for name, wrong in (("max_restart", "max_restart: 20"), ("max_restarts", "max_restarts: [20]")):
        (tmp_path / "job.yaml").write_text("#\nlog_dir: x\nrole: y\nspares: 0\n" + wrong)
        assert main(["--config", "job.yaml", "train.py"]) == 2
        told = capsys.readouterr().err
        assert "\n".join(f"  {line}".rstrip() for line in told.splitlines()) in page, name
