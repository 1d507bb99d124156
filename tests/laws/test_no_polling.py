"""Law 5: nothing polls. Exits come by pidfd, peers by watch, deadlines by timers."""

import ast

from support.source import Module, modules

BLOCKING = {"time.sleep"}
SLEEPS = {"asyncio.sleep", "anyio.sleep"}

ETCD_IS_AWAY = "back-off between attempts: nothing announces that a server can be reached again"
ALLOWED = {
    "nvrx_async.etcd.calls._over_endpoints": ETCD_IS_AWAY,
    "nvrx_async.etcd.contact.first_answer": ETCD_IS_AWAY,
    "nvrx_async.etcd.election.lead": ETCD_IS_AWAY,
    "nvrx_async.etcd.feed._run": ETCD_IS_AWAY,
    "nvrx_async.etcd.member._answers": ETCD_IS_AWAY,
    "nvrx_async.etcd.member._ask_for_users": ETCD_IS_AWAY,
    "nvrx_async.etcd.member._keep_up": "back-off between starts of a member that ended",
    "nvrx_async.etcd.member._promoted": "etcd tells nobody when a learner has caught up; it refuses until then",
    "nvrx_async.job.patience.of": ETCD_IS_AWAY,
    "nvrx_async.job.reached._come": "back-off between attempts: nothing announces that an agent answers again",
    "nvrx_async.rounds.committer._relist": ETCD_IS_AWAY,
    "nvrx_launcher.lives._begin": ETCD_IS_AWAY,
    "nvrx_launcher.tenure.serve": ETCD_IS_AWAY,
}
"""`module.function` of a sleep in a loop that is no poll, with the reason. A timer for a moment that was decided is
no sleep: `anyio.sleep_until`."""


def sleeps_in_loops(module: Module):
    """Every asyncio or anyio sleep under a `while` or an endless `for`, by the function it is in."""
    calls = {call: name for name, call in module.calls() if name in SLEEPS and not is_zero(call)}
    for function in ast.walk(module.tree):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        loops = [node for node in ast.walk(function) if isinstance(node, ast.While)]
        for call in {node for loop in loops for node in ast.walk(loop) if node in calls}:
            yield f"{module.name}.{function.name}", call


def is_zero(call: ast.Call) -> bool:
    """`sleep(0)` lets others run and waits for nothing."""
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def test_no_thread_sleeps():
    found = [
        module.at(call)
        for module in modules()
        if "inject" not in module.name
        for name, call in module.calls()
        if name in BLOCKING
    ]
    assert not found, f"time.sleep outside fault injection: {found}"


def test_no_task_polls():
    found = {
        where: module.at(call)
        for module in modules()
        if "inject" not in module.name
        for where, call in sleeps_in_loops(module)
    }
    polling = {where: line for where, line in found.items() if where not in ALLOWED}
    assert not polling, f"sleep in a loop; wait for an event, or give a reason in ALLOWED: {polling}"
    here = {module.name for module in modules()}
    unused = {where for where in ALLOWED.keys() - found.keys() if where.rpartition(".")[0] in here}
    assert not unused, f"no longer in the code, remove from ALLOWED: {unused}"
