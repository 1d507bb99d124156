"""The agent: one per node. Services in one task group, lives one after another, ended in reverse order."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import anyio
from anyio.abc import TaskStatus

from nvrx_async.etcd import EtcdClient, EtcdError, Feed, Session
from nvrx_async.etcd.types import Listing
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.effects import Finish, Finished, Notice, Registered
from nvrx_async.rounds.events import LeaseLost, LeaveRequested, Renewed
from nvrx_async.rounds.fencing import good_until
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.interpreter import Interpreter
from nvrx_async.rounds.member import Member
from nvrx_launcher.clock import boottime_s, now
from nvrx_launcher.config import LaunchConfig
from nvrx_launcher.console import Console
from nvrx_launcher.errors import InfrastructureError
from nvrx_launcher.exit_codes import ExitCode
from nvrx_launcher.history import History
from nvrx_launcher.output import Output
from nvrx_launcher.palette import palette_for
from nvrx_launcher.ranks import NodeRanks
from nvrx_launcher.reach import Reached, reach
from nvrx_launcher.screen import Screen
from nvrx_launcher.store import EtcdStore
from nvrx_launcher.story import Story
from nvrx_launcher.sweep import this_process
from nvrx_launcher.workers import LogPaths

SERVER_LINGER_S = 10.0
"""How long an etcd started here waits for the job's other agents to read the outcome and leave."""
RETURN_LIMIT_S = 25.0
"""How long, beyond the outage limit, a new life is tried while etcd does not answer."""
RETRY_S = 0.5


def run(config: LaunchConfig) -> int:
    """Run this node's agent to its end; returns the exit code.

    Raises:
        EtcdError: etcd cannot be reached or started.
        UsageError: this agent must not enter the job.
    """
    return anyio.run(_main, config)


async def _main(config: LaunchConfig) -> int:
    with Screen() as screen:
        output = Output(screen, sys.stdout.buffer, sys.stderr.buffer, boottime_s)
        agent = _Agent(config, screen, output)
        return await agent.run()


@dataclass(slots=True)
class _Life:
    """The machines' ear, and what is known of this life."""

    interpreter: Interpreter
    attempt: int = 0


class _Agent:
    def __init__(self, config: LaunchConfig, screen: Screen, output: Output) -> None:
        self._config = config
        self._screen = screen
        story = Story(config.run_id, config.job.max_restarts, str(config.logs.folder), boottime_s())
        self._console = Console(
            story,
            stream=sys.stderr,
            clock=now,
            palette=palette_for(terminal=sys.stderr.isatty(), environment=os.environ),
            summary_file=config.logs.summary,
            before_line=output.break_line,
        )
        self._history = History(config.logs.folder / "history.jsonl")
        self._job_tag = f"{config.run_id}/{secrets.token_hex(8)}"
        self._life: _Life | None = None
        self._leave: LeaveRequested | None = None
        self._attempt = 0
        self._ranks = NodeRanks(
            launch=config.workers,
            max_restarts=config.job.max_restarts,
            run_id=config.run_id,
            job_tag=self._job_tag,
            paths=lambda: LogPaths(config.logs.folder, self._attempt),
            attempt=lambda: self._attempt,
            base_env=os.environ,
            output=output,
            warn=self._warn,
        )

    async def run(self) -> int:
        """Reach etcd, keep a keeper, live. Everything is ended in reverse order."""
        for line in self._config.notices:
            self._say(line)
        async with anyio.create_task_group() as signals:
            await signals.start(self._serve_signals, signals)
            finish = await self._reach_and_live()
            signals.cancel_scope.cancel()
        if signals.cancel_scope.cancelled_caught and self._leave is not None:
            return 128 + self._leave.signal
        return finish.exit_code

    async def _reach_and_live(self) -> Finish:
        folder = self._config.logs.folder
        await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
        async with (
            reach(
                self._config.etcd,
                local_address=self._config.node.address,
                job_token=os.environ.get("NVRX_JOB_TOKEN"),
                log_file=folder / "etcd.log",
                say=self._say,
            ) as etcd,
            anyio.create_task_group() as services,
        ):
            self._say(f"job {self._config.run_id} on {socket.gethostname()}, {etcd.where}")
            await services.start(self._ranks.serve)
            try:
                finish = await self._live(etcd)
                await self._linger(etcd)
            finally:
                services.cancel_scope.cancel()
        return finish
