"""Data of servers and members whose agents were killed: what is there, why it is kept, and how it is removed.

A folder's lock (flock(2), by the kernel, so in whatever container its holder is) says that its holder lives. Its
holder's note says whether that lock means anything here: on a disk that machines share it may be known to the other one
only. Data of a dead agent are kept for its successor for as long as other members of its cluster are up: one whose data
are gone would have to come back as a learner. Everything here blocks.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from nvrx_async.etcd.folder import PRIVATE_PREFIX, bases, is_still, locked
from nvrx_async.etcd.member_folder import MEMBER_PREFIX
from nvrx_async.etcd.owner import Owner, boot_id, network

_REMOVED_PREFIX = "nvrx-removed-"
_FORGOTTEN_S = 3600.0
"""A folder of which nothing can be told, and that was left alone for so long, belongs to a job that is over."""
_ANSWER_S = 0.5
_ANSWER_BYTES = 1 << 16

Answers: TypeAlias = dict[str, bool]


class Fate(Enum):
    """What may become of a folder."""

    HELD = "held"
    AWAITED = "awaited"
    UNKNOWN = "unknown"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A folder, what it takes of memory or disk, whose it was, and the sentence that says why it stays or goes."""

    path: Path
    size_bytes: int
    job: str
    fate: Fate
    why: str


def survey(*, spare: str = "", places: Sequence[Path] | None = None) -> tuple[DataFolder, ...]:
    """All folders of this user's servers; those with `spare` in their names are taken for awaited."""
    answers: Answers = {}
    return tuple(_judged(path, spare, answers) for path in _folders(places))


def remove_left(*, spare: str = "", places: Sequence[Path] | None = None) -> tuple[DataFolder, ...]:
    """Remove what dead owners have left for nobody; what was removed."""
    return tuple(one for one in survey(spare=spare, places=places) if one.fate is Fate.LEFT and remove(one))


def remove(found: DataFolder) -> bool:
    """Remove a folder, if nobody has taken it since it was looked at."""
    away = found.path.with_name(f"{_REMOVED_PREFIX}{os.getuid()}-{secrets.token_hex(6)}")
    try:
        lock = locked(found.path)
    except OSError:
        return False
    if lock is None:
        return False
    try:
        if not is_still(found.path, lock):
            return False
        # Its name is free at once: who comes back to it meanwhile must not find it locked, and do without.
        found.path.rename(away)
        shutil.rmtree(away, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(lock)
    return not away.exists()


def _folders(places: Sequence[Path] | None) -> Iterator[Path]:
    for base in dict.fromkeys(places if places is not None else bases()):
        for prefix in (f"{MEMBER_PREFIX}{os.getuid()}-", PRIVATE_PREFIX, f"{_REMOVED_PREFIX}{os.getuid()}-"):
            for path in base.glob(f"{prefix}*"):
                with suppress(OSError):
                    if path.lstat().st_uid == os.getuid() and path.is_dir():
                        yield path


def _judged(path: Path, spare: str, answers: Answers) -> DataFolder:
    owner = Owner.read(path)
    fate, why = _fate(path, owner, spare, answers)
    return DataFolder(path, _size_bytes(path), owner.job if owner is not None else "", fate, why)


def _fate(path: Path, owner: Owner | None, spare: str, answers: Answers) -> tuple[Fate, str]:
    try:
        lock = locked(path)
    except OSError as error:
        return Fate.UNKNOWN, f"it cannot be locked: {error.strerror}"
    if lock is None:
        return Fate.HELD, "its agent lives"
    os.close(lock)
    if spare and spare in path.name:
        return Fate.AWAITED, "it is this job's own"
    if path.name.startswith(_REMOVED_PREFIX):
        return Fate.LEFT, "its removal was cut short"
    if owner is None or owner.boot_id != boot_id():
        return _by_age(path, owner)
    dead = f"its agent (pid {owner.pid}) is dead"
    if owner.peers and owner.network != network():
        return Fate.UNKNOWN, f"{dead}, and its cluster is in another network namespace"
    for peer in owner.peers:
        if peer not in answers:
            answers[peer] = _is_up(peer, owner.token)
        if answers[peer]:
            return Fate.AWAITED, f"{dead}, and may come back: its cluster answers at {peer}"
    return Fate.LEFT, f"{dead}, and no other member of its cluster answers" if owner.peers else dead


def _by_age(path: Path, owner: Owner | None) -> tuple[Fate, str]:
    """What can be said without a lock that counts: a note of another boot may be another machine's."""
    who = (
        "nothing tells whose it is"
        if owner is None
        else "its agent ran in another boot, or on another machine"
    )
    quiet_s = time.time() - max((_written_s(entry) for entry in (path, *path.rglob("*"))), default=0.0)
    if quiet_s < _FORGOTTEN_S:
        return Fate.UNKNOWN, f"{who}; it goes when it was left alone for an hour"
    return Fate.LEFT, f"{who}; it was left alone for {quiet_s / 3600:.0f} h"


def _written_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _is_up(peer: str, token: str) -> bool:
    """Whether a member of the cluster may be there: what answers without its names is somebody else's.

    etcd tells its peers, and whoever asks, who the members are (GET /members). With TLS it wants a certificate first:
    that something listens is all that is known then.
    """
    url = urlsplit(peer)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=_ANSWER_S)
    with closing(connection):
        try:
            connection.connect()
        except OSError:
            return False
        if url.scheme != "http":
            return True
        try:
            connection.request("GET", "/members")
            told = json.loads(connection.getresponse().read(_ANSWER_BYTES))
            return any(str(member.get("name", "")).startswith(token) for member in told)
        except (OSError, http.client.HTTPException, ValueError, AttributeError, TypeError):
            return True  # it may be a member that stands still


def _size_bytes(path: Path) -> int:
    total = 0
    for entry in path.rglob("*"):
        with suppress(OSError):
            total += entry.lstat().st_blocks * 512
    return total
