"""Names of NVRx telemetry: groups, spans, attributes, metrics. Importing this module imports nothing.

The first five constants are the documented interface: a framework that drives NVRx imports them for its own spans.
Groups are tags, no prefixes of names: `nv.nvrx.ckpt.save.schedule` is in the group `nv.nvrx.ckpt`.
"""

from __future__ import annotations

SPAN_GROUP_STARTUP = "nv.nvrx.ftl.python"
"""Process startup and import spans."""

SPAN_GROUP_FT = "nv.nvrx.ftl"
"""Fault-tolerance operation spans."""

SPAN_GROUP_CKPT = "nv.nvrx.ckpt"
"""Checkpoint scheduling, worker request, and finalization spans."""

SPAN_GROUP_CKPT_PHASES = "nv.nvrx.ckpt.save"
"""Checkpoint stage and completion synchronization spans."""

CKPT_CALL_IDX = "nv.nvrx.ckpt.call_idx"
"""Attribute key for the queue-local index shared by schedule, request, and finalize spans."""

# Spans of the agent, as documented --------------------------------------------------------------------

STARTUP = "nv.nvrx.ftl.python.startup"
"""From the creation of the agent's process to its first import."""
IMPORTS = "nv.nvrx.ftl.python.imports"
"""The agent's imports."""
CYCLE_START = "nv.nvrx.ftl.cycle_start"
"""Anchor without length: this node sees a round; parent of all that the node does in it."""
CYCLE = "nv.nvrx.ftl.cycle"
"""Summary: a round as this node saw it, from its opening to the next one's."""
AWAIT_ROUND = "nv.nvrx.ftl.await_round"
"""This node is ready and waits for a round to be opened."""
RENDEZVOUS = "nv.nvrx.ftl.rendezvous"
"""From the opening of a round until its world is sealed."""
HEALTH_CHECK = "nv.nvrx.ftl.health_check"
"""What has to be in order before this node joins: a held port, a lease with time ahead, its fitness."""
WORKER_LAUNCH = "nv.nvrx.ftl.worker_launch"
"""From the order to start this node's ranks until all their processes exist."""
RUN_START = "nv.nvrx.ftl.run_start"
"""Anchor without length: the ranks run; parent of what ranks say of themselves."""
RUN = "nv.nvrx.ftl.run"
"""Summary: how long the ranks ran."""
FAULT = "nv.nvrx.ftl.fault"
"""Mark without length: this node saw a fault."""
TEARDOWN = "nv.nvrx.ftl.teardown"
"""From the order to stop this node's ranks until none lives and all output is read."""
ATTRIBUTION = "nv.nvrx.ftl.attribution"
"""The question who is to blame, until its answer."""

# Spans that we add ------------------------------------------------------------------------------------

