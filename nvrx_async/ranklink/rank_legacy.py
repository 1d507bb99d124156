"""For scripts written for NVIDIA's `RankMonitorClient`: the same calls, said to the agent of `nvrx-launch`.

```python
from nvrx_async.ranklink.rank_legacy import RankMonitorClient
```

Only the names of the calls are NVIDIA's. Beats and sections go where those of `nvrx_async.connect` go and are judged as
they are; limits come from the launch (`--hang-timeout`, `--section-limits`). A call that has nothing to do here says
so. `docs/from-nvrx.md` lists all of them. Standard library only.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from typing import TYPE_CHECKING

from nvrx_async.ranklink.errors import RankMonitorClientError
from nvrx_async.ranklink.page import H_PRINCIPAL
from nvrx_async.ranklink.rank import Connection, Rank, connect

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from nvrx_async.ranklink.rank_sections import Section

__all__ = ["RankMonitorClient", "RankMonitorClientError"]

_TIMEOUTS = "current_timeouts"
_STEP = "step"


class RankMonitorClient:
    """One training process as its agent sees it, by NVIDIA's names. To be used by the thread that trains."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._rank: Rank | None = None
        self._open: dict[str, Section] = {}

    @property
    def is_initialized(self) -> bool:
        """Whether this process is connected to its agent, or would be under `nvrx-launch`."""
        return self._rank is not None

    @property
    def rank(self) -> Rank:
        """The rank as `nvrx_async.connect` gives it, for what has no name there: steps, an agreed stop.

        Raises:
            RankMonitorClientError: before `init_workload_monitoring`.
        """
        if self._rank is None:
            raise RankMonitorClientError(
                "init_workload_monitoring() has not been called, or monitoring was shut down"
            )
        return self._rank

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:  # noqa: ARG002 - NVIDIA's signature
        """Connect to the agent. The first step of a process is apart by itself, whatever `num_warmup_iters` says.

        Raises:
            RankMonitorClientError: it is connected already.
        """
        if self._connection is not None:
            raise RankMonitorClientError("init_workload_monitoring() was called before in this process")
        self._connection = connect()
        self._rank = self._connection.__enter__()

    def shutdown_workload_monitoring(self) -> None:
        """Say that training is over; what this process does then is judged from outside only."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self.end_all_sections()
            self._rank = None
            connection.__exit__(None, None, None)

    def send_heartbeat(self) -> None:
        """Say that the calling thread gets on. Writes into memory, never blocks, never fails for want of an agent."""
        self.rank.heartbeat()

    def start_section(self, section: str) -> None:
        """Open a section; sections may lie inside each other and overlap. One that is open stays as it is."""
        rank = self.rank
        if section in self._open:
            _say_once(
                f"section {section} was started twice without an end between, the second start counts for nothing"
            )
            return
        if section == _STEP:  # who has steps trains, whichever thread had connected
            rank.words[H_PRINCIPAL] = get_ident()
        self._open[section] = rank.section(section).__enter__()

    def end_section(self, section: str) -> None:
        """Close a section. One that is not open stays so."""
        self.rank  # noqa: B018 - raises without a connection
        opened = self._open.pop(section, None)
        if opened is None:
            _say_once(f"section {section} was ended without a start before")
            return
        opened.__exit__(None, None, None)

    def end_all_sections(self) -> None:
        """Close all that are open, the last one first."""
        self.rank  # noqa: B018 - raises without a connection
        while self._open:
            _, opened = self._open.popitem()
            opened.__exit__(None, None, None)

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:  # noqa: ARG002, FBT001, FBT002 - NVIDIA's signature
        """Nothing to do, so it is done: agents learn limits all the time and keep them over restarts. No collective."""
        self.rank  # noqa: B018 - raises without a connection
        return True

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,  # noqa: ARG002 - NVIDIA's signature
        calc_out_of_section: bool = True,  # noqa: ARG002, FBT001, FBT002 - NVIDIA's signature
        skip_if_not_ready: bool = False,  # noqa: ARG002, FBT001, FBT002 - NVIDIA's signature
    ) -> bool:
        """The same for sections."""
        self.rank  # noqa: B018 - raises without a connection
        return True

    def state_dict(self) -> Mapping[str, Any]:
        """What NVIDIA's client gives before it has calculated anything: learned limits are kept by the agents."""
        return {_TIMEOUTS: {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what any client saved. Limits in it are not used, which is said once."""
        if state.get(_TIMEOUTS):
            _say_once(
                "time-outs that a checkpoint of NVIDIA's client holds are not used, agents learn their own"
            )

    def send_workload_control_request(self, req: object) -> None:
        """Not possible from a rank.

        Raises:
            RuntimeError: always, as NVIDIA's without its launcher; it says what to do instead.
        """
        raise RuntimeError(
            f"{req} cannot be asked for by a rank: raise nvrx_async.NonRetryable to end the job, or use "
            "`nvrx stop` and `nvrx exclude` from any machine that reaches its etcd"
        )


@functools.cache
def _say_once(text: str) -> None:
    sys.stderr.write(f"nvrx-async: {text}\n")
