"""Which cluster we talk to: its id, and the newest revision seen, are held against every answer."""

from __future__ import annotations

from typing import Any

from nvrx_async.etcd.errors import ForeignClusterError


class Identity:
    """Pinned with the first answer. An etcd restarted empty has our cluster id, but an older revision."""

    def __init__(self) -> None:
        self.cluster_id: int | None = None
        self.revision = 0

    def admit(self, header: Any, endpoint: object, *, at_least: int = 0) -> None:
        """Accept an answer's header. `at_least` is the revision known when a linearizable call was sent.

        Only linearizable answers may be held to it: others come from a member that may be behind.

        Raises:
            ForeignClusterError: another cluster, or one that has lost what it had acknowledged.
        """
        if self.cluster_id is None:
            self.cluster_id = header.cluster_id
        if header.cluster_id != self.cluster_id:
            raise ForeignClusterError(
                f"etcd at {endpoint} belongs to another cluster",
                evidence=(f"cluster id {header.cluster_id:x}, ours is {self.cluster_id:x}",),
                hint="all endpoints must be members of one cluster; with a new etcd, start the job again",
            )
        if header.revision < at_least:
            raise ForeignClusterError(
                f"etcd at {endpoint} has lost its data",
                evidence=(f"its revision is {header.revision}, it had acknowledged {at_least}",),
                hint="it was restarted empty or from an old snapshot; start the job again",
            )
        self.revision = max(self.revision, header.revision)
