"""When a node has no time for idle processes: while one of its ranks saves or evaluates. Pure.

A page wakes nobody, so the moment of the next look follows from what the page tells of earlier sections of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nvrx_async.ranklink.page import PageView

LOADED = re.compile(r"save|saving|check_?point|ckpt|eval|valid", re.IGNORECASE)
"""Names of sections in which a node is loaded beyond training: disks by a save, all cores by an evaluation."""

LEAST_S = 1.0


def quiet_in_s(views: Iterable[PageView]) -> float:
    """Seconds until it is worth a look whether ranks that save or evaluate have ended that; 0: none does.

    That is when the longest earlier section of the name would be over. One that takes longer, or the first, is
    looked at again after as long as it has been open: the longer it takes, the rarer the looks.
    """
    waits = [0.0]
    for view in views:
        known_s = {one.name: max(one.first_s, one.longest_s) for one in view.names}
        for section in view.sections:
            if LOADED.search(section.name):
                open_s = view.at_s - section.start_s
                left_s = known_s.get(section.name, 0.0) - open_s
                waits.append(max(LEAST_S, left_s if left_s > 0 else open_s))
    return max(waits)
