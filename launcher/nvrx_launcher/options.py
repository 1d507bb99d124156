"""The table of options, of which the parser, `--help` and the reference page are made."""

from __future__ import annotations

from typing import Final

from nvrx_launcher import values
from nvrx_launcher.option import Inert, Option, Refused, both, ours, torchrun
from nvrx_launcher.signals import STOPPING, signal_numbers
from nvrx_launcher.streams import NONE, streams

SIZE: Final = "Size of the job"
MEETING: Final = "Where nodes meet"
PROGRAM: Final = "What is run"
FAILURE: Final = "When something fails"
OUTPUT: Final = "Output"
TELEMETRY: Final = "Telemetry"
NODE: Final = "This node"
ETCD: Final = "etcd"
FILE: Final = "Options in a file"
TORCHRUN: Final = "Taken for torchrun's sake"
HELP: Final = "Help"
GROUPS: Final = (SIZE, MEETING, PROGRAM, FAILURE, OUTPUT, TELEMETRY, NODE, ETCD, FILE, TORCHRUN, HELP)

DEFAULT_JOIN_TIMEOUT_S: Final = 600.0
DEFAULT_LAST_CALL_S: Final = 30.0
DEFAULT_LIMIT_MARGIN_S: Final = 60.0
DEFAULT_HANG_TIMEOUT_S: Final = 600.0
MIN_LEASE_TTL_S: Final = 3

_SIZE = (
    torchrun(
        "--nnodes",
        group=SIZE,
        metavar="N|MIN:MAX",
        parse=values.node_range,
        default=values.NodeRange(1, 1),
        default_text="1",
        common=True,
        doc="Number of nodes. With MIN:MAX the job starts on MIN, after waiting a moment for more.",
    ),
    torchrun(
        "--nproc-per-node",
        group=SIZE,
        metavar="N|gpu|cpu|auto",
        parse=values.slots,
        default=1,
        common=True,
        doc="Ranks on this node: a number, one per visible GPU, one per CPU, or GPUs if there are any.",
    ),
)

_MEETING = (
    torchrun(
        "--rdzv-endpoint",
        group=MEETING,
        metavar="HOST:PORT[,...]",
        parse=values.endpoints,
        default=(),
        default_text="a private etcd for a single node",
        common=True,
        doc="etcd, one address or several. If none answers, a node that is named starts one there; three or five "
        "named nodes form a cluster.",
    ),
    torchrun(
        "--rdzv-id",
        group=MEETING,
        metavar="NAME",
        default_text="random for one node, else $SLURM_JOB_ID",
        common=True,
        doc="Run id: the job's name. Nodes with the same id belong together.",
    ),
    torchrun("--standalone", group=MEETING, common=True, doc="One node with a private etcd."),
    torchrun(
        "--rdzv-backend",
        group=MEETING,
        metavar="NAME",
        parse=values.choice("etcd", "etcd-v2", "c10d", "static"),
        default="etcd",
        doc="Taken for torchrun's sake: etcd, etcd-v2, c10d, static. Nodes meet in etcd by every name.",
    ),
    torchrun(
        "--rdzv-conf",
        group=MEETING,
        metavar="K=V[,...]",
        parse=values.pairs,
        default={},
        default_text="none",
        doc="Time-outs in torchrun's notation; its keys are listed in the reference.",
    ),
    torchrun(
        "--master-addr",
        group=MEETING,
        metavar="HOST",
        doc="With several nodes and without --rdzv-endpoint: the host of etcd.",
    ),
    torchrun(
        "--master-port",
        group=MEETING,
        metavar="PORT",
        parse=values.whole_number(1, values.MAX_PORT),
        default_text="2379",
        doc="The port beside --master-addr. The ranks' own MASTER_PORT is a free one, new in every round.",
    ),
    ours(
        "--join-timeout",
        group=MEETING,
        metavar="SECONDS",
        parse=values.seconds(1),
        default=DEFAULT_JOIN_TIMEOUT_S,
        doc="How long to wait for enough nodes.",
    ),
)

_PROGRAM = (
    torchrun(
        "--module",
        "-m",
        group=PROGRAM,
        common=True,
        doc="The script is the name of a module, as in `python -m`.",
    ),
    torchrun(
        "--no-python", group=PROGRAM, common=True, doc="The script is a program of its own, started as it is."
    ),
    torchrun("--role", group=PROGRAM, metavar="NAME", default="default", doc="The ranks' ROLE_NAME."),
    torchrun(
        "--numa-binding",
        environment=False,
        group=PROGRAM,
        metavar="node|socket",
        parse=values.choice("node", "socket", "exclusive", "core-complex"),
        doc="Each rank runs on the CPUs of its GPU's NUMA node, or of its socket. torchrun's exclusive and "
        "core-complex are refused.",
    ),
    torchrun(
        "--virtual-local-rank",
        group=PROGRAM,
        doc="LOCAL_RANK is 0 for all, and CUDA_VISIBLE_DEVICES leaves each rank its own GPU.",
    ),
)

