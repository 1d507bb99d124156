"""Options of this node, and of its way to etcd."""

from __future__ import annotations

from typing import Final

from nvrx_launcher import values
from nvrx_launcher.option import ours, torchrun
from nvrx_launcher.options.groups import ETCD, NODE

NODE_ROWS: Final = (
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
    ours(
        "--interface",
        group=NODE,
        metavar="NAME",
        doc="Network interface whose address is this node's; gloo and NCCL are told to use it, unless "
        "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME say otherwise.",
    ),
)

ETCD_ROWS: Final = (
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