ROUND_START = "nv.nvrx.ftl.round_start"
"""Root of a round's trace over all nodes, without length, by the agent that opened the round."""
ROUND = "nv.nvrx.ftl.round"
"""Summary of a round over all nodes, by the agent that led when it ended."""
DETECTION = "nv.nvrx.ftl.detection"
"""From a rank's end, or the last sign of life of a hung one, until this node knew of the fault."""
NOTIFICATION = "nv.nvrx.ftl.notification"
"""From the interrupt that another node wrote until this node saw it."""
EVIDENCE = "nv.nvrx.ftl.evidence"
"""What hung ranks do is noted before they are killed."""
REPORT = "nv.nvrx.ftl.report"
"""From the end of this node's ranks until its report is in etcd."""
DECISION = "nv.nvrx.ftl.decision"
"""From the interrupt until root and next level are decided and written, at the agent that leads."""
RUN_SLICE = "nv.nvrx.ftl.run_slice"
"""A part of a run that goes on: long runs are visible while they last."""
RESTART = "nv.nvrx.ftl.restart"
"""From a fault until this node's ranks train again, in the trace of the round that followed."""
RESTART_TOLD = "nv.nvrx.ftl.restart.told"
"""Step of a restart, until this node knew of the fault. The steps are those of `nvrx_async.job.waterfall`."""
RESTART_STOPPED = "nv.nvrx.ftl.restart.stopped"
"""Step of a restart, until its ranks were told to stop; evidence of a hang is taken before."""
RESTART_REAPED = "nv.nvrx.ftl.restart.reaped"
"""Step of a restart, until no rank lived here and all output was read."""
RESTART_REPORTED = "nv.nvrx.ftl.restart.reported"
"""Step of a restart, until the report was in etcd, and the join of the next round with it."""
RESTART_ENDED = "nv.nvrx.ftl.restart.ended"
"""Step of a restart, until the verdict was written and the next round open."""
RESTART_SEALED = "nv.nvrx.ftl.restart.sealed"
"""Step of a restart, until the next world was sealed and read here."""
RESTART_RELEASED = "nv.nvrx.ftl.restart.released"
"""Step of a restart, until the ranks were ordered to start."""
RESTART_STARTED = "nv.nvrx.ftl.restart.started"
"""Step of a restart, until all processes of this node existed."""
RESTART_CONNECTED = "nv.nvrx.ftl.restart.connected"
"""Step of a restart, until the last rank said hello: interpreter and imports."""
RESTART_FIRST_STEP = "nv.nvrx.ftl.restart.first_step"
"""Step of a restart, until the last rank began its first step: the training sets itself up."""
RANK_STARTUP = "nv.nvrx.ftl.rank.startup"
"""In a rank: from its start until it says hello; interpreter and imports."""
RANK_SETUP = "nv.nvrx.ftl.rank.setup"
"""In a rank: from its hello until its first step begins; process groups, model, data."""
RANK_FIRST_STEP = "nv.nvrx.ftl.rank.first_step"
"""In a rank: its first step."""

# Spans of checkpoints ---------------------------------------------------------------------------------

CKPT_SCHEDULE = "nv.nvrx.ckpt.save.schedule"
"""A save is asked for, until training goes on."""
CKPT_REQUEST = "nv.nvrx.ckpt.save.request"
"""One request in the process that writes."""
CKPT_FINALIZE = "nv.nvrx.ckpt.save.finalize"
"""What a finished save leads to in the trainer."""
CKPT_STAGE_WAIT = "nv.nvrx.ckpt.save.stage_wait"
"""The trainer waits for the writer to have taken the data."""
CKPT_SHM_DRAIN = "nv.nvrx.ckpt.save.shm_drain"
"""The trainer waits for an earlier save before it uses shared memory again."""
CKPT_STAGE = "nv.nvrx.ckpt.save.stage"
"""Data are copied from the device."""
CKPT_PRELOAD = "nv.nvrx.ckpt.save.preload"
"""The writer takes the data over."""
CKPT_WRITE = "nv.nvrx.ckpt.save.write"
"""The writer writes."""
CKPT_COMPLETION_SYNC = "nv.nvrx.ckpt.save.completion_sync"
"""All ranks agree that a save is complete."""

