"""`nvrx dump JOB`: one archive for a bug report. What could be a secret is left out or blanked."""

from __future__ import annotations

import io
import platform
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio.to_thread
import orjson

from nvrx_async.etcd.survey import pages
from nvrx_async.etcd.types import KeyValue
from nvrx_async.job.client import JobClient
from nvrx_async.job.keys import job_scope
from nvrx_launcher.blank import blanked, blanked_data, blanked_lines
from nvrx_launcher.ctl.errors import NothingFoundError
from nvrx_launcher.ctl.place import EtcdOptions, connected, place_of
from nvrx_launcher.ctl.screen import Screen, as_data
from nvrx_launcher.ctl.text_rounds import why as story_lines

_TAIL_BYTES = 256 * 1024
_OF_LOGS = ("history.jsonl", "summary.txt", "etcd.log")
_PACKAGES = ("nvrx-async", "torch", "grpcio", "aetcd", "anyio", "orjson", "protobuf", "nvidia-nccl-cu12")


async def dump(options: EtcdOptions, run_id: str, screen: Screen, *, path: str | None) -> int:
    """Write the archive and name it."""
    place = await place_of(options, run_id)
    async with connected(options, place.endpoints) as client:
        job = JobClient(client, run_id)
        status = await job.status(live=False)
        held = await pages(client, job_scope(run_id))
        story = await job.why()
        folders = [Path(folder) for folder in await job.log_folders()]
        events = [as_data("JobEvent", event) async for event in job.events()]
    target = Path(path or f"nvrx-{run_id}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    plain = Screen("table", screen.palette, terminal=False, width=100, rows=None, now=screen.now)
    parts = {
        "status.json": _json(as_data("JobStatus", status)),
        "why.json": _json(as_data("Why", story)),
        "why.txt": blanked("\n".join(story_lines(story, plain))).encode(),
        "events.jsonl": b"\n".join(orjson.dumps(blanked_data(event)) for event in events),
        "etcd.jsonl": b"\n".join(_key(item) for item in held),
        "versions.json": _json(_versions()),
    }
    try:
        count, size = await anyio.to_thread.run_sync(_write, target, run_id, parts, folders)
    except OSError as error:
        raise NothingFoundError(
            f"{target} cannot be written: {error.strerror}", "name another file: -f FILE"
        ) from error
    screen.lines([f"{target}: {count} files, {size} bytes; look through it before you send it"])
    return 0


def _key(item: KeyValue) -> bytes:
    try:
        value = blanked_data(orjson.loads(item.value))
    except orjson.JSONDecodeError:
        value = f"{len(item.value)} bytes that are no JSON"
    about = {
        "key": item.key,
        "mod_revision": item.mod_revision,
        "version": item.version,
        "leased": bool(item.lease),
    }
    return orjson.dumps({**about, "value": value})


def _json(value: Any) -> bytes:
    return orjson.dumps(blanked_data(value), option=orjson.OPT_INDENT_2)


def _versions() -> dict[str, str]:
    found = {"python": sys.version, "system": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _write(target: Path, run_id: str, parts: Mapping[str, bytes], folders: list[Path]) -> tuple[int, int]:
    count = 0
    with tarfile.open(target, "w:gz") as archive:
        for name, data in [*parts.items(), *_from_logs(folders)]:
            about = tarfile.TarInfo(f"nvrx-{run_id}/{name}")
            about.size, about.mtime, about.mode = len(data), int(time.time()), 0o600
            archive.addfile(about, io.BytesIO(data))
            count += 1
    return count, target.stat().st_size


def _from_logs(folders: list[Path]) -> Iterator[tuple[str, bytes]]:
    """The agents' own files, not the ranks' output: that may hold anything."""
    for number, folder in enumerate(dict.fromkeys(folders)):
        names = [folder / name for name in _OF_LOGS] + sorted(folder.glob("agent-*.log"))
        for path in names:
            if path.is_file():
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
                    text = file.read().decode("utf-8", "replace")
                yield f"logs-{number}/{path.name}", blanked_lines(text).encode()
