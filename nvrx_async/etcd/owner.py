"""Whose data lie in a server's folder: a note that its holder leaves in it, for who finds it later."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "owner.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that held the folder, and what would want its data again.

    `job` is for people. `token` is the beginning of the names of all members of its cluster, and `peers` the URLs at
    which the others of them are reached, in the network that `network` names; all empty for a server that is alone.
    """

    job: str
    pid: int
    boot_id: str
    network: str
    token: str = ""
    peers: tuple[str, ...] = ()

    @classmethod
    def this(cls, job: str, token: str = "", peers: tuple[str, ...] = ()) -> Owner:
        """This process."""
        return cls(job, os.getpid(), boot_id(), network(), token, peers)

    def write(self, folder: Path) -> None:
        """Leave the note: whole, or not at all."""
        unfinished = folder / f"{FILE}.unfinished"
        unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")
        unfinished.rename(folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> Owner | None:
        """The note; None where there is none that makes sense."""
        try:
            told = json.loads((folder / FILE).read_bytes())
            return cls(
                str(told["job"]),
                int(told["pid"]),
                str(told["boot_id"]),
                str(told["network"]),
                str(told["token"]),
                tuple(map(str, told["peers"])),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def boot_id() -> str:
    """Names this run of this machine's kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def network() -> str:
    """Names the network namespace of this process."""
    return str(Path("/proc/self/ns/net").readlink())
