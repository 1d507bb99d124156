"""The command line of `nvrx`: verbs and options. What a verb does is imported when it is called."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nvrx_launcher.errors import UsageError

if TYPE_CHECKING:
    from nvrx_launcher.ctl.place import EtcdOptions
    from nvrx_launcher.ctl.screen import Screen

F = TypeVar("F", bound=Callable[..., Any])
_ETCD_OPTIONS = (
    ("--etcd", "HOST:PORT,...", "etcd, one address or several [env: NVRX_ETCD_ENDPOINTS]"),
    ("--etcd-cacert", "FILE", "authority that signed etcd's certificate [env: NVRX_ETCD_CACERT]"),
    ("--etcd-cert", "FILE", "certificate shown to etcd [env: NVRX_ETCD_CERT]"),
    ("--etcd-key", "FILE", "key of that certificate [env: NVRX_ETCD_KEY]"),
    ("--etcd-user", "NAME", "user; the password comes from NVRX_ETCD_PASSWORD [env: NVRX_ETCD_USER]"),
)
_FORMS = ("table", "wide", "json", "yaml")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?")
_UNITS_S = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 100 * 365 * 86_400.0

EXAMPLES = """\b
Examples:
  nvrx ps                              all jobs, with their last fault
  nvrx status llama -w                 one job, redrawn as it changes
  nvrx why llama                       why it restarted, where the time went
  nvrx logs llama --errors             the first error ahead of its cascade
  nvrx wait llama --for round=2 --timeout 10m
  nvrx drain llama node-17 --reason "fan replaced"

\b
Exit codes:
  0  done          1  it is not so, or was refused    2  wrong use
  3  etcd or the agents cannot be reached             130  Ctrl-C
"""
"""Shown at the top of the help."""


def etcd_options(function: F) -> F:
    """Where etcd is."""
    for name, metavar, text in reversed(_ETCD_OPTIONS):
        function = click.option(name, metavar=metavar, help=text, default=None)(function)
    return function


def output_option(function: F) -> F:
    """In which form to answer."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(_FORMS),
        default="table",
        help="Form of the answer; json and yaml carry the version of their schema.",
    )(function)


def all_option(function: F) -> F:
    """No row is left out."""
    return click.option("--all", "everything", is_flag=True, help="On a terminal too, leave no row out.")(
        function
    )


def etcd_from(given: dict[str, Any]) -> EtcdOptions:
    """Take the options of etcd out of all that were given."""
    from nvrx_launcher.ctl.place import options_from  # noqa: PLC0415 - not for --help

    names = [name.removeprefix("--").replace("-", "_") for name, _, _ in _ETCD_OPTIONS]
    return options_from(os.environ, {name: given.pop(name, None) or "" for name in names})


def screen_from(given: dict[str, Any]) -> Screen:
    """Take the options of the answer's form out of all that were given."""
    from nvrx_launcher.ctl.screen import screen_for  # noqa: PLC0415 - not for --help

    return screen_for(given.pop("form", "table"), everything=bool(given.pop("everything", False)))


def run(verb: Callable[..., Coroutine[Any, Any, int]], *arguments: Any, **named: Any) -> None:
    """Run a verb to its end, and end with its exit code."""
    import anyio  # noqa: PLC0415 - not for --help

    async def main() -> int:
        gc.freeze()  # see `main.main`; who follows a job goes on for days
        gc.enable()
        return await verb(*arguments, **named)

    code = 0
    try:
        code = anyio.run(main)
    except* BrokenPipeError:  # its reader (`| head`) has seen enough; click would make a failure of it
        pass
    raise SystemExit(code)


if TYPE_CHECKING:
    _Kind = click.ParamType[Any]
else:
    _Kind = click.ParamType


class Seconds(_Kind):
    """A length of time: `90`, `90s`, `10m`, `1.5h`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no length of time, such as 90s, 10m or 2h", param, ctx)
        seconds = float(found[1]) * _UNITS_S[found[2]]
        if seconds > _LONGEST_S:
            self.fail(f"{value} is longer than 100 years", param, ctx)
        return seconds


class Moment(_Kind):
    """A moment: `2026-01-31T10:00:00Z`, or so long ago: `10m`."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The moment, in UTC where nothing else is said."""
        found = _DURATION.fullmatch(str(value).strip())
        if found is not None:
            seconds = float(found[1]) * _UNITS_S[found[2]]
            if seconds > _LONGEST_S:
                self.fail(f"{value} is longer than 100 years", param, ctx)
            return datetime.now(UTC) - timedelta(seconds=seconds)
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no moment, such as 10m or 2026-01-31T10:00:00Z", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class JobName(_Kind):
    """The name of a job: one that a key of etcd can hold."""

    name = "job"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it is."""
        text = str(value)
        if not text:
            self.fail("the name of a job is not empty", param, ctx)
        if not text.isprintable():  # control signs, and bytes that are no UTF-8
            self.fail(f"{text!a} is not the name of a job", param, ctx)
        return text


class Verbs(click.Group):
    """Verbs in the order in which people need them; a wrong one gets the nearest."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of their definition."""
        del ctx
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a verb.

        Raises:
            UsageError: there is none of this name.
        """
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            from nvrx_async.job.names import nearest  # noqa: PLC0415 - only a typo pays for it

            close = nearest(args[0], list(self.commands))
            hint = f"did you mean nvrx {close[0]}?" if close else "nvrx --help lists all verbs"
            raise UsageError(f"nvrx has no verb {args[0]}", hint)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, help="Show the version.")
@click.pass_context
def nvrx(ctx: click.Context, *, version: bool) -> None:
    """See and steer jobs of nvrx-launch, from any machine that reaches their etcd."""
    if version:
        from importlib.metadata import PackageNotFoundError  # noqa: PLC0415 - not for --help
        from importlib.metadata import version as installed  # noqa: PLC0415

        try:
            click.echo(f"nvrx {installed('nvrx-async')}")
        except PackageNotFoundError:
            click.echo("nvrx, not installed as a package")
    elif ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
