"""The agent: one per node. Services in one task group, lives one after another, ended in reverse order."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TextIO

import anyio

from nvrx_async.etcd import (
    EmbeddedServer,
    EtcdClient,
    EtcdError,
    Feed,
    Session,
    UnavailableError,
    parse_endpoint,
)
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.live import LIVE, REACHED
from nvrx_async.job.records import Ending, Outcome
from nvrx_async.probe import Handler, QuestionRefusedError
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.effects import Finish, Finished, Notice, Registered, RoundRunning, Waiting
from nvrx_async.rounds.events import LeaveRequested, StopWanted
from nvrx_async.rounds.holding import RETURN_LIMIT_S
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.interpreter import Interpreter
from nvrx_async.rounds.member import SIGNAL_BASE, Member
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.promises import Book
from nvrx_async.rounds.tolerance import Tolerance
from nvrx_launcher import log_folder
from nvrx_launcher.addresses import given_address, unreachable
from nvrx_launcher.agent_inject import FailPoints, orders
from nvrx_launcher.clock import boottime_s, now
from nvrx_launcher.collector import spared_collector
from nvrx_launcher.config import LaunchConfig
from nvrx_launcher.console import Console
from nvrx_launcher.countdown import Countdown
from nvrx_launcher.descriptor import console
from nvrx_launcher.early_exit import EarlyExit
from nvrx_launcher.errors import KeeperStartError, RequeueError, UsageError
from nvrx_launcher.exit_codes import ExitCode
from nvrx_launcher.history import DecisionLog, History, HistoryThread
from nvrx_launcher.known_agents import KnownAgent, publish
from nvrx_launcher.life_sign import LifeSign
from nvrx_launcher.linger import until_all_left
from nvrx_launcher.live import LiveAnswers
from nvrx_launcher.neighbours import SECTIONS, Neighbours
from nvrx_launcher.output import Output
from nvrx_launcher.palette import palette_for
from nvrx_launcher.probe_port import serve_probe
from nvrx_launcher.ranks import NodeRanks
from nvrx_launcher.reach import WAIT_S, Reached, reach
from nvrx_launcher.recorded_store import RecordedStore
from nvrx_launcher.reply_file import write_reply
from nvrx_launcher.requeue import RequeueHook
from nvrx_launcher.screen import Screen
from nvrx_launcher.signals import in_main_thread, stopping
from nvrx_launcher.store import EtcdStore
from nvrx_launcher.story import Story
from nvrx_launcher.sweep import sweep_orphans, this_process
from nvrx_launcher.tenure import PROMISE, Tenure
from nvrx_launcher.terminal import terminal_size
from nvrx_launcher.time_limit import ending_by, time_limit
from nvrx_launcher.tracing import begin_tracing
from nvrx_launcher.warm import WarmCrew
from nvrx_launcher.workers import RankJob

SERVER_LINGER_S = 10.0
"""How long an etcd started here waits for the job's other agents to read the outcome and leave."""
RETRY_S = 0.5
ETCD_LOG = "etcd.log"
REVOKE_LIMIT_S = 1.0


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
        return await _Agent(config, environment, files, screen, output, err.text(sys.stderr), signals).run()


def _received(config: LaunchConfig) -> AbstractContextManager[AsyncIterator[signal.Signals] | None]:
    """Signals, to the last line of the report: one that comes while the agent ends must not cut that short."""
    if not in_main_thread():  # they are the embedding program's
        return nullcontext()
    resized = () if terminal_size(sys.stdout, pty=config.workers.pty) is None else (signal.SIGWINCH,)
    return anyio.open_signal_receiver(*{*stopping(), *config.workers.signals, *resized})


