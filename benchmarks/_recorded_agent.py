"""`nvrx-launch` that notes when it sent each renewal of its lease, and when that was told (CLOCK_BOOTTIME, s).

python benchmarks/_recorded_agent.py FILE [arguments of nvrx-launch]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from nvrx_launcher import tenure
from nvrx_launcher.clock import boottime_s
from nvrx_launcher.launch_cli import main


class RecordedSession(tenure.Session):
    """The agent's session, with a witness."""

    def __init__(self, *arguments: Any, on_renewed: Callable[[float], None], **more: Any) -> None:
        def told(sent_at_s: float) -> None:
            with open(sys.argv[1], "a", encoding="ascii") as file:  # noqa: PTH123 - a witness may block for a moment
                file.write(f"{sent_at_s} {boottime_s()}\n")
            on_renewed(sent_at_s)

        super().__init__(*arguments, on_renewed=told, **more)


if __name__ == "__main__":
    tenure.Session = RecordedSession  # type: ignore[misc]  # what the agent takes a lease with
    sys.exit(main(sys.argv[2:]))