GROUP_OF_SPAN = {
    STARTUP: SPAN_GROUP_STARTUP,
    IMPORTS: SPAN_GROUP_STARTUP,
    CKPT_SCHEDULE: SPAN_GROUP_CKPT,
    CKPT_REQUEST: SPAN_GROUP_CKPT,
    CKPT_FINALIZE: SPAN_GROUP_CKPT,
    CKPT_STAGE_WAIT: SPAN_GROUP_CKPT_PHASES,
    CKPT_SHM_DRAIN: SPAN_GROUP_CKPT_PHASES,
    CKPT_STAGE: SPAN_GROUP_CKPT_PHASES,
    CKPT_PRELOAD: SPAN_GROUP_CKPT_PHASES,
    CKPT_WRITE: SPAN_GROUP_CKPT_PHASES,
    CKPT_COMPLETION_SYNC: SPAN_GROUP_CKPT_PHASES,
    **dict.fromkeys(
        (
            CYCLE_START,
            CYCLE,
            AWAIT_ROUND,
            RENDEZVOUS,
            HEALTH_CHECK,
            WORKER_LAUNCH,
            RUN_START,
            RUN,
            FAULT,
            TEARDOWN,
            ATTRIBUTION,
            ROUND_START,
            ROUND,
            DETECTION,
            NOTIFICATION,
            EVIDENCE,
            REPORT,
            DECISION,
            RUN_SLICE,
            RESTART,
            RESTART_TOLD,
            RESTART_STOPPED,
            RESTART_REAPED,
            RESTART_REPORTED,
            RESTART_ENDED,
            RESTART_SEALED,
            RESTART_RELEASED,
            RESTART_STARTED,
            RESTART_CONNECTED,
            RESTART_FIRST_STEP,
            RANK_STARTUP,
            RANK_SETUP,
            RANK_FIRST_STEP,
        ),
        SPAN_GROUP_FT,
    ),
}
"""The group of each span; a span that is not named here is in no group, and always on."""

PRESETS = {
    "default": (SPAN_GROUP_STARTUP, SPAN_GROUP_FT, SPAN_GROUP_CKPT),
    "per_step": (SPAN_GROUP_STARTUP, SPAN_GROUP_FT, SPAN_GROUP_CKPT, SPAN_GROUP_CKPT_PHASES),
    "profiling": (SPAN_GROUP_STARTUP, SPAN_GROUP_FT, SPAN_GROUP_CKPT, SPAN_GROUP_CKPT_PHASES),
    "all": (SPAN_GROUP_STARTUP, SPAN_GROUP_FT, SPAN_GROUP_CKPT, SPAN_GROUP_CKPT_PHASES),
}
"""Words for `NVRX_SPAN_GROUPS`, and the groups they stand for."""

# Attributes, as documented ----------------------------------------------------------------------------

CYCLE_INDEX = "nv.nvrx.cycle.index"
"""int, on the resource of ranks: the round they were started in."""
CYCLE_OUTCOME = "nv.nvrx.cycle.outcome"
"""str, on cycle: completed, failed, peer_restart, excluded, standby or terminated."""
CYCLE_FAILURES = "nv.nvrx.ftl.cycle.failures"
"""int, on fault and a failed cycle: ranks of this node that failed."""
CYCLE_STATE = "nv.nvrx.ftl.cycle.state"
"""str, on a failed cycle: FAILED or UNHEALTHY."""
RDZV_ROUND = "nv.nvrx.ftl.rdzv.round"
"""int: number of the round."""
RDZV_RUN_ID = "nv.nvrx.ftl.rdzv.run_id"
"""str, on a joined cycle: the job."""
PROFILING_CYCLE = "nv.nvrx.ftl.profiling.cycle"
"""int: the same number; the incumbent counts twice."""
NODE = "nv.nvrx.ftl.node"
"""str: this node's id."""
MEMBERSHIP = "nv.nvrx.ftl.membership"
"""str: active, unjoined (a cycle when it opens), standby or late_joiner."""
GROUP_RANK = "nv.nvrx.ftl.group.rank"
"""int: this node's place in the world."""
GROUP_WORLD_SIZE = "nv.nvrx.ftl.group.world_size"
"""int: nodes in the world."""
MAX_RESTARTS = "nv.nvrx.ftl.max_restarts"
"""int, on a joined cycle: restarts that the job may have."""
REMAINING_RESTARTS = "nv.nvrx.ftl.remaining_restarts"
"""int, on a joined cycle: restarts that are left."""
INFRA_RANK = "nv.nvrx.ftl.infra.rank"
"""int, on a joined cycle and on the resource of ranks: this node's number at its scheduler."""
NNODES_ACTIVE = "nv.dl.launch.nnodes.active"
"""int, on the resource of ranks: nodes that the job needs."""
NNODES_SPARE = "nv.dl.launch.nnodes.spare"
"""int, on the resource of ranks: nodes that it may have beyond these."""
DL_RANK = "nv.dl.rank"
"""int, on the resource of a rank: its number in the world."""
DL_ROLE = "nv.dl.role"
"""str, on the resource of a process that is no trainer, such as ckpt_worker."""