_FAILURE = (
    torchrun(
        "--max-restarts",
        group=FAILURE,
        metavar="N",
        parse=values.whole_number(0),
        default=0,
        common=True,
        doc="How often the ranks may be started again after a failure, over the whole job.",
    ),
    Option(
        name="workers_stop_timeout",
        spellings=(*both("--workers-stop-timeout"), *both("--shutdown-timeout")),
        environment=(
            "NVRX_WORKERS_STOP_TIMEOUT",
            "PET_WORKERS_STOP_TIMEOUT",
            "PET_SHUTDOWN_TIMEOUT",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
        ),
        group=FAILURE,
        metavar="SECONDS",
        parse=values.seconds(),
        default=15.0,
        default_text="15, or what $NVRX_TERMINATION_GRACE_S leaves",
        common=True,
        doc="Time between SIGTERM and SIGKILL when ranks are stopped.",
    ),
    ours(
        "--time-limit-margin",
        group=FAILURE,
        metavar="SECONDS|off",
        parse=values.seconds_or_off(1),
        default=DEFAULT_LIMIT_MARGIN_S,
        doc="How long before Slurm's time limit all ranks stop at one step, where they ask should_stop.",
    ),
    torchrun(
        "--signals-to-handle",
        group=FAILURE,
        metavar="NAMES",
        parse=signal_numbers,
        default=STOPPING,
        default_text=",".join(one.name for one in STOPPING),
        doc="Signals that the agent passes on to the ranks while it lives on, beside SIGUSR1 and SIGUSR2. "
        "SIGTERM, SIGINT, SIGHUP and SIGQUIT stop the job, named or not.",
    ),
    ours(
        "--startup-grace",
        group=FAILURE,
        metavar="SECONDS",
        parse=values.seconds(),
        default=30.0,
        doc="A rank that lives this long counts as ready; failing before is a failure to start.",
    ),
    ours(
        "--early-exit-limit",
        group=FAILURE,
        metavar="SECONDS|off",
        parse=values.seconds_or_off(0.1),
        default=None,
        default_text="off",
        doc="How long ranks of a node may go on after one of them has exited with 0; then the round has failed. "
        "That one has left is told in any case.",
    ),
    ours(
        "--takeover",
        group=FAILURE,
        in_file=False,  # said for one start, by who has looked
        doc="Begin at once where the job's last attempt left no verdict: you know that its ranks are dead.",
    ),
    ours(
        "--hang-timeout",
        group=FAILURE,
        metavar="SECONDS|off",
        parse=values.seconds_or_off(1),
        default=DEFAULT_HANG_TIMEOUT_S,
        common=True,
        doc="A rank without any progress for this long is hung. Shorter limits are learned from what it reports.",
    ),
    ours(
        "--hang-startup-timeout",
        group=FAILURE,
        metavar="SECONDS",
        parse=values.seconds(1),
        default_text="twice --hang-timeout",
        doc="A rank without a report for this long after its start is hung, as is one that stands still at its end.",
    ),
    ours(
        "--section-limits",
        group=FAILURE,
        metavar="NAME=SECONDS[,...]",
        parse=values.section_limits,
        default={},
        default_text="none",
        doc="How long sections of these names may take where the script gives no limit, instead of --hang-timeout.",
    ),
    ours(
        "--hang-action",
        group=FAILURE,
        metavar="restart|kill-suspects|report",
        parse=values.choice("restart", "kill-suspects", "report"),
        default="restart",
        doc="What a hang leads to. Suspects report nothing and stand still, or work on long after their end.",
    ),
    ours(
        "--warm-workers",
        group=FAILURE,
        metavar="auto|off|N",
        parse=values.warm_workers,
        default="auto",
        doc="Idle processes that wait to become the ranks of a restart; auto: one per rank, where it is safe.",
    ),
    ours(
        "--warm-imports",
        group=FAILURE,
        metavar="MODULE[,...]",
        parse=values.modules,
        default=("torch",),
        default_text="torch",
        doc="What warm workers import beforehand.",
    ),
    ours(
        "--lease-ttl",
        group=FAILURE,
        metavar="SECONDS",
        parse=values.whole_number(MIN_LEASE_TTL_S, unit=" s"),
        default=6,
        doc="A node that etcd does not hear from for this long is lost. Equal on all nodes.",
    ),
    ours(
        "--etcd-outage-limit",
        group=FAILURE,
        metavar="SECONDS",
        parse=values.seconds(),
        default=120.0,
        default_text="120",
        doc="How long ranks run on while no node of the job reaches etcd; 0: until the lease ends. Equal on all nodes.",
    ),
)

