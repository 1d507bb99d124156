"""`nvrx`: from a command line to an exit code. Help and usage errors import nothing heavy."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from nvrx_launcher.ctl import verbs
from nvrx_launcher.ctl.cli import nvrx
from nvrx_launcher.errors import UsageError
from nvrx_launcher.exit_codes import ExitCode
from nvrx_launcher.palette import palette_for

_INTERRUPTED = 130
_NOT_SO = 1

__all__ = ["main", "verbs"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `nvrx` with these arguments (default: the process's own) and return its exit code."""
    _write_what_can_be_written()
    gc.disable()  # what is imported stays: to look through it again and again costs a twentieth of an answer
    try:
        code = _run(argv)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:
        code = ExitCode.DONE  # its reader has seen enough
    except Exception as error:  # noqa: BLE001 - the outermost frame: whatever comes is reported here, once
        code = _report(error)
    _release_stdout()
    return code


def _write_what_can_be_written() -> None:
    """A locale that knows no bars, or a path that is no UTF-8, costs a sign and not the answer."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(argv: Sequence[str] | None) -> int:
    try:
        nvrx.main(args=list(argv) if argv is not None else None, prog_name="nvrx", standalone_mode=False)
    except click.exceptions.Abort:
        return _INTERRUPTED
    except click.exceptions.Exit as over:
        return int(over.exit_code)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "nvrx"
        hint = f"{where} --help"
        if isinstance(error, click.NoSuchOption) and where == "nvrx":
            hint = f"options stand behind the verb: nvrx ps {error.option_name}"
        raise UsageError(error.format_message(), hint) from error
    except SystemExit as over:
        return over.code if isinstance(over.code, int) else ExitCode.DONE
    return ExitCode.DONE


def _report(error: BaseException) -> int:
    """Print an error that knows what to do as message and hint, any other as the bug it is."""
    known = _known(error)
    palette = palette_for(terminal=sys.stderr.isatty(), environment=os.environ)
    if known is None:
        import traceback  # noqa: PLC0415 - only a bug pays for it

        traceback.print_exception(error)
        _tell(f"{palette.error('internal error:')} a bug in nvrx, please report it with the lines above")
        return ExitCode.INTERNAL
    _tell(f"{palette.error('error:')} {getattr(known, 'message', None) or known}")
    hint = getattr(known, "hint", "")
    if hint:
        _tell(f"{palette.path('hint:')} {hint}")
    return _code_of(known)


def _known(error: BaseException) -> BaseException | None:
    """The error that has something to say to a person: itself, or the first of a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        found = [_known(member) for member in error.exceptions]
        return found[0] if all(member is not None for member in found) else None
    return error if hasattr(error, "hint") or hasattr(error, "exit_code") else None


def _code_of(error: BaseException) -> int:
    """What the kind of error means for a script."""
    from nvrx_async.etcd.errors import ConfigurationError  # noqa: PLC0415 - only a failure pays
    from nvrx_async.job.errors import NoSuchError, NotSoError, UnansweredError  # noqa: PLC0415 - only a failure pays

    if isinstance(error, NoSuchError | ConfigurationError):
        return ExitCode.USAGE
    if isinstance(error, NotSoError | UnansweredError):
        return _NOT_SO
    return int(getattr(error, "exit_code", ExitCode.NEVER_READY))


def _tell(text: str) -> None:
    with suppress(BrokenPipeError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _release_stdout() -> None:
    """Flush now: a reader that left (`| head`) would otherwise turn the exit code into 120."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
