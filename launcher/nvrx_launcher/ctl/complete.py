"""What click asks when a shell completes a word; the asking itself is imported then."""

from __future__ import annotations

import os
from typing import Any

import click

_MOST = 200


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of jobs that begin so."""
    del param
    return _asked("jobs", ctx.params, incomplete)


def conditions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """What can be waited for."""
    del ctx, param
    return [word for word in ("running", "ended", "round=", "step=") if word.startswith(incomplete)]


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of a job's nodes that begin so."""
    del param
    return _asked("node", ctx.params, incomplete)


def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """What `describe` can be asked about: nodes, ranks or rounds, as the word before says."""
    del param
    return _asked(str(ctx.params.get("what") or ""), ctx.params, incomplete)


def _asked(what: str, given: dict[str, Any], incomplete: str) -> list[str]:
    from nvrx_launcher.ctl.names import names as known  # noqa: PLC0415 - heavy
    from nvrx_launcher.ctl.place import options_from  # noqa: PLC0415 - heavy

    text = {name: str(value) for name, value in given.items() if value}
    found = known(what, options_from(os.environ, text), text.get("job", ""))
    return [name for name in found if name.startswith(incomplete)][:_MOST]
