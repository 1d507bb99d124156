"""`nvrx-launch`: from a command line to an exit code. Help and usage errors import nothing heavy."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from nvrx_launcher.command_line import PRINT_CONFIG, CommandLine, parse
from nvrx_launcher.errors import UsageError
from nvrx_launcher.exit_codes import ExitCode
from nvrx_launcher.palette import Palette, palette_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvrx_launcher.config import LaunchConfig

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `nvrx-launch` with these arguments (default: the process's own) and return its exit code."""
    _open_closed_streams()
    try:
        line = parse(sys.argv[1:] if argv is None else argv, os.environ)
        code = _answer(line) if line.asked_for else _launch(line)
    except KeyboardInterrupt:  # Ctrl-C before the agent took over: nothing runs yet
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the outermost frame: whatever comes is reported here, once
        code = _report(error)
    _release_stdout()
    return code


def _launch(line: CommandLine) -> int:
    # Taken now: what is imported for the agent's own use sets variables that no rank should see.
    environment = dict(os.environ)
    from nvrx_launcher import nvml, preflight, signals  # noqa: PLC0415 - not for --help
    from nvrx_launcher.configure import configure  # noqa: PLC0415
    from nvrx_launcher.slots import count_slots  # noqa: PLC0415

    def count(word: str) -> int:
        return count_slots(word, environment.get("CUDA_VISIBLE_DEVICES"), nvml.list_gpus)

    preflight.check_current_folder()
    config = configure(line, environment, count, preflight.read_password)
    if line.value("numa_binding"):
        config = _bound(config, line.value("numa_binding"), environment.get("CUDA_VISIBLE_DEVICES"))
    preflight.check(config)
    palette = _palette()
    for notice in (*config.notices, *preflight.notes()):
        _tell(f"{palette.quiet('note:')} {notice}")

    if config.telemetry is not None:
        config = _timed(config)
    with signals.held(config.workers.signals):
        from nvrx_launcher.agent import run  # noqa: PLC0415 - heavy

        code: int = run(config, environment)
    return code


def _timed(config: LaunchConfig) -> LaunchConfig:
    import time  # noqa: PLC0415 - without telemetry no clock is read
    from dataclasses import replace  # noqa: PLC0415 - not for --help

    return replace(config, imports_began_s=time.clock_gettime(time.CLOCK_BOOTTIME))


def _bound(config: LaunchConfig, mode: str, visible: str | None) -> LaunchConfig:
    from dataclasses import replace  # noqa: PLC0415 - not for --help

    from nvrx_launcher import numa, nvml  # noqa: PLC0415 - not for --help

    cpus = numa.cpus_of_ranks(mode, config.node.slots, visible, nvml.list_gpus)
    return replace(config, workers=replace(config.workers, cpus=cpus))


def _answer(line: CommandLine) -> int:
    if line.asked_for == PRINT_CONFIG:
        text = _options(line)
    elif line.asked_for == "version":
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - 20 ms that help saves

        try:
            text = f"nvrx-launch {version('nvrx-async')}\n"
        except PackageNotFoundError:
            text = "nvrx-launch, not installed as a package\n"
    else:
        from nvrx_launcher.help_text import help_text  # noqa: PLC0415 - not for a launch

        text = help_text(everything=line.asked_for == "help_all")
    with suppress(BrokenPipeError):  # its reader has seen enough
        sys.stdout.write(text)
    return ExitCode.DONE


def _options(line: CommandLine) -> str:
    import shutil  # noqa: PLC0415 - not for a launch

    from nvrx_launcher.print_config import print_config  # noqa: PLC0415 - not for a launch

    for notice in line.notices:
        _tell(f"{_palette().quiet('note:')} {notice}")
    terminal = sys.stdout.isatty()
    palette = palette_for(terminal=terminal, environment=os.environ)
    width = shutil.get_terminal_size().columns if terminal else None
    return print_config(line, line.value(PRINT_CONFIG), palette, width)


def _report(error: Exception) -> int:
    """Print an error that knows what to do as message and hint, any other as the bug it is."""
    palette = _palette()
    known = _with_hint(error)
    if known is not None:
        _tell(f"{palette.error('error:')} {getattr(known, 'message', None) or known}")
        hint = getattr(known, "hint", "")
        if hint:
            _tell(f"\n{palette.path('hint:')} {hint}")
        return int(getattr(known, "exit_code", ExitCode.NEVER_READY))
    import traceback  # noqa: PLC0415 - only a bug pays for it

    traceback.print_exception(error)
    _tell(f"{palette.error('internal error:')} a bug in nvrx-launch, please report it with the lines above")
    return ExitCode.INTERNAL


def _with_hint(error: BaseException) -> BaseException | None:
    """The error that has something to say to a person: itself, or the first in a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        known = [_with_hint(member) for member in error.exceptions]
        return known[0] if all(member is not None for member in known) else None
    return error if isinstance(error, UsageError) or hasattr(error, "hint") else None


def _palette() -> Palette:
    return palette_for(terminal=sys.stderr.isatty(), environment=os.environ)


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _open_closed_streams() -> None:
    """What was closed by the caller (`>&-`) takes everything and shows nothing."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - for as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - for as long as the process


def _release_stdout() -> None:
    """Flush now: a reader that left (`| head`) would otherwise turn the exit code into 120."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
