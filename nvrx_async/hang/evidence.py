"""What can be learned of hung ranks before they are killed, within a time limit that holds whatever they do.

Python stacks by `faulthandler`, on the signal that the client registered (written by C code in the rank, so the
GIL may be held by anybody); by `py-spy` where it is installed and the rank could not be asked; state and wait
channel of each thread from /proc; what the rank reported last; the dump of torch's flight recorder where it is on.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import orjson

from nvrx_async.aside import aside
from nvrx_async.faults.culprit import Frame, RankState, as_extra
from nvrx_async.hang.flight_recorder import dump
from nvrx_async.hang.outside import STOPPED, Sample
from nvrx_async.hang.store_contact import store_trouble
from nvrx_async.ranklink.page import PageView, ThreadView

LOOKS_AFTER_S = (0.03, 0.1, 0.3, 0.5)
"""When the stacks are read after they were asked for: a rank announces to nobody that it has written them."""

PY_SPY_WITHIN_S = 1.5
_STACK_BYTES = 256 * 1024
_THREADS_SHOWN = 64
_TICKS = os.sysconf("SC_CLK_TCK")
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_PY_SPY_FRAME = re.compile(r"^    (?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asked:
    """A rank to be looked at. `page` is None where its page cannot be read; `folder` takes what is found.

    `late_s`: how long after its deadline it was found hung. `store_port`: where the ranks of the round meet.
    `recorder`: where its flight recorder is, by `flight_recorder.places`.
    """

    rank: int
    node: str
    pid: int
    page: PageView | None
    folder: Path
    hung: bool
    late_s: float = 0.0
    store_port: int = 0
    recorder: Mapping[str, str] = field(default_factory=dict)


async def gather(asked: Sequence[Asked], within_s: float) -> dict[int, RankState]:
    """State of each rank, by rank; what is not there in time is left out. Writes `hang.json` for each."""
    py_spy: str | None = None
    found: dict[int, RankState] = {}
    dumps: dict[int, str] = {}

    async def one(rank: Asked) -> None:
        found[rank.rank] = await _state(rank, py_spy)

    async def collectives(rank: Asked) -> None:
        dumps[rank.rank] = await dump(rank.rank, rank.pid, rank.folder, rank.recorder)

    for rank in asked:  # what /proc and the page say costs nothing: a rank has that at least
        found[rank.rank] = _reported(rank, ())
    with anyio.move_on_after(within_s):
        py_spy = await aside(shutil.which, "py-spy")
        async with anyio.create_task_group() as tasks:
            for rank in asked:
                tasks.start_soon(one, rank)
                tasks.start_soon(collectives, rank)
    with anyio.move_on_after(within_s):
        await aside(_write, asked, found, dumps)
    return found


async def _state(rank: Asked, py_spy: str | None) -> RankState:
    """One rank, asked by the way that works for it."""
    text = await _by_signal(rank)
    frames = _own_frames(text, rank.page) if text and rank.page else ()
    if not frames and py_spy is not None and rank.pid > 0:
        frames = await _by_py_spy(py_spy, rank)
    state = _reported(rank, frames)
    trouble = await aside(store_trouble, rank.rank, rank.pid, rank.store_port, frames)
    return replace(state, store=trouble)


def _reported(rank: Asked, frames: tuple[Frame, ...]) -> RankState:
    """What the page and /proc say, with the frames."""
    page, states = rank.page, thread_states(rank.pid)
    state = states[0] if states else ""
    if page is None:
        return RankState(rank.rank, rank.node, rank.hung, state=state, frames=frames, ended=not states)
    spoken = page.principal
    sections = sorted(
        (one for one in page.sections if one.name != "step"), key=lambda one: (one.runs, one.start_s)
    )
    inner = sections[-1] if sections else None
    last_s = spoken.last_s if spoken else page.hello_s
    return RankState(
        rank=rank.rank,
        node=rank.node,
        hung=rank.hung,
        hello=page.is_ready,
        done=page.done_s is not None,
        ended=not states,
        step=page.step,
        section=inner.name if inner else None,
        section_s=page.at_s - inner.start_s if inner else 0.0,
        silent_s=page.at_s - last_s if last_s is not None else 0.0,
        state=state,
        frames=frames,
    )


async def _by_signal(rank: Asked) -> str:
    """The stacks that the rank writes itself, "" if it cannot be asked or does not answer."""
    number = rank.page.stacks_signal if rank.page else 0
    if not number or rank.pid <= 0 or set(thread_states(rank.pid)) <= {STOPPED}:
        return ""
    path = rank.folder / "stacks.txt"
    before = await aside(_size, path)
    try:
        os.kill(rank.pid, number)
    except (ProcessLookupError, PermissionError):
        return ""
    text = ""
    for delay_s in LOOKS_AFTER_S:
        await anyio.sleep(delay_s)
        text, earlier = await aside(_read_from, path, before), text
        if text and text == earlier:
            break
    return text


async def _by_py_spy(program: str, rank: Asked) -> tuple[Frame, ...]:
    """The training thread's frames, or the main one's, as py-spy sees them from outside; it does not stop the rank."""
    output = b""
    command = [program, "dump", "--nonblocking", "--pid", str(rank.pid)]
    with anyio.move_on_after(PY_SPY_WITHIN_S), contextlib.suppress(OSError):
        for names in (["--full-filenames"], []):  # early versions have short names only
            done = await anyio.run_process([*command, *names], check=False, start_new_session=True)
            output = done.stdout
            if done.returncode == 0:
                break
    text = output.decode("utf-8", "replace")
    if text:
        await aside(_append, rank.folder / "stacks.txt", text)
    trains = _trains(rank.page) if rank.page is not None else None
    numbers = (*((trains.native_id,) if trains is not None else ()), rank.pid)
    parts = (text.partition(f"Thread {number} ")[2].partition("\nThread ")[0] for number in numbers)
    shown = next((part for part in parts if part), "")
    return tuple(
        Frame(_absolute(one["file"]), int(one["line"]), one["function"])
        for one in _PY_SPY_FRAME.finditer(shown)
    )


def _absolute(file: str) -> str:
    """A short name is told from the root of its package on; who waits is known by the folders above a file."""
    return file if file.startswith(("/", "<")) else f"/{file}"


def _own_frames(text: str, page: PageView) -> tuple[Frame, ...]:
    """Frames of the thread that trains, where another than the main one does and still lives; else of the main one."""
    trains = _trains(page)
    frames = _frames_of(text, trains.ident) if trains is not None else ()
    return frames or _frames_of(text, page.main_ident)


def _trains(page: PageView) -> ThreadView | None:
    """The thread that has reported steps, until training is over."""
    spoken = page.principal
    return spoken if spoken is not None and spoken.step is not None and page.done_s is None else None


def _frames_of(text: str, ident: int) -> tuple[Frame, ...]:
    """Frames of one thread in the last dump of faulthandler's, innermost first."""
    heads = list(_THREAD.finditer(text))
    for place, head in reversed(list(enumerate(heads))):
        if int(head["ident"], 16) == ident:
            end = heads[place + 1].start() if place + 1 < len(heads) else len(text)
            return tuple(
                Frame(one["file"], int(one["line"]), one["function"])
                for one in _FRAME.finditer(text, head.end(), end)
            )
    return ()


