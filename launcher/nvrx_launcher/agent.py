"""The agent: one per node. Services in one task group, lives one after another, ended in reverse order."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from nvrx_async.etcd import (
    EmbeddedServer,
    EtcdError,
    parse_endpoint,
)
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.live import LIVE, REACHED
from nvrx_async.probe import Handler
from nvrx_async.rounds.effects import Finished, Notice, Registered, RoundRunning, Waiting
from nvrx_async.rounds.identity import Earlier, Identity
from nvrx_async.rounds.leaving import SIGNAL_BASE
from nvrx_launcher import log_folder
from nvrx_launcher.addresses import given_address, unreachable
from nvrx_launcher.agent_inject import FailPoints, orders
from nvrx_launcher.clock import boottime_s, now
from nvrx_launcher.collector import spared_collector
from nvrx_launcher.config import EmbeddedEtcd, LaunchConfig
from nvrx_launcher.countdown import Countdown
from nvrx_launcher.current_life import CurrentLife
from nvrx_launcher.descriptor import console
from nvrx_launcher.early_exit import EarlyExit
from nvrx_launcher.errors import KeeperStartError, RequeueError, UsageError
from nvrx_launcher.exit_codes import ExitCode
from nvrx_launcher.known_agents import KnownAgent, publish
from nvrx_launcher.life_sign import LifeSign
from nvrx_launcher.linger import until_all_left
from nvrx_launcher.live import LiveAnswers
from nvrx_launcher.lives import Lives
from nvrx_launcher.neighbours import SECTIONS, Neighbours
from nvrx_launcher.output import Output
from nvrx_launcher.probe_port import serve_probe
from nvrx_launcher.rank_watch import RankWatch
from nvrx_launcher.ranks import NodeRanks
from nvrx_launcher.reach import WAIT_S, Reached, reach
from nvrx_launcher.reporter import Reporter
from nvrx_launcher.requeue import RequeueHook
from nvrx_launcher.screen import Screen
from nvrx_launcher.signals import in_main_thread, stopping
from nvrx_launcher.stop_requests import StopRequests
from nvrx_launcher.sweep import sweep_orphans, this_process
from nvrx_launcher.tenure import PROMISE
from nvrx_launcher.terminal import terminal_size
from nvrx_launcher.tracing import begin_tracing
from nvrx_launcher.warm import WarmCrew
from nvrx_launcher.workers import RankJob

SERVER_LINGER_S = 10.0
"""How long an etcd started here waits for the job's other agents to read the outcome and leave."""


def run(config: LaunchConfig, environment: Mapping[str, str]) -> int:
    """Run this node's agent to its end; returns the exit code. `environment` is what ranks inherit.

    Raises:
        EtcdError: etcd cannot be reached or started.
        UsageError: this agent must not enter the job.
    """
    with spared_collector():
        return anyio.run(_main, config, environment)


async def _main(config: LaunchConfig, environment: Mapping[str, str]) -> int:
    # One thread each, left in reverse order: a pipe that nobody reads must not keep the verdict from the others.
    out, err = console(sys.stdout, sys.stderr)
    with (
        _received(config) as signals,
        Screen() as files,
        Screen(lambda: err.written_bytes) as screen,
        Screen(lambda: out.written_bytes + err.written_bytes) as ranks,
    ):
        output = Output(ranks, out.binary, err.binary, boottime_s, config.logs.shown)
        messages = err.text(sys.stderr)
        reporter = Reporter(config, environment, files=files, screen=screen, output=output, messages=messages)
        return await _Agent(config, environment, reporter, output).run(signals)


def _received(config: LaunchConfig) -> AbstractContextManager[AsyncIterator[signal.Signals] | None]:
    """Signals, to the last line of the report: one that comes while the agent ends must not cut that short."""
    if not in_main_thread():  # they are the embedding program's
        return nullcontext()
    resized = () if terminal_size(sys.stdout, pty=config.workers.pty) is None else (signal.SIGWINCH,)
    return anyio.open_signal_receiver(*{*stopping(), *config.workers.signals, *resized})


