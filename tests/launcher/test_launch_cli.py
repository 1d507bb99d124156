"""`nvrx-launch` as a process, and as a function with an agent that is made up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from nvrx_launcher.errors import NotReadyError, RequeueError
from nvrx_launcher.launch_cli import main

if TYPE_CHECKING:
    from nvrx_launcher.config import LaunchConfig

ROOT = Path(__file__).parents[2]
HEAVY = {
    "torch",
    "grpc",
    "anyio",
    "aetcd",
    "asyncio",
    "orjson",
    "pynvml",
    "opentelemetry",
    "yaml",
    "nvrx_async",
}


def launch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / part) for part in ("", "launcher", "telemetry"))
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PET_", "NVRX_", "SLURM_"))
    }
    return subprocess.run(
        [sys.executable, *arguments],
        env={**kept, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def nvrx(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return launch("-m", "nvrx_launcher", *arguments, **environment)


@pytest.fixture
def agent(monkeypatch, tmp_path):
    """Takes the agent's place: `configs` are what it was given, `answer` what it does."""

    class Agent(ModuleType):
        configs: tuple[LaunchConfig, ...] = ()
        answer: object = 0

        def run(self, config: LaunchConfig, environment: dict[str, str]) -> int:
            assert "PATH" in environment
            self.configs = (*self.configs, config)
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer

    for name in [*os.environ]:
        if name.startswith(("PET_", "NVRX_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    found = Agent("nvrx_launcher.agent")
    monkeypatch.setitem(sys.modules, "nvrx_launcher.agent", found)
    return found


def test_help_goes_to_stdout():
    done = nvrx("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: nvrx-launch")
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [["--help"], ["--help-all"], ["--nnodes", "3:2", "x.py"], []])
def test_help_and_usage_errors_import_nothing_heavy(arguments):
    program = (
        "import json, sys; from nvrx_launcher.launch_cli import main; "
        f"main({arguments!r}); print(); "
        "print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    )
    done = launch("-c", program)
    assert HEAVY.isdisjoint(json.loads(done.stdout.splitlines()[-1]))


def test_a_user_error_is_a_message_and_a_hint():
    done = nvrx("--nnodes", "3:2", "x.py")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: --nnodes 3:2: the minimum is larger than the maximum\n\nhint: --nnodes 2:3\n"
    )


def test_version():
    done = nvrx("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("nvrx-launch")


def test_a_reader_that_leaves_does_not_change_the_exit_code():
    done = launch(
        "-c",
        "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); "
        "from nvrx_launcher.launch_cli import main; sys.exit(main(['--help-all']))",
    )
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("code", [0, 1, 75, 93, 130])
def test_the_agents_exit_code_is_ours(agent, code):
    agent.answer = code
    assert main(["--max-restarts", "2", "train.py"]) == code
    (config,) = agent.configs
    assert config.job.max_restarts == 2


def test_notes_come_before_the_agent_starts(agent, capsys):
    assert main(["--monitor-interval", "3", "train.py"]) == 0
    assert capsys.readouterr().err.startswith("note: --monitor-interval changes nothing: ")


def test_a_missing_script_starts_nothing(agent, capsys):
    assert main(["missing.py"]) == 2
    assert agent.configs == ()
    assert "error: there is no script missing.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            NotReadyError("etcd at a:1 does not answer", "start it"),
            3,
            "error: etcd at a:1 does not answer\n\nhint: start it\n",
        ),
        (RequeueError("etcd is gone"), 75, "error: etcd is gone\n"),
        (
            ExceptionGroup("tasks", [NotReadyError("no etcd"), NotReadyError("no etcd either")]),
            3,
            "error: no etcd\n",
        ),
    ],
)
def test_errors_that_know_what_to_do_are_printed_so(agent, capsys, error, code, message):
    agent.answer = error
    assert main(["train.py"]) == code
    assert capsys.readouterr().err == message


def test_an_error_of_another_room_counts_by_its_hint(agent, capsys):
    class EtcdError(Exception):
        hint = "check the certificate"

    agent.answer = EtcdError("etcd refused us")
    assert main(["train.py"]) == 3
    assert capsys.readouterr().err == "error: etcd refused us\n\nhint: check the certificate\n"


@pytest.mark.parametrize(
    "error", [KeyError("x"), ExceptionGroup("tasks", [NotReadyError("a"), KeyError("x")])]
)
def test_a_bug_is_shown_whole(agent, capsys, error):
    agent.answer = error
    assert main(["train.py"]) == 101
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "KeyError: 'x'" in shown
    assert shown.splitlines()[-1].startswith("internal error: a bug in nvrx-launch, please report it")


def test_ctrl_c_before_the_agent_listens(agent, capsys):
    agent.answer = KeyboardInterrupt()
    assert main(["train.py"]) == 130
    assert capsys.readouterr().err == ""


def test_ranks_are_counted_as_asked(agent):
    assert main(["--nproc-per-node", "cpu", "train.py"]) == 0
    assert agent.configs[0].node.slots == len(os.sched_getaffinity(0))


def _launched(words, folder, **streams):
    command = f"cd {folder} && {words}".replace("LAUNCH", f"{sys.executable} -m nvrx_launcher")
    return subprocess.run(["sh", "-c", command], check=False, text=True, timeout=60, **streams)


def test_a_folder_that_was_removed_is_a_users_error(tmp_path):
    (tmp_path / "ok.py").write_text("")
    gone = tmp_path / "gone"
    gone.mkdir()
    ran = _launched(f"rmdir {gone} && LAUNCH {tmp_path}/ok.py", gone, capture_output=True)
    assert ran.returncode == 2
    assert "the current folder was removed" in ran.stderr
    assert "Traceback" not in ran.stderr
