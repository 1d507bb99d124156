"""The verbs that look: each reads, and writes what it found. Nothing here changes a job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from functools import partial

import anyio

from nvrx_async.etcd import EtcdClient, UnavailableError
from nvrx_async.job.client import JobClient
from nvrx_async.job.patience import Absence
from nvrx_async.job.reader import run_ids
from nvrx_async.job.status import JobStatus
from nvrx_launcher.ctl import text_jobs
from nvrx_launcher.ctl.errors import NothingFoundError
from nvrx_launcher.ctl.place import EtcdOptions, Place, connected, job_client, places
from nvrx_launcher.ctl.screen import Screen, as_data, json_line, screen_for

REFRESH_S = 1.0
_AT_ONCE = 16


async def ps(options: EtcdOptions, screen: Screen) -> int:
    """All jobs of all etcds that are known."""
    found = await all_jobs(options, partial(warn_of_silence, screen))
    screen.emit_all("JobList", found, lambda: text_jobs.jobs(found, screen))
    return 0


def warn_of_silence(screen: Screen, place: Place, error: UnavailableError) -> None:
    """One etcd of several, which nobody named, does not answer."""
    jobs = ", ".join(place.run_ids)
    sys.stderr.write(
        f"{screen.palette.warning('warning:')} {error.cause} for {jobs} ({','.join(place.endpoints)})\n"
    )


async def all_jobs(
    options: EtcdOptions, silent: Callable[[Place, UnavailableError], None] | None = None
) -> list[JobStatus]:
    """The living jobs first, the newest of them on top. `silent` is told of each etcd of several that does not answer.

    Raises:
        EtcdError: none of them answers.
    """
    found: list[JobStatus] = []
    known, away = await places(options), 0
    for place in known:
        try:
            async with connected(options, place.endpoints) as client:
                found += await summaries(client)
        except UnavailableError as error:
            away += 1
            if away == len(known):
                raise
            if silent is not None:
                silent(place, error)
    found.sort(key=lambda status: status.created_utc, reverse=True)
    found.sort(key=lambda status: status.state.is_over)
    return found


async def summaries(client: EtcdClient) -> list[JobStatus]:
    """All jobs of one etcd, in short."""
    found: list[JobStatus] = []
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def one(name: str) -> None:
        async with limiter:
            found.append(await JobClient(client, name).summary())

    names = await run_ids(
        client
    )  # outside of the group: an etcd that is away is one error, not a group of them
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(one, name)
    return found


async def status(options: EtcdOptions, run_id: str, screen: Screen, *, watch: bool) -> int:
    """How one job stands; with `watch` until it has ended."""
    async with job_client(options, run_id) as job:
        if not watch:
            found = await job.status()
            screen.emit("JobStatus", found, lambda: text_jobs.status(found, screen))
            return 0

        from nvrx_launcher.ctl.watching import redrawn  # noqa: PLC0415 - not for every verb

        over, patience, absence = False, job.patience(), Absence()

        async def picture() -> Sequence[str] | None:
            nonlocal over
            if over:
                return None
            found = await patience.of(job.status)
            passes = absence.passes(found)
            over = found.state.is_over and not passes
            if screen.form in ("json", "yaml"):
                return [json_line("JobStatus", found)]
            return text_jobs.status(found, _now(screen))

        async with job.changes() as changes:

            async def wait(at_most_s: float | None) -> None:
                await changes.next(at_most_s or absence.looks_again_s)

            await redrawn(screen, wait, picture, REFRESH_S)
        if screen.redraws:  # the picture went with the terminal's second screen: its last state stays
            found = await job.status()
            screen.lines(text_jobs.status(found, _now(screen)))
    return 0


async def nodes(options: EtcdOptions, run_id: str, screen: Screen) -> int:
    """The nodes of a job."""
    async with job_client(options, run_id) as job:
        found = (await job.status()).nodes
    screen.emit_all("NodeList", found, lambda: text_jobs.nodes(found, screen))
    return 0


async def ranks(options: EtcdOptions, run_id: str, screen: Screen) -> int:
    """The ranks of the round."""
    async with job_client(options, run_id) as job:
        found = (await job.status()).ranks
    summary = (
        [text_jobs.summary_of_ranks(found)] if screen.rows is not None and len(found) > screen.rows else []
    )
    screen.emit_all("RankList", found, lambda: [*summary, *text_jobs.ranks(found, screen)])
    return 0


async def rounds(options: EtcdOptions, run_id: str, screen: Screen) -> int:
    """The rounds of the attempt."""
    from nvrx_launcher.ctl import text_rounds  # noqa: PLC0415 - not for every verb

    async with job_client(options, run_id) as job:
        found = await job.rounds()
    screen.emit_all("RoundList", found, lambda: text_rounds.rounds(found, screen))
    return 0


async def events(
    options: EtcdOptions,
    run_id: str,
    screen: Screen,
    *,
    follow: bool,
    since: datetime | None,
    histories: str | None = None,
) -> int:
    """What happened, a line each; as JSON one object a line. `histories`: where this machine's log folders are."""
    from nvrx_launcher.ctl import text_rounds  # noqa: PLC0415 - not for every verb
    from nvrx_launcher.ctl.outages import outages, with_outages  # noqa: PLC0415 - as above

    async with job_client(options, run_id) as job, aclosing(job.events(follow=follow, since=since)) as told:
        known = await outages(job, histories, since)
        async for event in with_outages(told, known, whole=since is None):
            if screen.form == "json":
                sys.stdout.write(json_line("JobEvent", event) + "\n")
                sys.stdout.flush()
            elif screen.form == "yaml":
                sys.stdout.write("---\n")
                screen.data(as_data("JobEvent", event))
            else:
                screen.lines([text_rounds.event_line(event, screen)])
    return 0


