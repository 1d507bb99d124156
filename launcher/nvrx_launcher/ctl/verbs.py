"""All verbs of `nvrx`, each with its options; a verb's work is imported when it is called."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from nvrx_launcher.ctl.cli import (
    F,
    JobName,
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
from nvrx_launcher.ctl.complete import conditions as complete_conditions
from nvrx_launcher.ctl.complete import jobs as complete_jobs
from nvrx_launcher.ctl.complete import names as complete_names
from nvrx_launcher.ctl.complete import nodes as complete_nodes

_JOB = click.argument("job", type=JobName(), shell_complete=complete_jobs)
_LOG_DIR = click.option(
    "--log-dir",
    metavar="DIR",
    help="Where nvrx-launch was told to write: tells of a job whose etcd is gone.  [default: nvrx-logs]",
)
_WHAT = ("node", "rank", "round")


@nvrx.command()
@_LOG_DIR
@etcd_options
@output_option
def ps(*, log_dir: str | None, **given: Any) -> None:
    """All jobs: state, round, nodes, ranks, age, last fault."""
    from nvrx_launcher.ctl.past import ps_or_past  # noqa: PLC0415 - heavy

    options, screen = etcd_from(given), screen_from(given)
    run(ps_or_past, options, screen, log_dir=log_dir)


@nvrx.command()
@_JOB
@click.option(
    "-w", "--watch", is_flag=True, help="Until the job has ended: redrawn on a terminal, else lines."
)
@_LOG_DIR
@etcd_options
@output_option
@all_option
def status(job: str, *, watch: bool, log_dir: str | None, **given: Any) -> None:
    """How a job stands: nodes, ranks with step, beat and section, last fault."""
    from nvrx_launcher.ctl import look  # noqa: PLC0415 - heavy
    from nvrx_launcher.ctl.past import or_past  # noqa: PLC0415

    options, screen = etcd_from(given), screen_from(given)
    run(or_past, look.status, options, job, screen, log_dir=log_dir, watch=watch)


@nvrx.command()
@click.argument("job", required=False, type=JobName(), shell_complete=complete_jobs)
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
    if what and (name is None or (what != "node" and not name.isdecimal())):
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
    run(
        or_past,
        look.events,
        options,
        job,
        screen,
        log_dir=log_dir,
        follow=follow,
        since=since,
        histories=log_dir,
    )


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
@click.argument("round_", metavar="[ROUND]", required=False, type=click.IntRange(min=0))
@_LOG_DIR
@etcd_options
@output_option
@all_option
def trace(job: str, round_: int | None, *, log_dir: str | None, **given: Any) -> None:
    """The restart that led to a round, step by step and node by node, with its trace id for Jaeger."""
    from nvrx_launcher.ctl import trace as drawn  # noqa: PLC0415 - heavy
    from nvrx_launcher.ctl.past import or_past  # noqa: PLC0415

    options, screen = etcd_from(given), screen_from(given)
    run(or_past, drawn.trace, options, job, screen, log_dir=log_dir, number=round_)


@nvrx.command()
@_JOB
@click.option(
    "--for",
    "condition",
    required=True,
    metavar="CONDITION",
    shell_complete=complete_conditions,
    help="running, ended, round=N or step=N.",
)
@click.option("--timeout", type=Seconds(), help="Longest time to wait: 90s, 10m; for ever without it.")
@etcd_options
@output_option
def wait(job: str, condition: str, timeout: float | None, **given: Any) -> None:
    """Wait until a job runs, has ended, or has come so far."""
    from nvrx_launcher.ctl import look  # noqa: PLC0415 - heavy

    run(look.wait, etcd_from(given), job, condition, timeout, screen_from(given))


@nvrx.command()
@_JOB
@click.option("--rank", type=click.IntRange(min=0), help="Of this rank only.")
@click.option("--round", "number", type=click.IntRange(min=0), help="Of this round; the last one without it.")
@click.option("-f", "--follow", is_flag=True, help="Go on as it grows.")
@click.option("--errors", is_flag=True, help="The first error of the round ahead of what followed from it.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=20,
    help="Last lines of each log; 0 for all of 64 KiB.",
)
@_LOG_DIR
@etcd_options
def logs(job: str, **given: Any) -> None:
    """What ranks wrote, from log folders that this machine sees."""
    from nvrx_launcher.ctl.logs import logs as show  # noqa: PLC0415 - heavy

    run(show, etcd_from(given), job, screen_from(given), **given)


def _reason(function: F) -> F:
    asked = click.option("--timeout", type=Seconds(), default="30s", help="How long to wait for the answer.")
    return asked(click.option("--reason", default="", help="Why, for the history.")(function))


def _ask(job: str, verb: str, given: dict[str, Any], node: str | None = None, **extra: Any) -> None:
    from nvrx_launcher.ctl.act import act  # noqa: PLC0415 - heavy

    known = {name: value for name, value in extra.items() if value not in (None, False)}
    options, screen = etcd_from(given), screen_from(given)
    run(
        act,
        options,
        job,
        verb,
        screen,
        node_id=node,
        reason=given["reason"],
        extra=known,
        timeout_s=given["timeout"],
    )


@nvrx.command()
@_JOB
@click.option("--requeue", is_flag=True, help="End with exit code 75: a scheduler starts it again.")
@_reason
@etcd_options
@output_option
def stop(job: str, *, requeue: bool, **given: Any) -> None:
    """End a job: ranks stop at one step where they ask for it, else by SIGTERM."""
    _ask(job, "stop", given, requeue=requeue)


@nvrx.command()
@_JOB
@_reason
@etcd_options
@output_option
def restart(job: str, **given: Any) -> None:
    """Begin a new round with the same nodes; not billed to --max-restarts."""
    _ask(job, "restart", given)


@nvrx.command()
@_JOB
@_reason
@etcd_options
@output_option
def grow(job: str, **given: Any) -> None:
    """Begin a new round that takes in nodes which wait."""
    _ask(job, "grow", given)


_NODE = click.argument("node", shell_complete=complete_nodes)
_FOR = click.option("--for", "for_s", type=Seconds(), help="Only for so long: 2h, 1d.")


@nvrx.command()
@_JOB
@_NODE
@_FOR
@_reason
@etcd_options
@output_option
def drain(job: str, node: str, *, for_s: float | None, **given: Any) -> None:
    """Take a node out of the job now: its ranks move to a spare, or the job goes on smaller."""
    _ask(job, "drain", given, node, for_s=for_s)


@nvrx.command()
@_JOB
@_NODE
@_reason
@etcd_options
@output_option
def undrain(job: str, node: str, **given: Any) -> None:
    """Let a drained or excluded node take a seat again."""
    _ask(job, "undrain", given, node)


@nvrx.command()
@_JOB
@_NODE
@_FOR
@_reason
@etcd_options
@output_option
def exclude(job: str, node: str, *, for_s: float | None, **given: Any) -> None:
    """Give a node no seat from the next round on; ranks that run there run on."""
    _ask(job, "exclude", given, node, for_s=for_s)


@nvrx.command()
@click.option("--mount", default="/dev/shm", help="Where shared memory is mounted.")  # noqa: S108 - looked at only
@etcd_options
@output_option
def doctor(mount: str, **given: Any) -> None:
    """Look for what keeps jobs from running on this machine, and say what to do."""
    from nvrx_launcher.ctl.doctor import doctor as look_at  # noqa: PLC0415 - heavy

    run(look_at, etcd_from(given), screen_from(given), shared_memory=mount)


@nvrx.command()
@click.option("--older-than", type=Moment(), default="7d", help="Jobs that ended before: 7d, 12h.")
@click.option("--yes", is_flag=True, help="Remove them; without it they are listed only.")
@click.option(
    "--abandoned", is_flag=True, help="Also jobs without an outcome whose agents are gone for certain."
)
@etcd_options
def gc(older_than: datetime, *, yes: bool, abandoned: bool, **given: Any) -> None:
    """List jobs that ended long ago, and remove them from etcd."""
    from nvrx_launcher.ctl.gc import gc as collect  # noqa: PLC0415 - heavy

    run(collect, etcd_from(given), screen_from(given), before=older_than, sure=yes, abandoned=abandoned)


@nvrx.command()
@_JOB
@click.option("-f", "--file", "path", metavar="FILE", help="Where to; nvrx-JOB-TIME.tar.gz without it.")
@etcd_options
def dump(job: str, *, path: str | None, **given: Any) -> None:
    """Write one archive for a bug report: keys, story, agents' logs, versions; no secrets."""
    from nvrx_launcher.ctl.dump import dump as write  # noqa: PLC0415 - heavy

    run(write, etcd_from(given), job, screen_from(given), path=path)


@nvrx.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    r"""Print what makes a shell complete verbs, jobs, nodes and ranks.

    \b
      bash:  eval "$(nvrx completion bash)"
      zsh:   eval "$(nvrx completion zsh)"
      fish:  nvrx completion fish > ~/.config/fish/completions/nvrx.fish
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - not for --help

    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(nvrx, {}, "nvrx", "_NVRX_COMPLETE").source())