# /proc ------------------------------------------------------------------------------------------------------


def sample(pid: int, at_s: float, output_s: float) -> Sample:
    """A rank from outside: its CPU time with that of its children, and the states of its threads."""
    return Sample(at_s, _cpu_s(pid), "".join(sorted(thread_states(pid))), output_s)


def thread_states(pid: int) -> list[str]:
    """State of each thread (proc_pid_stat(5)), the main thread's first; none if the process is gone."""
    states = [fields[0] for _, fields in _threads(pid)]
    return [] if states[:1] == ["Z"] else states


def _threads(pid: int) -> list[tuple[int, list[str]]]:
    found = []
    try:
        names = sorted(os.listdir(f"/proc/{pid}/task"), key=int) if pid > 0 else []  # noqa: PTH208 - at every look
    except OSError:
        return []
    for name in names:
        with contextlib.suppress(OSError):
            found.append((int(name), _stat(f"/proc/{pid}/task/{name}/stat")))
    return found


def _stat(path: str) -> list[str]:
    """Fields from the third on, counted behind the command, which may hold anything."""
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - /proc, at every look
        return file.read().rpartition(")")[2].split()


def _cpu_s(pid: int) -> float:
    """CPU time of a process and all below it; children that were waited for are in their parent's account."""
    total, waiting = 0.0, [pid]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            fields = _stat(f"/proc/{one}/stat")
            total += sum(map(int, fields[11:15])) / _TICKS
            with open(f"/proc/{one}/task/{one}/children", encoding="ascii") as file:  # noqa: PTH123 - /proc
                waiting += map(int, file.read().split())
    return total


def _kernel(pid: int) -> list[dict[str, str]]:
    """Name, state, wait channel and, for root, kernel stack of each thread."""
    found = []
    for tid, fields in _threads(pid)[:_THREADS_SHOWN]:
        about = {"tid": str(tid), "state": fields[0]}
        for name in ("comm", "wchan", "stack"):
            with contextlib.suppress(OSError):
                about[name] = (
                    Path(f"/proc/{pid}/task/{tid}/{name}")
                    .read_text(encoding="ascii", errors="replace")
                    .strip()
                )
        found.append(about)
    return found


# Files, in threads ------------------------------------------------------------------------------------------


def _write(asked: Sequence[Asked], found: dict[int, RankState], dumps: dict[int, str]) -> None:
    for rank in asked:
        about = {
            **as_extra(found[rank.rank]),
            "late_s": round(rank.late_s, 4),
            "pid": rank.pid,
            "flight_recorder": dumps.get(rank.rank) or None,
            "threads": _kernel(rank.pid),
        }
        with contextlib.suppress(OSError):  # the state itself travels with the report
            (rank.folder / "hang.json").write_bytes(orjson.dumps(about, option=orjson.OPT_INDENT_2))


def _append(path: Path, text: str) -> None:
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(text)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_from(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(_STACK_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
