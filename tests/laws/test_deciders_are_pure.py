"""Law 3: a decider is told the time and the facts; it looks nothing up and has no clock of its own."""

import pytest
from support.source import modules

IO_AND_ASYNC = {
    "asyncio",
    "anyio",
    "grpc",
    "os",
    "pathlib",
    "select",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
}
FORBIDDEN_MODULES = {"random", "secrets", "time", *IO_AND_ASYNC}
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "uuid.uuid1", "uuid.uuid4", "breakpoint"} | {
    f"{owner}.{call}"
    for owner in ("datetime", "datetime.datetime", "date", "datetime.date")
    for call in ("now", "utcnow", "today")
}

# The module `signal` is welcome for the names of signals only.
FORBIDDEN_CALLS |= {
    f"signal.{call}" for call in ("signal", "alarm", "setitimer", "raise_signal", "pidfd_send_signal")
}

ROOMS = {"nvrx_async.rounds", "nvrx_async.faults", "nvrx_async.hang"}
INTERPRETER = {
    "nvrx_async.rounds.interpreter",
    "nvrx_async.rounds.inbox",
    "nvrx_async.rounds.committer",
    "nvrx_async.hang.evidence",
    "nvrx_async.hang.flight_recorder",
    "nvrx_async.hang.store_contact",
}
RECORDS = {"nvrx_async.job.keys", "nvrx_async.job.codec", "nvrx_async.etcd.types"}
DECIDERS = [
    module
    for module in modules()
    if module.name in RECORDS
    or module.package == "nvrx_async.job.records"
    or (module.room in ROOMS and module.name not in INTERPRETER and "inject" not in module.name)
    if not (module.is_package and module.room == module.name)  # a room's front door may show its interpreter
]


@pytest.mark.parametrize("module", DECIDERS, ids=lambda module: module.name)
def test_a_decider_imports_no_clock_and_no_io(module):
    found = [module.at(node) for name, node in module.imports() if name.split(".")[0] in FORBIDDEN_MODULES]
    assert not found


@pytest.mark.parametrize("module", DECIDERS, ids=lambda module: module.name)
def test_a_decider_asks_nobody(module):
    found = [f"{module.at(call)} {name}()" for name, call in module.calls() if name in FORBIDDEN_CALLS]
    assert not found


def test_deciders_were_found():
    assert {"nvrx_async.rounds.mirror", "nvrx_async.job.records.rounds"} <= {
        module.name for module in DECIDERS
    }
