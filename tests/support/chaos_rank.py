"""A deterministic training without torch, whose ranks note each step they make: what chaos runs.

`chaos_rank.py FOLDER`. The ranks of a round meet at MASTER_PORT; each step they sum one number of each, over sockets,
as an all-reduce does: who is missing makes the others wait. Rank 0 saves. Files of the folder:

    record/<node>.<pid>         a line for the start and for each step, see `record`
    saved/<round>.<step>        state after so many steps, as rank 0 of that round knows it
    based/<round>               from which of them the round went on; made once
    end                         somebody wants the training to end
    result                      steps made, and the state after them

What a rank of an older round saves late is in vain: a round goes on from what the newest round that was based on
something, or its ranks, saved. SIGUSR1 makes a rank raise, SIGUSR2 exit with 1.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

PRIME = (1 << 61) - 1
SAVE_EVERY = 10
STEP_S = 0.03
MEETING_S = 60.0


class AskedToFailError(Exception):
    """Raised on SIGUSR1."""


class Saved(NamedTuple):
    """The state of the training after `step` steps, saved in a round; round -1 is the beginning."""

    round: int
    step: int
    state: int


BEGINNING, NOTHING = Saved(-1, 0, 1), Saved(-1, 0, 0)


# The training -------------------------------------------------------------------------------------------------


def share(step: int, rank: int, state: int) -> int:
    """What a rank gives to the sum of a step: its "gradient", which depends on all that was before."""
    digest = hashlib.sha256(f"{step}/{rank}/{state}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def stepped(state: int, total: int) -> int:
    return (state * 6_364_136_223_846_793_005 + total) % PRIME


def undisturbed(steps: int, world_size: int) -> int:
    """The state after so many steps of a run in which nothing ever happens."""
    state = BEGINNING.state
    for step in range(steps):
        state = stepped(state, sum(share(step, rank, state) for rank in range(world_size)))
    return state


def main() -> None:
    signal.signal(signal.SIGUSR1, _raise)
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(1))
    folder = Path(sys.argv[1])
    note = recorder(folder)
    import nvrx_async  # noqa: PLC0415 - the start is noted first

    with nvrx_async.connect() as rank:
        total = meet(rank.rank, rank.world_size, rank.round)
        base = based_on(folder, rank.round) if rank.rank == 0 else NOTHING
        start, state = total(base.step, end=False)[0], total(base.state, end=False)[0]
        for step in rank.steps(1 << 40, start=start):
            time.sleep(STEP_S)
            wants_end = rank.rank == 0 and (folder / "end").exists()
            gradient, over = total(share(step, rank.rank, state), end=wants_end)
            state = stepped(state, gradient)
            note("step", step)
            if rank.rank == 0 and (over or (step + 1) % SAVE_EVERY == 0):
                save(folder, Saved(rank.round, step + 1, state))
                print(f"saved after {step + 1} steps", flush=True)
            if over:
                if rank.rank == 0:
                    replaced(folder / "result", {"step": step + 1, "state": state, "world": rank.world_size})
                return


def meet(rank: int, size: int, number: int) -> Total:
    """Connect all ranks of the round; what is returned sums a number over all, and says whether one wants the end."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        others = _gather(address, size, number)
        return lambda value, *, end: _lead(others, value, end=end)
    hub = _reached(address, {"round": number, "rank": rank})
    return lambda value, *, end: _follow(hub, value, end=end)


class Total(Protocol):
    """Sums a number over all ranks, and says whether one of them wants the end."""

    def __call__(self, value: int, *, end: bool) -> tuple[int, bool]: ...


class Peer:
    """The other end of a connection: a line a message."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("rb")
        self.close = connection.close
        self._connection = connection

    def tell(self, message: dict[str, int]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def told(self) -> dict[str, int]:
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("Connection closed by peer")
        message: dict[str, int] = json.loads(line)
        return message


def _gather(address: tuple[str, int], size: int, number: int) -> list[Peer]:
    others: dict[int, Peer] = {}
    with socket.create_server(address) as server:
        server.settimeout(MEETING_S)
        while len(others) < size - 1:
            peer = Peer(server.accept()[0])
            hello = peer.told()
            if hello.get("round") == number:
                others[hello["rank"]] = peer
            else:
                peer.close()
    return [others[rank] for rank in sorted(others)]


def _reached(address: tuple[str, int], hello: dict[str, int]) -> Peer:
    deadline_s = time.monotonic() + MEETING_S
    while True:
        try:
            connection = socket.create_connection(address, timeout=2)
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
        else:
            connection.settimeout(None)
            hub = Peer(connection)
            hub.tell(hello)
            return hub


def _lead(others: list[Peer], value: int, *, end: bool) -> tuple[int, bool]:
    told = [other.told() for other in others]
    total = value + sum(one["value"] for one in told)
    end = end or any(one["end"] for one in told)
    for other in others:
        other.tell({"value": total, "end": end})
    return total, end


def _follow(hub: Peer, value: int, *, end: bool) -> tuple[int, bool]:
    hub.tell({"value": value, "end": end})
    told = hub.told()
    return told["value"], bool(told["end"])


# What is saved ------------------------------------------------------------------------------------------------


def based_on(folder: Path, number: int) -> Saved:
    """What round `number` goes on from. It decides once: what older rounds save from then on, nobody reads."""
    bases = [int(path.name) for path in (folder / "based").iterdir() if path.name.isdigit()]
    before = max((one for one in bases if one < number), default=None)
    found = [BEGINNING] if before is None else [Saved(**json.loads((folder / f"based/{before}").read_text()))]
    whole = [path for path in (folder / "saved").glob(f"{before}.*") if path.suffix != ".unfinished"]
    found += [Saved(**json.loads(path.read_text())) for path in whole]
    best = max(found, key=lambda one: one.step)
    replaced(folder / f"based/{number}", best._asdict())
    return best


def save(folder: Path, saved: Saved) -> None:
    replaced(folder / f"saved/{saved.round}.{saved.step}", saved._asdict())


def replaced(path: Path, content: dict[str, int]) -> None:
    """The file is there as a whole or not at all, whenever this process dies."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    unfinished.write_text(json.dumps(content))
    unfinished.rename(path)


# The record ---------------------------------------------------------------------------------------------------


def recorder(folder: Path) -> Callable[[str, int], None]:
    """Notes what happens here: one write each to a file of this process, with the machine's time."""
    node, number = os.environ["NVRX_NODE_ID"], int(os.environ["NVRX_ROUND"])
    rank = int(os.environ["RANK"])
    mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = os.open(folder / f"record/{node}.{os.getpid()}", mode, 0o644)

    def note(what: str, step: int) -> None:
        at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        entry = {"what": what, "round": number, "rank": rank, "step": step, "at_s": at_s}
        os.write(file, json.dumps({**entry, "pid": os.getpid(), "node": node}).encode() + b"\n")

    note("start", -1)
    return note


def _raise(*_: object) -> None:
    # The same error twice in a row, without a step between, would rightly end the job: each has a text of its own.
    letters = "".join(chr(ord("p") + int(digit)) for digit in str(os.getpid()))
    raise AskedToFailError(f"asked for, {letters}")


if __name__ == "__main__":
    main()