# Attributes that we add -------------------------------------------------------------------------------

ATTEMPT = "nv.nvrx.ftl.attempt"
"""int: attempt of the job."""
WORLD_SIZE = "nv.nvrx.ftl.world_size"
"""int: ranks in the world."""
FAULT_KIND = "nv.nvrx.ftl.fault.kind"
"""str, on fault, decision, round and restart: kind of the fault (`hang`, `signal`, …)."""
FAULT_SENTENCE = "nv.nvrx.ftl.fault.sentence"
"""str, on the same: what happened, in words."""
FAULT_RANK = "nv.nvrx.ftl.fault.rank"
"""int, on fault: the rank."""
FAULT_NODE = "nv.nvrx.ftl.fault.node"
"""str, on decision and restart: the node of the root."""
LEVEL = "nv.nvrx.ftl.restart.level"
"""str, on decision and round: how deep the next try cuts."""
REASON = "nv.nvrx.ftl.reason"
"""str: why, in words."""
LINK_KIND = "nv.nvrx.link"
"""str, on links: previous_round or fault."""
STEP = "nv.nvrx.ftl.step"
"""int, on run_slice: the highest step that a rank of this node reported."""
LOCAL_RANK = "nv.nvrx.ftl.local_rank"
"""int, on spans of ranks."""

# Metrics ----------------------------------------------------------------------------------------------

METRIC_RESTARTS = "nvrx.restarts"
"""Counter: rounds that ended in another try, by level and kind of fault; told by the agent that leads."""
METRIC_DETECTION = "nvrx.fault.detection.duration"
"""Histogram, s: from a rank's end, or the last sign of life of a hung one, until its node knew."""
METRIC_NOTIFICATION = "nvrx.fault.notification.duration"
"""Histogram, s: from the interrupt until another node saw it (clocks of two nodes)."""
METRIC_RECOVERY = "nvrx.restart.duration"
"""Histogram, s: from a fault until this node's ranks train again."""
METRIC_GOODPUT = "nvrx.goodput"
"""Gauge, 1: part of the time since this node registered in which its ranks trained."""
METRIC_BEAT_AGE = "nvrx.rank.beat.age"
"""Gauge, s: time since the last report of the rank of this node that reported longest ago."""
METRIC_RANKS = "nvrx.ranks"
"""Gauge: ranks of this node by state: starting, ready, hung."""
METRIC_ROUND = "nvrx.round"
"""Gauge: number of the round that this node is in."""
METRIC_LOG_SPOOLED = "nvrx.log.spooled"
"""Counter, By: output of ranks written to files."""
METRIC_LOG_DROPPED = "nvrx.log.dropped"
"""Counter, By: output of ranks that no disk took."""
METRIC_ETCD = "nvrx.etcd.request.duration"
"""Histogram, s: requests to etcd by operation (txn, list, keepalive) and success."""
METRIC_SPANS_DROPPED = "nvrx.telemetry.spans.dropped"
"""Counter: spans that could not be delivered."""

ATTR_LEVEL = "nvrx.restart.level"
"""Attribute of metrics: the level of a restart."""
ATTR_KIND = "nvrx.fault.kind"
"""Attribute of metrics: the kind of a fault."""
ATTR_STATE = "nvrx.rank.state"
"""Attribute of metrics: state of ranks."""
ATTR_OPERATION = "nvrx.etcd.operation"
"""Attribute of metrics: operation of etcd."""
ATTR_SUCCESS = "nvrx.etcd.success"
"""Attribute of metrics: whether etcd did what was asked."""