async def why(options: EtcdOptions, run_id: str, screen: Screen, *, number: int | None) -> int:
    """Why a round ended."""
    from nvrx_launcher.ctl import text_rounds  # noqa: PLC0415 - not for every verb

    async with job_client(options, run_id) as job:
        found = await job.why(number)
    screen.emit("Why", found, lambda: text_rounds.why(found, screen))
    return 0


async def wait(
    options: EtcdOptions, run_id: str, condition: str, timeout_s: float | None, screen: Screen
) -> int:
    """Wait until something holds."""
    async with job_client(options, run_id) as job:
        found = await job.wait_for(condition, timeout_s=timeout_s)
    screen.emit("JobStatus", found, lambda: [text_jobs.head(found, _now(screen))[0]])
    return 0


async def describe(options: EtcdOptions, run_id: str, what: str, name: str, screen: Screen) -> int:
    """Everything of a job, or of one node, rank or round of it."""
    async with job_client(options, run_id) as job:
        if what == "round":
            from nvrx_launcher.ctl import text_rounds  # noqa: PLC0415 - not for every verb

            record, story = await job.round(int(name)), await job.why(int(name))
            screen.emit("RoundRecord", record, lambda: text_rounds.described(record, story, screen))
            return 0
        found = await job.status(live=True)
    if not what:
        screen.emit("JobStatus", found, lambda: text_jobs.status(found, screen))
        return 0
    if what == "node":
        node = next((one for one in found.nodes if one.node_id == name), None)
        if node is None:
            known = ", ".join(one.node_id for one in found.nodes[:8])
            raise NothingFoundError(f"job {run_id} has no node {name}", f"it has: {known or 'none'}")
        mine = replace(found, nodes=(node,), ranks=tuple(r for r in found.ranks if r.node_id == name))
        screen.emit("NodeStatus", node, lambda: text_jobs.described_node(mine, screen))
        return 0
    rank = next((one for one in found.ranks if str(one.rank) == name), None)
    if rank is None:
        last = len(found.ranks) - 1
        hint = (
            f"it has ranks 0 to {last}"
            if found.ranks
            else "no ranks run now: nvrx why tells of the last ones"
        )
        raise NothingFoundError(f"job {run_id} has no rank {name}", hint)
    screen.emit("RankStatus", rank, lambda: text_jobs.described_rank(rank, screen))
    return 0


def _now(screen: Screen) -> Screen:
    """The screen as it is now: time has passed, and the window may have another size."""
    fresh = screen_for(screen.form)
    return replace(screen, now=fresh.now, width=fresh.width)
