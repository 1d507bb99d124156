"""All verbs of `nvrx`, each with its options; a verb's work is imported when it is called."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from nvrx_launcher.ctl.cli import (
    Moment,
    Seconds,
    all_option,
    etcd_from,
    etcd_options,
    nvrx,
    output_option,
    run,
    screen_from,
)
from nvrx_launcher.ctl.complete import jobs as complete_jobs
from nvrx_launcher.ctl.complete import names as complete_names

_JOB = click.argument("job", shell_complete=complete_jobs)
_LOG_DIR = click.option(
    "--log-dir",
    metavar="DIR",
    help="Where nvrx-launch was told to write: tells of a job whose etcd is gone.  [default: nvrx-logs]",
)
_WHAT = ("node", "rank", "round")


@nvrx.command()
@etcd_options
@output_option
def ps(**given: Any) -> None:
    """All jobs: state, round, nodes, ranks, age, last fault."""
    from nvrx_launcher.ctl import look  # noqa: PLC0415 - heavy

    run(look.ps, etcd_from(given), screen_from(given))


@nvrx.command()
@_JOB
@click.option(
    "-w", "--watch", is_flag=True, help="Until the job has ended: redrawn on a terminal, else lines."
)
@etcd_options
@output_option
@all_option
def status(job: str, *, watch: bool, **given: Any) -> None:
    """How a job stands: nodes, ranks with step, beat and section, last fault."""
    from nvrx_launcher.ctl import look  # noqa: PLC0415 - heavy

    run(look.status, etcd_from(given), job, screen_from(given), watch=watch)


@nvrx.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@etcd_options
def top(job: str | None, **given: Any) -> None:
    """Jobs, or the ranks of one, redrawn every second."""
    from nvrx_launcher.ctl import top as drawn  # noqa: PLC0415 - heavy

    run(drawn.top, etcd_from(given), job, screen_from(given))


@nvrx.command()
@_JOB
@etcd_options
@output_option
@all_option
def nodes(job: str, **given: Any) -> None:
    """The nodes of a job: role, ranks, warm workers, who leads."""
    from nvrx_launcher.ctl import look  # noqa: PLC0415 - heavy

    run(look.nodes, etcd_from(given), job, screen_from(given))


@nvrx.command()
@_JOB
@etcd_options
@output_option
@all_option
def ranks(job: str, **given: Any) -> None:
    """The ranks of a job: state, step, last beat, open section, output."""
    from nvrx_launcher.ctl import look  # noqa: PLC0415 - heavy

    run(look.ranks, etcd_from(given), job, screen_from(given))


@nvrx.command()
@_JOB
@_LOG_DIR
@etcd_options
@output_option
def rounds(job: str, *, log_dir: str | None, **given: Any) -> None:
    """The rounds of a job, and why each ended."""
    from nvrx_launcher.ctl import look  # noqa: PLC0415 - heavy
    from nvrx_launcher.ctl.past import or_past  # noqa: PLC0415

    options, screen = etcd_from(given), screen_from(given)
    run(or_past, look.rounds, options, job, screen, log_dir=log_dir)


@nvrx.command()
@_JOB
@click.argument("what", required=False, type=click.Choice(_WHAT))
@click.argument("name", required=False, shell_complete=complete_names)
@etcd_options
@output_option
@all_option
def describe(job: str, what: str | None, name: str | None, **given: Any) -> None:
    """Everything of a job, or of a node, rank or round of it."""
    if what and (name is None or (what != "node" and not name.isdigit())):
        raise click.UsageError(
            f"describe JOB {what} needs the {'name' if what == 'node' else 'number'} of the {what}"
        )
    from nvrx_launcher.ctl import look  # noqa: PLC0415 - heavy

    run(look.describe, etcd_from(given), job, what or "", name or "", screen_from(given))


@nvrx.command()
@_JOB
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--since", type=Moment(), help="Only what happened since then: 10m, or 2026-01-31T10:00:00Z.")
@_LOG_DIR
@etcd_options
@output_option
def events(job: str, *, follow: bool, since: datetime | None, log_dir: str | None, **given: Any) -> None:
    """What happened, a line each; with -o json an object a line."""
    from nvrx_launcher.ctl import look  # noqa: PLC0415 - heavy
    from nvrx_launcher.ctl.past import or_past  # noqa: PLC0415

    options, screen = etcd_from(given), screen_from(given)
    run(or_past, look.events, options, job, screen, log_dir=log_dir, follow=follow, since=since)


@nvrx.command()
@_JOB
@click.argument("round_", metavar="[ROUND]", required=False, type=click.IntRange(min=0))
@_LOG_DIR
@etcd_options
@output_option
@all_option
def why(job: str, round_: int | None, *, log_dir: str | None, **given: Any) -> None:
    """Why a round ended: cause, evidence, consequences, decision, where the time went."""
    from nvrx_launcher.ctl import look  # noqa: PLC0415 - heavy
    from nvrx_launcher.ctl.past import or_past  # noqa: PLC0415

    options, screen = etcd_from(given), screen_from(given)
    run(or_past, look.why, options, job, screen, log_dir=log_dir, number=round_)


@nvrx.command()
@_JOB
@click.option(
    "--for", "condition", required=True, metavar="CONDITION", help="running, ended, round=N or step=N."
)
@click.option("--timeout", type=Seconds(), help="Longest time to wait: 90s, 10m; for ever without it.")
@etcd_options
@output_option
def wait(job: str, condition: str, timeout: float | None, **given: Any) -> None:
    """Wait until a job runs, has ended, or has come so far."""
    from nvrx_launcher.ctl import look  # noqa: PLC0415 - heavy

    run(look.wait, etcd_from(given), job, condition, timeout, screen_from(given))
