"""The folder of a job's logs on this node, when the agent starts."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from nvrx_async.aside import aside
from nvrx_launcher.earlier import earlier_attempt
from nvrx_launcher.errors import NotReadyError, UsageError
from nvrx_launcher.workers import first_attempt

if TYPE_CHECKING:
    from pathlib import Path

    from nvrx_async.rounds.identity import Earlier
    from nvrx_launcher.config import LaunchConfig

ETCD_LOG = "etcd.log"
"""What an etcd started here says, in the job's folder."""
ANSWER_LIMIT_S = 60.0
"""How long its disk may take at the start. Later a disk that does not answer costs output only."""


async def made(folder: Path) -> int:
    """Make it; the number of the first attempt whose output does not lie in it yet.

    Raises:
        UsageError: it cannot be made.
        NotReadyError: its disk does not answer.
    """
    try:
        with anyio.fail_after(ANSWER_LIMIT_S):
            return await aside(_made, folder)
    except TimeoutError:
        raise unanswered(folder, ANSWER_LIMIT_S) from None
    except OSError as error:
        raise UsageError(f"--log-dir: {folder}: {error.strerror}", "give another --log-dir") from error


def unanswered(folder: Path, limit_s: float) -> NotReadyError:
    """What is said of a folder whose disk does not answer."""
    return NotReadyError(
        f"--log-dir: the disk of {folder} has not answered for {limit_s:g} s",
        "see whether `ls` of it returns; another --log-dir starts the job meanwhile",
    )


async def earlier(config: LaunchConfig) -> Earlier | None:
    """An attempt that left no verdict, as the folder tells; a disk that does not answer tells of none."""
    folder, node_id = config.logs.folder, config.node.node_id
    with anyio.move_on_after(ANSWER_LIMIT_S), suppress(OSError):
        return await aside(earlier_attempt, folder, config.run_id, node_id, config.launch_id)
    return None


def _made(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return first_attempt(folder)
