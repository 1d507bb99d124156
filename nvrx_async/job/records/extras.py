"""What stands in `extra` of several records under a name of its own: keys, and the moments of a round by node."""

from __future__ import annotations

from enum import Enum

LIMITS = "limits"
"""Key of `extra` of rounds, assignments and reports: what hang detection has learned, seconds by kind."""

MARKS = "marks"
"""Key of `extra` of joins, reports and dones: when what happened to that node's ranks, `<what>_utc` by `Mark`."""

OF_ROUND = "of_round"
"""Key of a verdict's `extra`: what the round it ends was (`opened_utc`, `running_utc`, `token`, `world_size`, …)."""

PROBES = "probes"
"""Key of the first shard's `extra` of a world: at which address each recorded agent answers questions, by node id."""

FIRST_PROBE = "first_probe"
"""Key of an assignment's `extra`: at which address the agent of rank 0 answers questions."""

IMPORTS = "imports"
"""Key of `extra` of rounds, assignments and reports: modules that ranks imported: file, variables changed before."""

REGISTERED = "registered"
"""Key of an assignment's `extra`: when its agent registered (`at_utc`), and as whose successor (`succeeds`)."""

STOP = "stop"
"""Key of a round's `extra`: how far an agreed stop has come, as in `Stop`."""

PROGRESS = "progress"
"""Key of a report's `extra`: how far its ranks came: `step`, the highest that one reported, and `file_s`, when the
file of `--progress-file` was last written; `finished`: none was told to stop before its last step."""

COMMANDS = "commands"
"""Key of a round's `extra`: the latest commands that were answered, by id, for the consoles of all agents."""


class Mark(Enum):
    """Moments of a round on one node. Of several ranks the last one counts; without the rank link some are unknown.

    In the order in which they come: ready to join; orders to start the ranks, processes there, hello said,
    start-up over, first step begun; a fault seen here, told of a fault (whosever), ranks told to stop, none
    of them left.
    """

    JOINED = "joined"
    RELEASED = "released"
    STARTED = "started"
    HELLO = "hello"
    READY = "ready"
    FIRST_STEP = "first_step"
    FAULT = "fault"
    TOLD = "told"
    STOPPING = "stopping"
    GONE = "gone"
    REPORTED = "reported"
