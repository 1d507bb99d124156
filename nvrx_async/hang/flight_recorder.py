"""The dump of torch's flight recorder, asked for from outside: what each rank's last collectives were.

ProcessGroupNCCL makes a FIFO `<TORCH_NCCL_DEBUG_INFO_PIPE_FILE><rank>.pipe` where its recorder is on, and looks
into it once a second from a thread of its own (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, `DumpPipe`). Any byte
makes it write `<TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE><rank>`. Gloo's calls are recorded too,
but nothing dumps them from outside.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import anyio

from nvrx_async.aside import aside

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
KEPT_AS = "flight_recorder"
"""Name of the dump in the rank's folder."""

LIMIT_BYTES = 64 << 20
LOOKS_AFTER_S = (0.1,) * 18
"""When the dump is looked for: torch looks into its FIFO once a second, and tells nobody when it has written."""

_DEFAULT_STEM = ".cache/torch/comm_lib_trace_rank_"


def variables(environment: Mapping[str, str], private: Path, folder: Path) -> dict[str, str]:
    """What lets torch be asked, to be added where a person turned its recorder on and said nothing else.

    Args:
        environment: what the ranks inherit.
        private: folder for the FIFOs; torch fails the rank if it cannot make its own.
        folder: of the rank, for the dump.
    """
    size = next((environment[name] for name in SIZES if environment.get(name)), "0")
    if not size.isdigit() or int(size) == 0:
        return {}
    added = {} if environment.get(PIPE) else {PIPE: str(private / "flight-")}
    if not any(environment.get(name) for name in DUMPS):
        added |= dict.fromkeys(DUMPS, str(folder / f"{KEPT_AS}-"))
    return added


def places(environment: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Where a rank's FIFO and dump are: what it inherits of these variables, and what `variables` added."""
    inherited = {name: environment[name] for name in (PIPE, *DUMPS) if environment.get(name)}
    return {**inherited, **added}


async def dump(rank: int, pid: int, folder: Path, told: Mapping[str, str]) -> str:
    """Ask for the dump and keep it in the folder; its name there, "" if the recorder cannot be asked.

    Takes 2 s at most; a dump that comes later is left where torch writes it. `told`: what the rank was told by
    `places`, which /proc does not show of a process that was started before its round.
    """
    environment = {**await aside(_environment, pid), **told}
    written = _dump_path(environment, rank)
    before = await aside(_version, written)
    if not await aside(_ask, environment, rank):
        return ""
    seen = before
    for delay_s in LOOKS_AFTER_S:
        await anyio.sleep(delay_s)
        now = await aside(_version, written)
        if now == seen != before and 0 < now[1] <= LIMIT_BYTES:
            await aside(_keep, written, folder / KEPT_AS)
            return KEPT_AS
        seen = now
    return ""


def _environment(pid: int) -> dict[str, str]:
    """With what the process was started."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return {}
    return dict(one.partition("=")[::2] for one in raw.split("\0") if one)


def _dump_path(environment: Mapping[str, str], rank: int) -> Path:
    stem = next((environment[name] for name in DUMPS if environment.get(name)), None)
    return Path(f"{stem or Path(environment.get('HOME', '/tmp'), _DEFAULT_STEM)}{rank}")  # noqa: S108 - torch's own default


def _ask(environment: Mapping[str, str], rank: int) -> bool:
    """Write into the rank's FIFO, if it has one that somebody reads."""
    stem = environment.get(PIPE)
    if not stem:
        return False
    try:
        pipe = os.open(f"{stem}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # there is none, or its reader is gone
        return False
    try:
        return stat.S_ISFIFO(os.fstat(pipe).st_mode) and os.write(pipe, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(pipe)


def _version(path: Path) -> tuple[int, int]:
    """When it was written and how large it is; zeros while it is not there."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _keep(written: Path, target: Path) -> None:
    """Beside the rank's other evidence, also where torch was told to write elsewhere."""
    if written.parent == target.parent:
        written.replace(target)
    else:
        shutil.copyfile(written, target)
