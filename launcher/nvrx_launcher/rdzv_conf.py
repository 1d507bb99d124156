"""The keys of `--rdzv-conf`, with the same three states as options have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nvrx_launcher.option import WORKS, Inert, Refused, Status
from nvrx_launcher.values import seconds

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class ConfKey:
    """One key; `option` names the option whose value it gives, `last_call_s` has none of its own."""

    name: str
    doc: str
    status: Status = WORKS
    option: str = ""
    parse: Callable[[str], Any] = str


_BEATS = Inert("an etcd lease shows that a node lives, --lease-ttl says for how long")
_CLIENT = Inert("the etcd client has deadlines of its own and tries all endpoints")
_SECURE = "TLS is set by options"
_STORE = Inert("no store of torch is used to bring nodes together; ranks get a new one each round")

CONF_KEYS: Final[tuple[ConfKey, ...]] = (
    ConfKey("join_timeout", "Seconds to wait for enough nodes.", option="join_timeout", parse=seconds(1)),
    ConfKey("timeout", "Older name of join_timeout.", option="join_timeout", parse=seconds(1)),
    ConfKey(
        "last_call_timeout",
        "Seconds to wait for more nodes at the start, once the minimum is there.",
        option="last_call",
        parse=seconds(0),
    ),
    ConfKey(
        "close_timeout", "Time to close the rendezvous.", Inert("a job ends by one key in etcd, nobody waits")
    ),
    ConfKey("read_timeout", "Time-out of store operations.", _CLIENT),
    ConfKey("heartbeat_timeout", "Time-out of a heartbeat.", _BEATS),
    ConfKey("keep_alive_interval", "Interval of heartbeats.", _BEATS),
    ConfKey("keep_alive_max_attempt", "Heartbeats that may be missed.", _BEATS),
    ConfKey(
        "is_host",
        "Whether this node hosts the store.",
        Inert("the node that an endpoint names starts etcd there if none answers"),
    ),
    ConfKey("store_type", "Kind of the torch store.", _STORE),
    ConfKey("use_libuv", "Implementation of the torch store.", _STORE),
    ConfKey("store_connect_wait_seconds", "Time to reach the store.", _STORE),
    ConfKey(
        "upscaling_enabled",
        "Whether nodes that wait are taken in at once.",
        Refused("when nodes are taken in has an option", "--grow now|at-fault|when-asked"),
    ),
    ConfKey(
        "replacement_group_size",
        "Nodes that are replaced together.",
        Refused("a node is replaced alone", "leave it out; --spares N keeps nodes ready"),
    ),
    ConfKey(
        "segment",
        "Nodes of one NVLink domain that stay together.",
        Refused("nodes are not placed by NVLink domain", "leave it out, or order nodes with --node-rank"),
    ),
    ConfKey(
        "segment_check_interval",
        "Interval of looking for complete segments.",
        Inert("nothing is polled"),
    ),
    ConfKey("rank", "Rank of the node.", Refused("the order of nodes has an option", "--node-rank N")),
    ConfKey("etcd_prefix", "Prefix of keys.", Inert("keys lie under /nvrx/v1/<run id>/")),
    ConfKey("protocol", "http or https.", Refused(_SECURE, "write https:// in --rdzv-endpoint")),
    ConfKey("cert", "Client certificate.", Refused(_SECURE, "--etcd-cert FILE")),
    ConfKey("ssl_cert", "Client certificate.", Refused(_SECURE, "--etcd-cert FILE")),
    ConfKey("key", "Key of the client certificate.", Refused(_SECURE, "--etcd-key FILE")),
    ConfKey("ssl_cert_key", "Key of the client certificate.", Refused(_SECURE, "--etcd-key FILE")),
    ConfKey(
        "cacert", "Authority that signed the server's certificate.", Refused(_SECURE, "--etcd-cacert FILE")
    ),
    ConfKey(
        "ca_cert", "Authority that signed the server's certificate.", Refused(_SECURE, "--etcd-cacert FILE")
    ),
)
