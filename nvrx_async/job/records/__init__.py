"""Records of a job as etcd holds them: frozen, versioned, readable by a person (`etcdctl get --prefix`).

Times named `*_utc` are ISO 8601 in UTC; they are for people. No decision compares clocks of two machines.
`extra` holds fields of newer versions, kept when a record is written back.
"""

from nvrx_async.job.records.commands import Command, CommandPhase, Verb
from nvrx_async.job.records.extras import (
    COMMANDS,
    FIRST_PROBE,
    IMPORTS,
    LIMITS,
    MARKS,
    OF_ROUND,
    PROBES,
    PROGRESS,
    REGISTERED,
    STOP,
    Mark,
)
from nvrx_async.job.records.faults import EndedBy, FaultKind, PythonError, RankEnd
from nvrx_async.job.records.nodes import Exclusion, Node, Process, Struck
from nvrx_async.job.records.reports import Done, Fault, Interrupt, Join
from nvrx_async.job.records.rounds import (
    SEATS_PER_SHARD,
    Assignment,
    Ledger,
    Phase,
    Round,
    Seat,
    Spare,
    WorldShard,
)
from nvrx_async.job.records.spec import Current, Grow, Job, JobSpec, Policy
from nvrx_async.job.records.stops import Purpose, Stop, StopPhase, StopVote
from nvrx_async.job.records.verdicts import End, Ending, Level, Outcome, Root

__all__ = [
    "COMMANDS",
    "FIRST_PROBE",
    "IMPORTS",
    "LIMITS",
    "MARKS",
    "OF_ROUND",
    "PROBES",
    "PROGRESS",
    "REGISTERED",
    "SEATS_PER_SHARD",
    "STOP",
    "Assignment",
    "Command",
    "CommandPhase",
    "Current",
    "Done",
    "End",
    "EndedBy",
    "Ending",
    "Exclusion",
    "Fault",
    "FaultKind",
    "Grow",
    "Interrupt",
    "Job",
    "JobSpec",
    "Join",
    "Ledger",
    "Level",
    "Mark",
    "Node",
    "Outcome",
    "Phase",
    "Policy",
    "Process",
    "Purpose",
    "PythonError",
    "RankEnd",
    "Root",
    "Round",
    "Seat",
    "Spare",
    "Stop",
    "StopPhase",
    "StopVote",
    "Struck",
    "Verb",
    "WorldShard",
]