_ELASTIC = (
    ours(
        "--spares",
        group=SIZE,
        metavar="N",
        parse=values.whole_number(0),
        default=0,
        doc="Nodes that are to wait, ready, beyond MAX. All beyond MAX wait anyway; fewer than N are told of.",
    ),
    ours(
        "--grow",
        group=SIZE,
        metavar="now|at-fault|when-asked",
        parse=values.choice("now", "at-fault", "when-asked"),
        default="now",
        doc="When nodes that wait are taken in while fewer than MAX run: soon, with the next restart, or when a "
        "person (`grow`) or a rank (`allow_grow`) says so.",
    ),
    ours(
        "--grow-pause",
        group=SIZE,
        metavar="SECONDS",
        parse=values.seconds(),
        default=30.0,
        doc="How long a round runs at least before it ends for growth.",
    ),
)

_LIMITS = (
    ours(
        "--restart-limit",
        group=FAILURE,
        metavar="N",
        parse=values.whole_number(0),
        default=0,
        default_text="none",
        doc="Restarts within --restart-window; one more ends the job.",
    ),
    ours(
        "--restart-window",
        group=FAILURE,
        metavar="SECONDS",
        parse=values.seconds(1),
        default=3600.0,
        doc="The window of --restart-limit and --node-loss-limit, in seconds of training.",
    ),
    ours(
        "--no-progress-limit",
        group=FAILURE,
        metavar="N",
        parse=values.whole_number(0),
        default=0,
        default_text="none",
        doc="Rounds in a row that may fail without coming beyond the best step before, then the job ends.",
    ),
    ours(
        "--progress-file",
        group=FAILURE,
        metavar="FILE",
        doc="File that the script writes whenever it gets on: progress for --no-progress-limit, beside steps.",
    ),
    ours(
        "--culprit-limit",
        group=FAILURE,
        metavar="N",
        parse=values.whole_number(0),
        default=2,
        doc="A node to blame for so many of the last 10 rounds gives its seat to a spare; 0 for never.",
    ),
    ours(
        "--node-loss-limit",
        group=FAILURE,
        metavar="N",
        parse=values.whole_number(0),
        default=100,
        doc="Losses of nodes within --restart-window; one more ends the job with exit code 75.",
    ),
    ours(
        "--requeue-command",
        group=FAILURE,
        metavar="COMMAND",
        doc="Run once in an attempt, by one agent, after a preemption, a time limit, or with exit code 75: such as "
        "'scontrol requeue {job}'. {job} is $SLURM_JOB_ID; {run_id} and {attempt} are known too.",
    ),
)

_OUTPUT = (
    torchrun(
        "--log-dir",
        group=OUTPUT,
        metavar="DIR",
        default="nvrx-logs",
        common=True,
        doc="Every rank's output and the summary are written below DIR/<run id>.",
    ),
    torchrun(
        "--redirects",
        "-r",
        group=OUTPUT,
        metavar="STREAMS",
        parse=streams,
        default=NONE,
        doc="Streams that are not shown, only written to --log-dir as all are: 1 stdout, 2 stderr, 3 both, "
        "or by local rank such as 0:1,1:3.",
    ),
    torchrun(
        "--tee",
        "-t",
        group=OUTPUT,
        metavar="STREAMS",
        parse=streams,
        default=NONE,
        doc="Streams that are shown although --redirects names them.",
    ),
    ours(
        "--pty",
        group=OUTPUT,
        metavar="auto|on|off",
        parse=values.choice("auto", "on", "off"),
        default="auto",
        doc="Whether ranks write to a terminal, for colours and progress bars. auto: the only rank of a job that "
        "is started on one.",
    ),
    torchrun(
        "--local-ranks-filter",
        group=OUTPUT,
        metavar="RANKS",
        parse=values.local_ranks,
        default=None,
        default_text="all",
        doc="Local ranks whose output is shown, such as 0,1.",
    ),
    torchrun(
        "--duplicate-stdout-filters",
        group=OUTPUT,
        metavar="WORDS",
        parse=values.words,
        default=(),
        default_text="none",
        doc="Lines of stdout with one of these words go to filtered_stdout.log of the round too, with their rank.",
    ),
    torchrun(
        "--duplicate-stderr-filters",
        group=OUTPUT,
        metavar="WORDS",
        parse=values.words,
        default=(),
        default_text="none",
        doc="The same for stderr and filtered_stderr.log.",
    ),
)