class _Agent:
    """What outlives a life: console, keeper, the connection to etcd, the person's wish to stop."""

    def __init__(
        self,
        config: LaunchConfig,
        environment: Mapping[str, str],
        files: Screen,
        screen: Screen,
        output: Output,
        messages: TextIO,
        signals: AsyncIterator[signal.Signals] | None,
    ) -> None:
        self._config = config
        self._signals = signals
        self._environment = environment
        self._files = files
        self._output = output
        self._screen = screen
        self._console = Console(
            Story(config.run_id, config.job.max_restarts, str(config.logs.folder), boottime_s()),
            stream=messages,
            clock=now,
            palette=palette_for(terminal=sys.stderr.isatty(), environment=environment),
            summary_file=config.logs.summary,
            before_line=output.break_line,
        )
        self._history = HistoryThread(History(config.logs.folder / "history.jsonl", config.job), files.do)
        self._decisions = DecisionLog(config.logs.folder / f"agent-{os.getpid()}.log")
        tag = f"{config.run_id}/{secrets.token_hex(8)}"
        self._life_sign = LifeSign(tag)
        self._process = this_process(tag, self._life_sign.net_namespace)
        self._tracing = begin_tracing(config, environment, self._warn)
        self._watch = self._tracing.watch_kind(
            config.hang,
            lease_ttl_s=config.job.lease_ttl_s,
            warn=self._warn,
            inherited=environment,
            neighbours=self._neighbours(),
            say=self._say,
        )
        self._tracing.attend(self._watch)
        self._countdown = Countdown(self._say)
        self._points = FailPoints(orders(environment), self._explain)
        self._early = EarlyExit(config.workers.early_exit_limit_s, self._warn)
        crew = WarmCrew(
            config.workers,
            environment,
            say=self._say,
            explain=self._explain,
            quiet_in_s=self._watch.quiet_in_s,
        )
        self._live_answers = LiveAnswers(self._watch, lambda: crew.ready, now)
        self._handlers: dict[str, Handler] = {
            LIVE: self._live_answers.answer,
            REACHED: self._watch.steps.answer,
            PROMISE: self._promise,
            SECTIONS: self._watch.sections,
        }
        self._probe = ""
        self._ranks = NodeRanks(
            workers=config.workers,
            tag=self._process.tag,
            base_env=environment,
            cwd=str(Path.cwd()),
            output=output,
            warn=self._warn,
            watch=self._watch,
            countdown=self._countdown,
            early=self._early,
            keep=self._history.add_end,
            crew=crew,
            life_sign=self._life_sign.descriptor,
        )
        self._requeue = RequeueHook(config.requeue, self._say, self._warn)
        self._leave: LeaveRequested | None = None
        self._stop_wanted: StopWanted | None = None
        self._interpreter: Interpreter | None = None
        self._tenure: Tenure | None = None
        self._book = Book()
        self._registered: Registered | None = None
        self._finished = False
        self._first_attempt = 0
        self._unreachable = ""
        self._cut_short: int | None = None

    async def run(self) -> int:
        """Reach etcd, keep a keeper, live. Everything is ended in reverse order."""
        try:
            return await self._run()
        finally:
            await self._tracing.close()
            self._life_sign.close()

    async def _run(self) -> int:
        code = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._serve_signals, tasks.cancel_scope)
                code = await self._reach_and_live()
                tasks.cancel_scope.cancel()
        except* (EtcdError, KeeperStartError, RequeueError) as failures:
            if self._registered is None:
                raise
            failure = _first(failures)
            # The job was up: its infrastructure failed, which is no reason to say that it never became ready.
            self._close_early(ExitCode.REQUEUE, failure.message.partition("\n")[0])
            raise RequeueError(failure.message, failure.hint) from failure
        if code is None and self._leave is not None:
            code = SIGNAL_BASE + self._leave.signal
            name = signal.Signals(self._leave.signal).name
            self._close_early(code, f"ended on this node by {name}")
            return code
        return ExitCode.INTERNAL if code is None else code

    async def _reach_and_live(self) -> int:
        folder, node = self._config.logs.folder, self._config.node
        self._first_attempt = await log_folder.made(folder)
        left = await anyio.to_thread.run_sync(sweep_orphans, self._config.run_id)
        if left:
            self._warn(f"ended what an earlier agent of this job had left here: {', '.join(left)}")
        async with (
            reach(
                self._config.etcd,
                local_address=given_address(node.interface, node.address),
                job_token=self._environment.get("NVRX_JOB_TOKEN"),
                log_file=folder / ETCD_LOG,
                say=self._say,
                wait_s=min(WAIT_S, self._config.job.join_timeout_s),
                job=f"{self._config.run_id} {self._config.launch_id or ''}",
                cluster_wait_s=self._config.job.join_timeout_s,
            ) as etcd,
            self._registered_to_the_end(etcd.client),
            anyio.create_task_group() as services,
        ):
            self._say(f"job {self._config.run_id} on {socket.gethostname()}, {etcd.where}")
            await services.start(self._watch.serve)
            await self._say_where(etcd)
            token = self._environment.get("NVRX_JOB_TOKEN")
            self._probe = await services.start(serve_probe, self._handlers, etcd.address, token, self._warn)
            services.start_soon(self._countdown.serve)
            services.start_soon(self._early.serve)
            services.start_soon(self._tracing.serve)
            services.start_soon(self._stop_before_the_limit)
            if etcd.server is not None:
                services.start_soon(self._watch_server, etcd.server)
            await services.start(self._ranks.serve)
            if self._config.job.max_nodes > 1:
                self._unreachable = unreachable(
                    parse_endpoint(self._config.etcd.endpoints[0]).host, etcd.address
                )
            finish = await self._live(etcd)
            if not self._finished and finish.exit_code != ExitCode.USAGE:
                self._say(f"this node leaves the job: {finish.reason} (exit code {finish.exit_code})")
            await self._linger(etcd)
            services.cancel_scope.cancel()
        if finish.exit_code == ExitCode.USAGE:
            raise UsageError(*finish.reason.split("\n\nhint: ", 1))
        return finish.exit_code

    @asynccontextmanager
    async def _registered_to_the_end(self, client: EtcdClient) -> AsyncIterator[None]:
        """Give up the lease of a life that was cut short, now that the keeper has ended its ranks.

        Others take ranks for dead as soon as a registration is gone: it must not go before they are.
        """
        try:
            yield
        finally:
            if self._cut_short is not None:
                with anyio.move_on_after(REVOKE_LIMIT_S, shield=True), suppress(EtcdError):
                    await client.revoke(self._cut_short)  # else it lapses by itself

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
            self._warn(f"nvrx will need --etcd to find this job: {error}")

    # Lives --------------------------------------------------------------------------------------------

    async def _live(self, etcd: Reached) -> Finish:
        """One life after another: a lease that ended takes its incarnation with it."""
        while True:
            finish = await self._one_life(etcd)
            if not finish.again:
                return finish
            self._say(f"{finish.reason}; this node starts anew as a newcomer")

    async def _one_life(self, etcd: Reached) -> Finish:
        spec, book = self._config.job, self._book
        finished = False

        def renewed(sent_at_s: float) -> None:
            self._watch.alive()
            self._live_answers.renewed(sent_at_s)
            self._tracing.renewed(sent_at_s)

        tenure = Tenure(
            etcd.client,
            spec,
            self._ranks,
            token=self._environment.get("NVRX_JOB_TOKEN"),
            renewed=renewed,
            store_ended=lambda: self._store_ended(etcd),
        )
        first = tenure.session
        async with AsyncExitStack() as stack:
            await self._begin(stack, first, etcd)
            feed = await stack.enter_async_context(Feed(etcd.client))
            me, mirror = self._identity(etcd, first.lease_id), Mirror()
            member = Member(me, spec, mirror, book)
            tolerance = Tolerance(spec, mirror, member, book)
            interpreter = Interpreter(
                (
                    *self._tracing.life(me, mirror),
                    *self._points.machines(
                        member,
                        Coordinator(me, spec, mirror, book, agree_s=self._config.workers.stop_timeout_s),
                        tolerance,
                    ),
                ),
                mirror,
                self._points.store(
                    self._tracing.store(
                        RecordedStore(EtcdStore(etcd.client, feed), me.run_id, self._history.add_told)
                    )
                ),
                self._points.ranks(self._tracing.ranks(self._ranks)),
                now,
                self._notify,
                self._explain,
                peers=self._points.peers(tenure),
            )
            self._interpreter = interpreter
            self._tenure = tenure
            tenure.serve_life(interpreter.tell, tolerance)
            self._ranks.listen(interpreter.tell)
            if self._leave is not None:  # it came when the life before had ended already
                interpreter.tell(self._leave)
            if self._stop_wanted is not None:
                interpreter.tell(self._stop_wanted)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(tenure.serve)
                    finish = await interpreter.run()
                    await self._settle_requeue(etcd)  # while this agent is registered: etcd waits for it
                    tenure.end()
                    tasks.cancel_scope.cancel()
                finished = True
            finally:
                self._interpreter = self._tenure = None
                if not finished:
                    first.orphan()
                    self._cut_short = tenure.session.lease_id
        return finish

    async def _begin(self, stack: AsyncExitStack, session: Session, etcd: Reached) -> None:
        """Take a lease. etcd may be away, for as long as a job can be saved by waiting."""
        limit_s = boottime_s() + self._config.job.outage_limit_s + RETURN_LIMIT_S
        while True:
            try:
                await stack.enter_async_context(session)
            except UnavailableError as error:
                if why := self._store_ended(etcd):
                    log = self._config.logs.folder / ETCD_LOG
                    raise RequeueError(why, f"see why in {log}; the job can be requeued") from error
                if boottime_s() >= limit_s:
                    raise RequeueError(
                        f"etcd did not answer for {RETURN_LIMIT_S:g} s: {error.cause}",
                        "this node's ranks are stopped; the job can be requeued once etcd is back",
                    ) from error
                await anyio.sleep(RETRY_S)
            else:
                return

    def _store_ended(self, etcd: Reached) -> str:
        """Why etcd will not come back; empty while it may."""
        if etcd.server is not None and etcd.server.exited.is_set():
            return "the etcd that this agent had started has ended, and the job with it"
        return ""

    def _neighbours(self) -> Neighbours | None:
        """Other agents of the job, as they are when they are asked; None where it has one node."""
        if self._config.job.max_nodes == 1:
            return None
        token = self._environment.get("NVRX_JOB_TOKEN")
        return Neighbours(
            lambda number: self._tenure.others(number) if self._tenure is not None else (),
            time.monotonic,
            token,
        )

    async def _promise(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Another agent asks for this one's promise."""
        if self._tenure is None:
            raise QuestionRefusedError("this agent is not in the job now")
        return await self._tenure.answer(payload)

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
        )

    async def _linger(self, etcd: Reached) -> None:
        """What etcd runs here outlives the job for as long as other agents have not read how it ended."""
        if etcd.member is not None and not self._finished:
            await etcd.member.resign()  # the job goes on without this node
        elif (etcd.server or etcd.member) is not None and self._registered is not None:
            keys = AttemptKeys(self._config.run_id, self._registered.attempt)
            await until_all_left(etcd.client, keys.nodes, SERVER_LINGER_S)
            await self._settle_requeue(
                etcd
            )  # whoever wrote the outcome may have lost etcd with its last word

    async def _settle_requeue(self, etcd: Reached) -> None:
        if self._registered is not None:
            keys = AttemptKeys(self._config.run_id, self._registered.attempt)
            await self._requeue.settle(etcd.client, keys, self._registered.node.node_id, now().utc)

    async def _watch_server(self, server: EmbeddedServer) -> None:
        await server.exited.wait()
        log = self._config.logs.folder / ETCD_LOG
        self._warn(f"the etcd started here ended early (status {server.exit_status}); its last words: {log}")

    async def _stop_before_the_limit(self) -> None:
        """Ask for a stop of the whole job before the scheduler ends it; what the ranks need for that is theirs."""
        workers = self._config.workers
        limit = time_limit(workers.end_unix_s, workers.limit_margin_s, workers.stop_timeout_s, time.time())
        if limit is None:
            return
        await anyio.sleep_until(anyio.current_time() + limit.after_s)
        self._stop_wanted = limit.wanted
        if self._interpreter is not None:
            self._interpreter.tell(limit.wanted)

    # Signals ------------------------------------------------------------------------------------------

    async def _serve_signals(self, everything: anyio.CancelScope) -> None:
        """The first signal asks the job to stop, a second ends this agent and its ranks now.

        Those for the ranks are passed on and change nothing here.
        """
        if self._signals is None:
            self._warn(
                "started outside the main thread: signals are not handled here, nor passed on to ranks"
            )
            return
        for_ranks = self._config.workers.signals
        async for number in self._signals:
            name = signal.Signals(number).name
            if number == signal.SIGWINCH and number not in for_ranks:
                self._ranks.resize(self._terminal())
                continue
            if number in for_ranks:
                passed = self._ranks.signal(number)
                self._say(
                    f"{name}: " + ("passed on to the ranks that handle it" if passed else "no rank runs")
                )
                continue
            if self._leave is not None:
                self._say(f"{name} again: killing the ranks")
                self._ranks.kill()
                everything.cancel()
                return
            grace_s = self._config.workers.grace_s(time.time())
            self._leave = LeaveRequested(number, boottime_s() + grace_s, self._ending(number))
            if self._interpreter is None:
                self._say(f"{name}: stopping before this node was in the job")
                everything.cancel()
                return
            self._say(f"{name}: stopping; ranks have {grace_s:.4g} s (again to kill them now)")
            self._interpreter.tell(self._leave)

    def _ending(self, number: int) -> Ending:
        return ending_by(
            number, self._config.workers.end_unix_s, time.time(), limit_near=self._stop_wanted is not None
        )

    def _terminal(self) -> tuple[int, int] | None:
        """Size of the terminal that ranks write to, None for pipes."""
        return terminal_size(sys.stdout, pty=self._config.workers.pty)

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
                    terminal=self._terminal(),
                    familiar=config.logs.familiar,
                )
            )
        self._finished = self._finished or isinstance(notice, Finished)
        if isinstance(notice, RoundRunning):
            self._unreachable = ""  # whoever was needed has found the way
            if notice.assignment is None:
                self._ranks.stand_by(self._config.node.slots)
        self._tracing.notice(notice)
        if isinstance(notice, Finished):
            self._screen.do(self._output.settle)  # the report is the last on the screen
        self._screen.do(lambda: self._console.show(notice))
        if isinstance(notice, Waiting) and self._unreachable:
            self._warn(self._unreachable)  # at once: whoever is waited for may never find the way here
            self._unreachable = ""
        self._history.add(notice)
        if isinstance(notice, Finished) and not notice.outcome.success:
            self._files.do(lambda: self._reply(notice.outcome))

    def _close_early(self, code: int, reason: str) -> None:
        """The summary of a job that ended on this node alone; what became of the others nobody knows."""
        if self._registered is None or self._finished:
            return
        ended = Outcome(
            success=False,
            exit_code=code,
            reason=reason,
            round=0,
            decided_utc=now().utc,
            ending=self._leave.ending if self._leave is not None else None,
        )
        self._screen.do(self._output.settle)
        self._screen.do(lambda: self._console.show(Finished(ended)))

    def _reply(self, outcome: Outcome) -> None:
        """Where what started this agent reads how it failed, as it would of torchrun."""
        path = self._environment.get("TORCHELASTIC_ERROR_FILE")
        if not path:
            return
        try:
            write_reply(Path(path), outcome, time.time())
        except OSError as error:
            self._console.warn(f"TORCHELASTIC_ERROR_FILE={path} cannot be written: {error.strerror}")

    def _explain(self, sentence: str) -> None:
        line = self._tracing.tagged(sentence)
        self._files.do(lambda: self._decisions.add(f"{now().utc} {line}"))

    def _say(self, text: str) -> None:
        self._screen.do(lambda: self._console.say(text))

    def _warn(self, text: str) -> None:
        self._screen.do(lambda: self._console.warn(text))


def _first(
    failures: BaseExceptionGroup[EtcdError | KeeperStartError | RequeueError],
) -> EtcdError | KeeperStartError | RequeueError:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
