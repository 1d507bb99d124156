"""What a rank is given: torchrun's environment and ours, no secrets, the command as it was typed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvrx_async.job.records import Assignment, Seat
from nvrx_launcher.config import ProgramKind, WorkersConfig
from nvrx_launcher.workers import (
    RankCommand,
    RankJob,
    first_attempt,
    is_secret,
    make_folders,
    rank_command,
)

ASSIGNMENT = Assignment(
    round=3,
    seat=Seat("n1", "inc", "host1", group_rank=1, first_rank=2, slots=2),
    world_size=6,
    group_world_size=3,
    master_address="10.0.0.1",
    master_port=4711,
)
WORKERS = WorkersConfig(
    argv=("python", "-u", "train.py", "--x", "1"),
    kind=ProgramKind.SCRIPT,
    program="train.py",
    role="trainer",
    stop_timeout_s=15,
    startup_grace_s=30,
    omp_num_threads=1,
)


def command(
    local_rank: int = 1,
    base_env: dict[str, str] | None = None,
    workers: WorkersConfig = WORKERS,
    folder: str = "/logs/job",
) -> RankCommand:
    return rank_command(
        ASSIGNMENT,
        local_rank,
        workers=workers,
        job=RankJob("job", 2, "n1", 5, Path(folder), "job/0123"),
        base_env=base_env or {},
        cwd="/home",
    )


def test_environment_is_torchruns_and_ours() -> None:
    assert command(base_env={"PATH": "/bin"}).env == {
        "PATH": "/bin",
        "LOCAL_RANK": "1",
        "RANK": "3",
        "GROUP_RANK": "1",
        "ROLE_RANK": "3",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "6",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/logs/job/attempt_2/round_3/rank_3/error.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "NVRX_RUN_ID": "job",
        "NVRX_ATTEMPT": "2",
        "NVRX_ROUND": "3",
        "NVRX_NODE_ID": "n1",
        "NVRX_JOB_TAG": "job/0123",
    }


def test_a_persons_settings_win_over_defaults_but_not_over_the_place_in_the_world() -> None:
    env = command(
        base_env={
            "OMP_NUM_THREADS": "8",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "PYTHONUNBUFFERED": "",
            "RANK": "77",
            "NVRX_JOB_TAG": "outer/job/x",
        }
    ).env
    assert env["OMP_NUM_THREADS"] == "8"
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert env["PYTHONUNBUFFERED"] == ""
    assert env["RANK"] == "3"
    assert env["NVRX_JOB_TAG"] == "job/0123"


def test_threads_are_left_alone_where_the_configuration_says_so() -> None:
    assert "OMP_NUM_THREADS" not in command(workers=replace(WORKERS, omp_num_threads=None)).env


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("NVRX_JOB_TOKEN", True),
        ("NVRX_ETCD_PASSWORD", True),
        ("PET_RDZV_PASSWORD", True),
        ("ETCDCTL_PASSWORD", True),
        ("HF_TOKEN", False),
        ("DB_PASSWORD", False),
        ("NVRX_RUN_ID", False),
    ],
)
def test_our_secrets_stay_with_the_agent_and_the_persons_own_go_through(name: str, *, secret: bool) -> None:
    assert is_secret(name) is secret
    assert (name in command(base_env={name: "x"}).env) is not secret or name == "NVRX_RUN_ID"


def test_the_keepers_mark_is_not_passed_on() -> None:
    assert "NVRX_KEEPER" not in command(base_env={"NVRX_KEEPER": "1"}).env


def test_each_argument_may_ask_for_its_local_rank_and_nothing_else_is_touched() -> None:
    words = ("prog", "--rank=${local_rank}", "$$HOME", "${LOCAL_RANK}")
    made = command(workers=replace(WORKERS, argv=words))
    assert made.argv == ("prog", "--rank=1", "$$HOME", "${LOCAL_RANK}")
    assert made.cwd == "/home"


def test_logs_lie_in_a_folder_per_rank_that_is_made_on_demand(tmp_path: Path) -> None:
    made = command(folder=str(tmp_path))
    folder = tmp_path / "attempt_2" / "round_3" / "rank_3"
    assert made.stdout_path == str(folder / "stdout.log")
    assert made.stderr_path == str(folder / "stderr.log")
    make_folders([made])
    make_folders([made])
    assert folder.is_dir()


def test_a_virtual_local_rank_sees_one_gpu() -> None:
    virtual = replace(WORKERS, virtual_local_rank=True, argv=("x", "${local_rank}"))
    told = command(workers=virtual, base_env={"CUDA_VISIBLE_DEVICES": "4, 6"})
    assert (told.env["LOCAL_RANK"], told.env["CUDA_VISIBLE_DEVICES"]) == ("0", "6")
    assert (told.env["RANK"], told.local_rank, told.argv) == ("3", 1, ("x", "1"))
    assert command(workers=virtual).env["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in command().env


def test_gloo_and_nccl_use_the_interface_unless_told_otherwise() -> None:
    told = command(workers=replace(WORKERS, interface="eth1"), base_env={"NCCL_SOCKET_IFNAME": "ib0"})
    assert (told.env["GLOO_SOCKET_IFNAME"], told.env["NCCL_SOCKET_IFNAME"]) == ("eth1", "ib0")
    assert "GLOO_SOCKET_IFNAME" not in command().env


def test_logs_are_also_found_where_torchruns_users_look(tmp_path: Path) -> None:
    job = RankJob("job", 2, "n1", 5, tmp_path / "job", "job/0123", familiar=True)
    for _ in range(2):  # a node that starts anew may link again
        made = rank_command(ASSIGNMENT, 1, workers=WORKERS, job=job, base_env={}, cwd="/home")
        make_folders([made])
    Path(made.stdout_path).write_text("said")
    assert (tmp_path / "job_n1.2" / "attempt_3" / "1" / "stdout.log").read_text() == "said"
    assert command().familiar is None


def test_a_link_that_cannot_be_made_costs_no_folder(tmp_path: Path) -> None:
    (tmp_path / "job_n1.2").touch()
    job = RankJob("job", 2, "n1", 5, tmp_path / "job", "job/0123", familiar=True)
    made = [rank_command(ASSIGNMENT, n, workers=WORKERS, job=job, base_env={}, cwd="/") for n in range(2)]
    make_folders(made)
    assert all(Path(one.stdout_path).parent.is_dir() for one in made)


def test_a_new_etcd_does_not_begin_with_an_attempt_whose_output_is_there(tmp_path: Path) -> None:
    assert first_attempt(tmp_path / "missing") == 0
    for name in ("attempt_0", "attempt_10", "attempt_9", "attempt_x", "etcd.log"):
        (tmp_path / name).mkdir()
    assert first_attempt(tmp_path) == 11
