"""Who an agent is in one life of it: one lease, one incarnation."""

from __future__ import annotations

from dataclasses import dataclass

from nvrx_async.job.records import Node, Process


@dataclass(frozen=True, slots=True)
class Earlier:
    """An attempt that left no verdict, and that etcd does not know.

    `wait_s`: its ranks are surely dead so long after now. `path`: the file that tells of it.
    """

    attempt: int
    wait_s: float
    path: str


@dataclass(frozen=True, slots=True)
class Identity:
    """All that this agent knows of itself before it has read a key.

    `node_id` is a wish: without `fixed_id` a second agent on the host takes `<node_id>-2` and so on.
    `launch_id` names one launch by a scheduler (None when nothing tells); `takeover` is the person's word
    that an attempt which left no verdict is dead. `attempt` is the one that an earlier life of this process was
    in: the process belongs to it and to no other. `probe` is where it answers questions, `host:port`.
    `log_dir`: the folder on this node that the job's output is written below. `first_attempt`: the number to
    begin with where etcd knows of no attempt. `earlier`: what has to be waited for in that case.
    """

    run_id: str
    node_id: str
    fixed_id: bool
    incarnation: str
    host: str
    address: str
    slots: int
    process: Process
    lease: int
    launch_id: str | None = None
    order: int | None = None
    takeover: bool = False
    attempt: int | None = None
    probe: str = ""
    log_dir: str = ""
    first_attempt: int = 0
    earlier: Earlier | None = None

    def node(self, node_id: str, registered_utc: str, succeeds: str | None) -> Node:
        """This agent's registration under the id it took."""
        return Node(
            node_id=node_id,
            incarnation=self.incarnation,
            host=self.host,
            address=self.address,
            slots=self.slots,
            process=self.process,
            registered_utc=registered_utc,
            succeeds=succeeds,
            order=self.order,
            probe=self.probe,
            extra={"log_dir": self.log_dir} if self.log_dir else {},
        )