_TELEMETRY = (
    ours(
        "--otlp-endpoint",
        group=TELEMETRY,
        metavar="URL",
        default_text="$OTEL_EXPORTER_OTLP_ENDPOINT, else nothing is sent",
        doc="Where traces and metrics are sent: an OpenTelemetry collector or Jaeger, such as http://collector:4318.",
    ),
    ours(
        "--metrics-port",
        group=TELEMETRY,
        metavar="PORT",
        parse=values.whole_number(1, values.MAX_PORT),
        default_text="none",
        doc="Port of this node at which Prometheus finds the metrics (/metrics).",
    ),
)

_NODE = (
    ours(
        "--node-id",
        group=NODE,
        metavar="NAME",
        default_text="the host name",
        common=True,
        doc="This node's name.",
    ),
    torchrun(
        "--node-rank",
        group=NODE,
        metavar="N",
        parse=values.whole_number(0),
        default_text="$SLURM_NODEID, else order of arrival",
        doc="Wished place among the nodes. Nodes that stay keep their ranks after a restart.",
    ),
    torchrun(
        "--local-addr",
        group=NODE,
        metavar="ADDRESS",
        default_text="the address etcd is reached from",
        doc="Address at which the other nodes reach this one.",
    ),
)

_INTERFACE = ours(
    "--interface",
    group=NODE,
    metavar="NAME",
    doc="Network interface whose address is this node's; gloo and NCCL are told to use it, unless "
    "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME say otherwise.",
)

_ETCD = (
    ours(
        "--etcd-embedded",
        group=ETCD,
        metavar="auto|off",
        parse=values.choice("auto", "off"),
        default="auto",
        doc="Whether nodes that --rdzv-endpoint names may start etcd, or members of a cluster, when none answers.",
    ),
    ours("--etcd-cacert", group=ETCD, metavar="FILE", doc="Authority that signed etcd's certificate (PEM)."),
    ours("--etcd-cert", group=ETCD, metavar="FILE", doc="Certificate shown to etcd (PEM)."),
    ours("--etcd-key", group=ETCD, metavar="FILE", doc="Key of that certificate (PEM)."),
    ours(
        "--etcd-user",
        group=ETCD,
        metavar="NAME",
        doc="User; the password comes from $NVRX_ETCD_PASSWORD or a file.",
    ),
    ours("--etcd-password-file", group=ETCD, metavar="FILE", doc="File whose first line is the password."),
)

_FILE = (
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

_TORCHRUN = (
    torchrun(
        "--monitor-interval",
        group=TORCHRUN,
        metavar="SECONDS",
        parse=values.seconds(),
        status=Inert("nothing is polled, the end of a rank is seen at once"),
        doc="Interval of looking at the ranks.",
    ),
    torchrun(
        "--start-method",
        group=TORCHRUN,
        metavar="NAME",
        parse=values.choice("spawn", "fork", "forkserver"),
        status=Inert(
            "every rank is a program of its own; multiprocessing inside the script is left as it is"
        ),
        doc="How ranks are created.",
    ),
    torchrun(
        "--run-path",
        group=TORCHRUN,
        status=Inert("a rank's interpreter runs the script as __main__ either way"),
        doc="Run the script by runpy.",
    ),
    torchrun(
        "--event-log-handler",
        group=TORCHRUN,
        metavar="NAME",
        status=Inert("what happens to the job is recorded in etcd, not through torch's handlers"),
        doc="Handler of torch elastic's events.",
    ),
    torchrun(
        "--logs-specs",
        environment=False,
        group=TORCHRUN,
        metavar="NAME",
        status=Refused(
            "a class of torch elastic cannot take over the ranks' output here",
            "leave it out; the output of every rank is kept in --log-dir",
        ),
        doc="Entry point that handles logs.",
    ),
)

_HELP = (
    Option("help", ("--help", "-h"), HELP, "Show the common options.", common=True, in_file=False),
    Option("help_all", both("--help-all"), HELP, "Show all options.", common=True, in_file=False),
    Option("version", ("--version",), HELP, "Show the version.", common=True, in_file=False),
)

OPTIONS: Final[tuple[Option, ...]] = (
    *_SIZE,
    *_ELASTIC,
    *_MEETING,
    *_PROGRAM,
    *_FAILURE,
    *_LIMITS,
    *_OUTPUT,
    *_TELEMETRY,
    *_NODE,
    _INTERFACE,
    *_ETCD,
    *_FILE,
    *_TORCHRUN,
    *_HELP,
)
