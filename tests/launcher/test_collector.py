"""What is loaded when an agent starts is left out of garbage collection, as long as it runs."""

from __future__ import annotations

import gc
import threading

from nvrx_launcher.collector import YOUNG, spared_collector


def test_what_is_loaded_is_looked_through_no_more_until_the_agent_ends():
    before = gc.get_threshold()
    with spared_collector():
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold()[0] == YOUNG
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before


def test_cycles_that_are_made_meanwhile_are_still_collected():
    with spared_collector():
        gc.collect()
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1


def test_in_a_thread_of_somebody_else_s_process_the_collector_is_theirs():
    before, seen = gc.get_threshold(), []

    def agent():
        with spared_collector():
            seen.append((gc.get_threshold(), gc.get_freeze_count()))

    thread = threading.Thread(target=agent)
    thread.start()
    thread.join()
    assert seen == [(before, 0)]
