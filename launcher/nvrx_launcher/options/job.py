"""Options of the job as a whole: how many nodes, where they meet."""

from __future__ import annotations

from typing import Final

from nvrx_launcher import values
from nvrx_launcher.option import ours, torchrun
from nvrx_launcher.options.groups import MEETING, SIZE

DEFAULT_JOIN_TIMEOUT_S: Final = 600.0

DEFAULT_LAST_CALL_S: Final = 30.0

SIZE_ROWS: Final = (
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

ELASTIC_ROWS: Final = (
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

MEETING_ROWS: Final = (
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
        parse=values.host_name,
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
