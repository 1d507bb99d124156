"""What options mean together."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from nvrx_async.hang.policy import Action, HangPolicy
from nvrx_async.job.codec import decode, encode
from nvrx_async.job.records import JobSpec
from nvrx_launcher.blank import BLANK
from nvrx_launcher.command_line import parse
from nvrx_launcher.config import EmbeddedEtcd, ProgramKind, TlsConfig
from nvrx_launcher.configure import configure
from nvrx_launcher.errors import UsageError
from nvrx_launcher.streams import STDERR, STDOUT


def config(arguments: str, script: str = "train.py --lr 1", **environment: str):
    line = parse([*arguments.split(), *script.split()], environment)
    return configure(
        line, environment, {"gpu": 8, "cpu": 2, "auto": 4}.__getitem__, lambda path: f"from {path}"
    )


TWO = "--nnodes 2 --rdzv-endpoint node0:2379"


def test_the_smallest_command_line_is_one_node_with_a_private_etcd():
    found = config("")
    assert found.etcd.embedded is EmbeddedEtcd.PRIVATE
    assert found.etcd.endpoints == ()
    assert found.etcd.tls is None
    assert (found.job.min_nodes, found.job.max_nodes, found.job.max_restarts) == (1, 1, 0)
    assert found.job.command == ("train.py", "--lr", "1")
    assert (found.job.lease_ttl_s, found.job.join_timeout_s, found.job.last_call_s) == (6, 600.0, 30.0)
    assert found.node.slots == 1
    assert found.workers.argv == (sys.executable, "-u", "train.py", "--lr", "1")
    assert (found.workers.stop_timeout_s, found.workers.startup_grace_s) == (15.0, 30.0)
    assert found.workers.omp_num_threads is None
    assert found.logs.folder == Path.cwd() / "nvrx-logs" / found.run_id
    assert found.notices == ()
    assert found.launch_id is None


def test_a_command_that_is_no_utf8_is_the_same_job_on_both_sides_of_etcd():
    found = config("", script="train.py /data/m\udcfcller")
    assert found.workers.argv[-1] == "/data/m\udcfcller"
    assert decode(JobSpec, "job", encode(found.job)) == found.job


def test_every_single_node_job_has_a_name_of_its_own():
    assert config("").run_id != config("").run_id


@pytest.mark.parametrize(
    ("arguments", "endpoints", "embedded"),
    [
        (f"{TWO} --rdzv-id a", ("node0:2379",), EmbeddedEtcd.AUTO),
        (f"{TWO} --rdzv-id a --etcd-embedded off", ("node0:2379",), EmbeddedEtcd.OFF),
        (
            "--nnodes 1:2 --rdzv-id a --rdzv-endpoint a:1,b:2,[::1]:3",
            ("a:1", "b:2", "[::1]:3"),
            EmbeddedEtcd.AUTO,
        ),
        ("--rdzv-endpoint a:1", ("a:1",), EmbeddedEtcd.AUTO),
        ("--rdzv-endpoint localhost:0", (), EmbeddedEtcd.PRIVATE),
        ("--standalone", (), EmbeddedEtcd.PRIVATE),
        ("--standalone --rdzv-endpoint a:1", (), EmbeddedEtcd.PRIVATE),
        ("--nnodes 2 --rdzv-id a --master-addr h --master-port 29500", ("h:29500",), EmbeddedEtcd.AUTO),
        ("--nnodes 2 --rdzv-id a --master-addr h", ("h:2379",), EmbeddedEtcd.AUTO),
        ("--nnodes 2 --rdzv-id a --master-addr fe80::1", ("[fe80::1]:2379",), EmbeddedEtcd.AUTO),
        ("--nnodes 2 --rdzv-id a --master-addr h --rdzv-endpoint e:1", ("e:1",), EmbeddedEtcd.AUTO),
    ],
)
def test_where_nodes_meet(arguments, endpoints, embedded):
    found = config(arguments).etcd
    assert (found.endpoints, found.embedded) == (endpoints, embedded)


@pytest.mark.parametrize(
    ("arguments", "environment", "run_id"),
    [
        (f"{TWO} --rdzv-id run.1", {}, "run.1"),
        (f"{TWO} --rdzv-id run.1", {"SLURM_JOB_ID": "77"}, "run.1"),
        (TWO, {"SLURM_JOB_ID": "77"}, "77"),
        (f"{TWO} --rdzv-id none", {"SLURM_JOB_ID": "77"}, "77"),
        (TWO, {"PET_RDZV_ID": "pet"}, "pet"),
        ("--standalone --rdzv-id named", {}, "named"),
    ],
)
def test_run_id(arguments, environment, run_id):
    assert config(arguments, **environment).run_id == run_id


@pytest.mark.parametrize(
    "arguments",
    [
        "--nnodes 2 --rdzv-id a --rdzv-endpoint http://u:hush@h:2379",
        "--nnodes 2 --rdzv-id a --rdzv-endpoint=a:1,u:hush@h:2379",
        "--nnodes 2 --rdzv-id a --rdzv-endpoint https://u:1,hush@h",
        "--nnodes 2 --rdzv-id a --rdzv-endpoint a:1 --master-addr u:hush@h",
        "--nnodes 2 --rdzv-id a --master-addr hush@h",
    ],
)
def test_a_password_where_a_host_belongs_is_not_repeated(arguments):
    with pytest.raises(UsageError, match="holds a user or a password") as raised:
        config(arguments)
    assert "hush" not in raised.value.message + raised.value.hint
    assert "NVRX_ETCD_PASSWORD or a file: --etcd-password-file" in raised.value.hint
    with pytest.raises(UsageError, match="holds a user or a password") as raised:
        config("--nnodes 2 --rdzv-id a", PET_RDZV_ENDPOINT="u:hush@h:1")
    assert "hush" not in raised.value.message + raised.value.hint


def test_a_secret_among_the_settings_of_the_meeting_is_not_repeated():
    with pytest.raises(UsageError, match="no such key") as raised:
        config("--nnodes 2 --rdzv-id a --rdzv-endpoint a:1 --rdzv-conf etcd_password=hush")
    assert "hush" not in raised.value.message + raised.value.hint


def test_a_single_node_in_slurm_is_not_named_after_the_allocation():
    assert config("--standalone", SLURM_JOB_ID="77").run_id != "77"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("--nnodes 2", "--nnodes 2: several nodes need an etcd to meet in", "--rdzv-endpoint"),
        (TWO, "several nodes need a name for their job", "--rdzv-id NAME"),
        (f"{TWO} --rdzv-id none", "several nodes need a name for their job", "--rdzv-id NAME"),
        (f"{TWO} --rdzv-id a/b", "--rdzv-id 'a/b' cannot be used", "--rdzv-id my-run.1"),
        ("--node-id .x", "--node-id '.x' cannot be used", "--node-id"),
        (
            "--standalone --nnodes 2",
            "--standalone is one node, but --nnodes 2 asks for 2",
            "leave --standalone out",
        ),
        ("--nnodes 2 --rdzv-id a --rdzv-endpoint localhost:0", "port 0 means any port", "2379"),
        ("--nnodes 2 --rdzv-id a --master-addr h/x", "is not the name of a host", ""),
        ("-m --no-python", "-m is a module for Python, which --no-python rules out", "one of the two"),
        ("-m --run-path", "which --run-path rules out", "one of the two"),
        ("--rdzv-conf jointimeout=3", "--rdzv-conf jointimeout=3: no such key", "join_timeout"),
        ("--rdzv-conf join_timeout=x", "--rdzv-conf join_timeout=x: not a number of seconds", ""),
        ("--rdzv-conf cert=a.pem", "--rdzv-conf cert=a.pem: TLS is set by options", "--etcd-cert FILE"),
        ("--rdzv-conf rank=1", "the order of nodes has an option", "--node-rank"),
        ("--rdzv-endpoint a:1 --etcd-cert c.pem", "--etcd-key is missing", ""),
        ("--rdzv-endpoint a:1 --etcd-key k.pem", "--etcd-cert is missing", ""),
        ("--etcd-cacert c.pem", "--etcd-cacert c.pem: the private etcd of a single node speaks no TLS", ""),
        ("--rdzv-endpoint a:1 --etcd-user u", "--etcd-user u has no password", "NVRX_ETCD_PASSWORD"),
        ("--rdzv-endpoint a:1 --etcd-user u:p", "--etcd-user takes no password", "NVRX_ETCD_PASSWORD"),
        ("--rdzv-endpoint a:1 --etcd-password-file f", "is given without a user", "--etcd-user"),
    ],
)
def test_contradictions(arguments, message, hint):
    with pytest.raises(UsageError) as raised:
        config(arguments)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_tls_and_credentials():
    arguments = "--rdzv-endpoint a:1 --etcd-cacert ca --etcd-cert c --etcd-key k --etcd-user u"
    found = config(arguments, NVRX_ETCD_PASSWORD="secret").etcd
    assert found.tls == TlsConfig(Path("ca"), Path("c"), Path("k"))
    assert (found.user, found.password) == ("u", "secret")
    assert "secret" not in repr(found)


def test_a_password_file_comes_before_the_variable():
    found = config(
        "--rdzv-endpoint a:1 --etcd-user u --etcd-password-file f", NVRX_ETCD_PASSWORD="secret"
    ).etcd
    assert found.password == "from f"


def test_https_alone_means_tls_with_the_authorities_of_the_system():
    found = config("--rdzv-endpoint https://a:1").etcd
    assert (found.endpoints, found.tls) == (("a:1",), TlsConfig())


@pytest.mark.parametrize(
    ("arguments", "environment", "join_s", "last_call_s"),
    [
        ("--rdzv-conf join_timeout=5,last_call_timeout=2", {}, 5, 2),
        ("--rdzv-conf timeout=5", {}, 5, 30),
        ("--rdzv-conf timeout=5,join_timeout=7", {}, 7, 30),
        ("--rdzv-conf join_timeout=5 --join-timeout 9", {}, 9, 30),
        ("--rdzv-conf join_timeout=5", {"NVRX_JOIN_TIMEOUT": "9"}, 5, 30),
        ("", {"PET_RDZV_CONF": "join_timeout=5", "NVRX_JOIN_TIMEOUT": "9"}, 9, 30),
        ("--join-timeout 9", {"PET_RDZV_CONF": "join_timeout=5"}, 9, 30),
    ],
)
def test_timeouts_of_meeting(arguments, environment, join_s, last_call_s):
    job = config(arguments, **environment).job
    assert (job.join_timeout_s, job.last_call_s) == (join_s, last_call_s)


@pytest.mark.parametrize(
    ("arguments", "environment", "notice"),
    [
        ("--rdzv-backend c10d", {}, "--rdzv-backend c10d is only a name here: nodes meet in etcd"),
        ("", {"PET_RDZV_BACKEND": "static"}, "PET_RDZV_BACKEND=static is only a name here"),
        ("--standalone --rdzv-endpoint a:1", {}, "--rdzv-endpoint a:1 is not used, because of --standalone"),
        ("--standalone --nnodes 1:2", {}, "--nnodes 1:2 is taken as one node"),
        ("--master-port 29501", {}, "--master-port 29501 is not used: a private etcd is used"),
        (
            f"{TWO} --rdzv-id a --master-addr h",
            {},
            "--master-addr h is not used: --rdzv-endpoint node0:2379 names etcd",
        ),
        ("--nnodes 2 --rdzv-id a --master-addr h", {}, "nodes meet in etcd at h:2379, as --master-addr says"),
        ("--rdzv-conf use_libuv=0", {}, "--rdzv-conf use_libuv=0 changes nothing: "),
        (
            "--rdzv-conf join_timeout=5 --join-timeout 9",
            {},
            "join_timeout=5 is not used, because --join-timeout is given",
        ),
        ("--rdzv-conf timeout=5,join_timeout=7", {}, "timeout=5 is not used, because join_timeout is given"),
        ("--nproc-per-node 2", {}, "OMP_NUM_THREADS is set to 1"),
        ("--monitor-interval 3", {}, "--monitor-interval changes nothing"),
        ("-r 3", {}, "the output of all ranks is not shown, it is in "),
        ("-r 3 -t 0:2", {}, "stdout of all ranks is not shown"),
        ("--local-ranks-filter 1", {}, "the output of all ranks is not shown"),
        (
            "--nproc-per-node 2 --local-ranks-filter 1 -r 1:2",
            {},
            "the output of local rank 0, stderr of local rank 1 is not shown",
        ),
    ],
)
def test_nothing_is_ignored_silently(arguments, environment, notice):
    assert sum(notice in line for line in config(arguments, **environment).notices) == 1


def test_etcd_backends_need_no_line():
    assert config("--rdzv-backend etcd").notices == config("--rdzv-backend etcd-v2").notices == ()


@pytest.mark.parametrize(
    ("arguments", "environment", "threads"),
    [("--nproc-per-node 2", {}, 1), ("--nproc-per-node 2", {"OMP_NUM_THREADS": "4"}, None), ("", {}, None)],
)
def test_omp_num_threads_as_torchrun_sets_it(arguments, environment, threads):
    assert config(arguments, **environment).workers.omp_num_threads == threads


@pytest.mark.parametrize(
    ("arguments", "environment", "kind", "argv", "command"),
    [
        ("", {}, ProgramKind.SCRIPT, (sys.executable, "-u", "p", "x"), ("p", "x")),
        ("-m", {}, ProgramKind.MODULE, (sys.executable, "-u", "-m", "p", "x"), ("-m", "p", "x")),
        ("--no-python", {}, ProgramKind.EXECUTABLE, ("p", "x"), ("p", "x")),
        ("--no-python --run-path", {}, ProgramKind.SCRIPT, (sys.executable, "-u", "p", "x"), ("p", "x")),
        ("", {"PYTHON_EXEC": "/opt/python"}, ProgramKind.SCRIPT, ("/opt/python", "-u", "p", "x"), ("p", "x")),
    ],
)
def test_the_ranks_command(arguments, environment, kind, argv, command):
    found = config(arguments, "p x", **environment)
    assert (found.workers.kind, found.workers.program) == (kind, "p")
    assert (found.workers.argv, found.job.command) == (argv, command)


def test_etcd_is_told_no_secret_of_the_command():
    words = ("train.py", "--api-key", "k3y", "--password=hunter2", "--lr", "1")
    found = config("", " ".join(words))
    assert found.job.command == ("train.py", "--api-key", BLANK, f"--password={BLANK}", "--lr", "1")
    assert found.workers.argv[-6:] == words, "the ranks have it"


@pytest.mark.parametrize(
    ("arguments", "environment", "order"),
    [
        ("", {}, None),
        ("", {"SLURM_NODEID": "3"}, 3),
        ("--node-rank 0", {"SLURM_NODEID": "3"}, 0),
        ("", {"PET_NODE_RANK": "5", "SLURM_NODEID": "3"}, 5),
    ],
)
def test_the_wished_order_of_nodes(arguments, environment, order):
    assert config(arguments, **environment).node.order == order


def test_the_node():
    node = config("--nproc-per-node gpu --node-id n7 --local-addr 10.0.0.7").node
    assert (node.slots, node.node_id, node.address) == (8, "n7", "10.0.0.7")


def test_a_launch_by_slurm_is_told_from_its_requeue_and_from_the_next_step():
    def launch(step: str, count: str) -> str | None:
        found = config("", SLURM_JOB_ID="9", SLURM_STEP_ID=step, SLURM_RESTART_COUNT=count)
        return found.launch_id

    assert (launch("0", "0"), launch("0", "1"), launch("1", "0")) == (
        "slurm-9-0.0",
        "slurm-9-0.1",
        "slurm-9-1.0",
    )


def test_without_a_step_an_allocation_names_no_launch_but_a_person_may():
    assert config("", SLURM_JOB_ID="9").launch_id is None
    assert config("", NVRX_LAUNCH_ID="pod-7.0").launch_id == "pod-7.0"


def test_takeover_is_the_persons_word():
    assert config("--takeover").takeover
    assert not config("").takeover


def test_output_that_is_shown():
    shown = config("-r 3 -t 1 --duplicate-stdout-filters loss,step").logs.shown
    assert shown.has(0, STDOUT)
    assert not shown.has(0, STDERR)
    assert (shown.words(STDOUT), shown.words(STDERR)) == (("loss", "step"), ())
    assert config("--tee 3").notices == ()


def test_every_virtual_local_rank_needs_a_gpu():
    assert config("--virtual-local-rank --nproc-per-node 2").workers.virtual_local_rank
    assert config(
        "--virtual-local-rank --nproc-per-node 2", CUDA_VISIBLE_DEVICES="4,5"
    ).workers.virtual_local_rank
    with pytest.raises(UsageError, match="3 ranks need a GPU each, CUDA_VISIBLE_DEVICES=4,5 has 2"):
        config("--virtual-local-rank --nproc-per-node 3", CUDA_VISIBLE_DEVICES="4,5")


def test_signals_for_the_ranks():
    usual = (signal.SIGUSR1, signal.SIGUSR2)
    assert config("").workers.signals == usual
    assert config("--signals-to-handle SIGTERM,SIGUSR2,SIGCONT").workers.signals == (*usual, signal.SIGCONT)


@pytest.mark.parametrize(
    ("arguments", "pty"),
    [
        ("", None),
        ("--nproc-per-node 2", False),
        ("--nnodes 1:2 --rdzv-id a --rdzv-endpoint a:1", False),
        ("--pty on --nproc-per-node 2", True),
        ("--pty off", False),
    ],
)
def test_only_a_single_rank_looks_as_if_there_were_no_launcher(arguments, pty):
    assert config(arguments).workers.pty is pty


def test_an_interface_gives_the_address_and_is_told_to_gloo_and_nccl():
    found = config("--interface eth1")
    assert (found.node.interface, found.workers.interface, found.node.address) == ("eth1", "eth1", None)
    with pytest.raises(UsageError, match=r"--interface eth1 and --local-addr .* both say"):
        config("--interface eth1 --local-addr 10.0.0.1")


def test_hangs_are_looked_for_by_default_and_all_limits_derive_from_one():
    assert config("").hang == HangPolicy(600.0, 1200.0)
    assert config("--hang-timeout 5").hang == HangPolicy(5.0, 60.0)
    found = config("--hang-timeout 60 --hang-startup-timeout 300 --hang-action kill-suspects").hang
    assert found == HangPolicy(60.0, 300.0, Action.KILL_SUSPECTS, startup_given=True)
    assert config("", NVRX_HANG_TIMEOUT="90").hang == HangPolicy(90.0, 180.0)
    assert config("--hang-timeout off").hang is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--hang-timeout 60 --hang-startup-timeout 10", "hang-timeout <= hang-startup-timeout"),
        ("--hang-timeout off --hang-startup-timeout 10", "turns the detection off"),
        ("--hang-timeout 0", "1 or more"),
    ],
)
def test_limits_that_contradict_each_other(arguments, message):
    with pytest.raises(UsageError, match=message):
        config(arguments)


def test_a_persons_own_prefix_knows_the_role():
    shown = config(
        "--role eval", TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[${role_name}${local_rank}]:"
    ).logs.shown
    assert shown.prefix(9, 1) == b"[eval1]:"
