"""A small agent for tests that kill or freeze one: starts shell lines as ranks and renews its deadline."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from nvrx_launcher.keeper.linux import boottime_s
from nvrx_launcher.keeper_link import Keeper
from nvrx_launcher.sweep import MARK
from nvrx_launcher.workers import RankCommand


async def main(tag: str, folder: str, good_for_s: float, lines: list[str]) -> None:
    async with Keeper.start(1, tag) as keeper:
        env = {"PATH": os.environ["PATH"], MARK: tag}
        keeper.good_until(boottime_s() + good_for_s)
        keeper.start_ranks(
            0,
            [
                RankCommand(n, ("sh", "-c", line), env, folder, f"{folder}/{n}.out", f"{folder}/{n}.err")
                for n, line in enumerate(lines)
            ],
        )
        print(keeper.pid, flush=True)
        while True:
            await asyncio.sleep(good_for_s / 10)
            keeper.good_until(boottime_s() + good_for_s)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]))