class _Agent:
    """Ties together what outlives a life: keeper, watch, telemetry, the connection to etcd."""

    def __init__(
        self, config: LaunchConfig, environment: Mapping[str, str], reporter: Reporter, output: Output
    ) -> None:
        self._config = config
        self._environment = environment
        self._token = environment.get("NVRX_JOB_TOKEN")
        self._reporter = reporter
        say, warn = reporter.say, reporter.warn
        tag = f"{config.run_id}/{secrets.token_hex(8)}"
        self._life_sign = LifeSign(tag)
        self._process = this_process(tag, self._life_sign.net_namespace)
        self._tracing = begin_tracing(config, environment, warn)
        self._life = CurrentLife()
        self._watch = self._watch_over_ranks()
        self._countdown = Countdown(say)
        points = FailPoints(orders(environment), self._explain)
        self._early = EarlyExit(config.workers.early_exit_limit_s, warn)
        crew = WarmCrew(
            config.workers, environment, say=say, explain=self._explain, quiet_in_s=self._watch.quiet_in_s
        )
        self._live_answers = LiveAnswers(self._watch, lambda: crew.ready, now)
        self._handlers: dict[str, Handler] = {
            LIVE: self._live_answers.answer,
            REACHED: self._watch.steps.answer,
            PROMISE: self._life.promise,
            SECTIONS: self._watch.sections,
        }
        self._probe = ""
        self._ranks = self._ranks_of(crew, output)
        self._requeue = RequeueHook(config.requeue, say, warn)
        self._stops = StopRequests(config.workers, self._life, self._ranks, say=say, warn=warn)
        self._lives = self._lives_with(points)
        self._registered: Registered | None = None
        self._finished = False
        self._first_attempt = 0
        self._earlier: Earlier | None = None
        self._unreachable = ""

    # What it is made of -------------------------------------------------------------------------------

    def _watch_over_ranks(self) -> RankWatch:
        watch = self._tracing.watch_kind(
            self._config.hang,
            lease_ttl_s=self._config.job.lease_ttl_s,
            warn=self._reporter.warn,
            inherited=self._environment,
            neighbours=self._neighbours(),
            say=self._reporter.say,
        )
        self._tracing.attend(watch)
        return watch

    def _neighbours(self) -> Neighbours | None:
        """Other agents of the job, as they are when they are asked; None where it has one node."""
        if self._config.job.max_nodes == 1:
            return None
        return Neighbours(self._life.others, time.monotonic, self._token)

    def _ranks_of(self, crew: WarmCrew, output: Output) -> NodeRanks:
        return NodeRanks(
            workers=self._config.workers,
            tag=self._process.tag,
            base_env=self._environment,
            cwd=str(Path.cwd()),
            output=output,
            warn=self._reporter.warn,
            watch=self._watch,
            countdown=self._countdown,
            early=self._early,
            keep=self._reporter.history.add_end,
            crew=crew,
            life_sign=self._life_sign.descriptor,
        )

    def _lives_with(self, points: FailPoints) -> Lives:
        return Lives(
            self._config,
            token=self._token,
            current=self._life,
            stops=self._stops,
            ranks=self._ranks,
            tracing=self._tracing,
            points=points,
            renewed=self._renewed,
            keep=self._reporter.history.add_told,
            notify=self._notify,
            explain=self._explain,
            say=self._reporter.say,
        )

    # From beginning to end ----------------------------------------------------------------------------

    async def run(self, signals: AsyncIterator[signal.Signals] | None) -> int:
        """Reach etcd, keep a keeper, live. Everything is ended in reverse order."""
        try:
            return await self._run(signals)
        finally:
            await self._tracing.close()
            self._life_sign.close()

    async def _run(self, signals: AsyncIterator[signal.Signals] | None) -> int:
        code = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stops.serve_signals, signals, tasks.cancel_scope)
                code = await self._reach_and_live()
                tasks.cancel_scope.cancel()
        except* (EtcdError, KeeperStartError, RequeueError) as failures:
            if self._registered is None:
                raise
            failure = _first(failures)
            # The job was up: its infrastructure failed, which is no reason to say that it never became ready.
            self._close_early(ExitCode.REQUEUE, failure.message.partition("\n")[0])
            raise RequeueError(failure.message, failure.hint) from failure
        leave = self._stops.leave
        if code is None and leave is not None:
            code = SIGNAL_BASE + leave.signal
            self._close_early(code, f"ended on this node by {signal.Signals(leave.signal).name}")
            return code
        return ExitCode.INTERNAL if code is None else code

    async def _reach_and_live(self) -> int:
        folder, node = self._config.logs.folder, self._config.node
        self._first_attempt = await log_folder.made(folder)
        if self._config.etcd.embedded is not EmbeddedEtcd.PRIVATE:
            self._earlier = await log_folder.earlier(self._config)
        left = await anyio.to_thread.run_sync(sweep_orphans, self._config.run_id)
        if left:
            self._reporter.warn(f"ended what an earlier agent of this job had left here: {', '.join(left)}")
        async with (
            reach(
                self._config.etcd,
                local_address=given_address(node.interface, node.address),
                job_token=self._token,
                log_file=folder / log_folder.ETCD_LOG,
                say=self._reporter.say,
                wait_s=min(WAIT_S, self._config.job.join_timeout_s),
                job=f"{self._config.run_id} {self._config.launch_id or ''}",
                cluster_wait_s=self._config.job.join_timeout_s,
            ) as etcd,
            self._lives.registered_to_the_end(etcd.client),
            anyio.create_task_group() as services,
        ):
            self._reporter.say(f"job {self._config.run_id} on {socket.gethostname()}, {etcd.where}")
            await self._start(services, etcd)
            if self._config.job.max_nodes > 1:
                self._unreachable = unreachable(
                    parse_endpoint(self._config.etcd.endpoints[0]).host, etcd.address
                )
            finish = await self._lives.live(
                etcd, partial(self._identity, etcd), partial(self._settle_requeue, etcd)
            )
            if not self._finished and finish.exit_code != ExitCode.USAGE:
                leaves = f"this node leaves the job: {finish.reason} (exit code {finish.exit_code})"
                self._reporter.say(leaves)
                if self._registered is not None and self._config.job.max_nodes == 1:
                    self._reporter.close_alone(finish.exit_code, finish.reason)
            await self._linger(etcd)
            services.cancel_scope.cancel()
        if finish.exit_code == ExitCode.USAGE:
            raise UsageError(*finish.reason.split("\n\nhint: ", 1))
        return finish.exit_code

    async def _start(self, services: TaskGroup, etcd: Reached) -> None:
        """What serves all lives; at last the keeper."""
        await services.start(self._watch.serve)
        await self._say_where(etcd)
        warn = self._reporter.warn
        self._probe = await services.start(serve_probe, self._handlers, etcd.address, self._token, warn)
        services.start_soon(self._countdown.serve)
        services.start_soon(self._early.serve)
        services.start_soon(self._tracing.serve)
        services.start_soon(self._stops.serve_limit)
        if etcd.server is not None:
            services.start_soon(self._watch_server, etcd.server)
        await services.start(self._ranks.serve)

    async def _say_where(self, etcd: Reached) -> None:
        """Let `nvrx` on this machine find the etcd of this job; a helper's failure costs the finding only."""
        server, folder = etcd.server, self._watch.folder
        if folder is None:
            return
        endpoints = (server.endpoint,) if server is not None else self._config.etcd.endpoints
        known = KnownAgent(self._config.run_id, endpoints, os.getpid(), str(self._config.logs.folder))
        try:
            await anyio.to_thread.run_sync(publish, folder, known)
        except OSError as error:
            self._reporter.warn(f"nvrx will need --etcd to find this job: {error}")

    def _identity(self, etcd: Reached, lease: int) -> Identity:
        node, host = self._config.node, socket.gethostname()
        return Identity(
            run_id=self._config.run_id,
            node_id=node.node_id or host,
            fixed_id=node.node_id is not None,
            incarnation=secrets.token_hex(6),
            host=host,
            address=etcd.address,
            slots=node.slots,
            process=self._process,
            lease=lease,
            launch_id=self._config.launch_id,
            takeover=self._config.takeover,
            order=node.order,
            attempt=self._registered.attempt if self._registered is not None else None,
            probe=self._probe,
            log_dir=str(self._config.logs.folder),
            first_attempt=self._first_attempt,
            earlier=self._earlier,
        )

    async def _linger(self, etcd: Reached) -> None:
        """What etcd runs here outlives the job for as long as other agents have not read how it ended."""
        if etcd.member is not None and not self._finished:
            await etcd.member.resign()  # the job goes on without this node
        elif (etcd.server or etcd.member) is not None and self._registered is not None:
            keys = AttemptKeys(self._config.run_id, self._registered.attempt)
            await until_all_left(etcd.client, keys.nodes, SERVER_LINGER_S)
            # Whoever wrote the outcome may have lost etcd with its last word.
            await self._settle_requeue(etcd)

    async def _settle_requeue(self, etcd: Reached) -> None:
        if self._registered is not None:
            keys = AttemptKeys(self._config.run_id, self._registered.attempt)
            await self._requeue.settle(etcd.client, keys, self._registered.node.node_id, now().utc)

    async def _watch_server(self, server: EmbeddedServer) -> None:
        await server.exited.wait()
        log = self._config.logs.folder / log_folder.ETCD_LOG
        self._reporter.warn(
            f"the etcd started here ended early (status {server.exit_status}); its last words: {log}"
        )

    def _renewed(self, sent_at_s: float) -> None:
        self._watch.alive()
        self._live_answers.renewed(sent_at_s)
        self._tracing.renewed(sent_at_s)

    # People -------------------------------------------------------------------------------------------

    def _notify(self, notice: Notice) -> None:
        if isinstance(notice, Registered):
            self._registered = notice
            self._live_answers.node_id = notice.node.node_id
            config = self._config
            self._ranks.enter(
                RankJob(
                    run_id=config.run_id,
                    attempt=notice.attempt,
                    node_id=notice.node.node_id,
                    max_restarts=config.job.max_restarts,
                    folder=config.logs.folder,
                    tag=self._process.tag,
                    terminal=terminal_size(sys.stdout, pty=config.workers.pty),
                    familiar=config.logs.familiar,
                )
            )
        self._finished = self._finished or isinstance(notice, Finished)
        if isinstance(notice, RoundRunning):
            self._unreachable = ""  # whoever was needed has found the way
            if notice.assignment is None:
                self._ranks.stand_by(self._config.node.slots)
        self._tracing.notice(notice)
        self._reporter.show(notice)
        if isinstance(notice, Waiting) and self._unreachable:
            # At once: whoever is waited for may never find the way here.
            self._reporter.warn(self._unreachable)
            self._unreachable = ""

    def _close_early(self, code: int, reason: str) -> None:
        """Close the job on this node, whose end nobody told; none that was not entered."""
        if self._registered is not None and not self._finished:
            leave = self._stops.leave
            ending = None if leave is None else leave.ending
            self._reporter.close_early(code, reason, ending, alone=self._config.job.max_nodes == 1)

    def _explain(self, sentence: str) -> None:
        self._reporter.explain(self._tracing.tagged(sentence))


def _first(
    failures: BaseExceptionGroup[EtcdError | KeeperStartError | RequeueError],
) -> EtcdError | KeeperStartError | RequeueError:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
