"""How a node is named to people."""

from __future__ import annotations


def where(node_id: str | None, host: str | None) -> str:
    """Its id, which no other node of the job has, with its host beside it where that is another: `b (host h1)`."""
    if not node_id:
        return host or "an unknown node"
    return node_id if not host or host == node_id else f"{node_id} (host {host})"
