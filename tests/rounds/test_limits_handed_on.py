"""What a round taught goes into the next one, and from there into every assignment."""

from __future__ import annotations

from rounds_kit import UTC, seat

from nvrx_async.job.records import IMPORTS, LIMITS, STOP, Assignment, Fault, Phase, Round
from nvrx_async.rounds.events import Now, RanksGone
from nvrx_async.rounds.limits import handed_on, with_agreed_limits
from nvrx_async.rounds.own import OwnRanks
from nvrx_async.rounds.seating import in_round

TORCH = {"torch": ["/lib/torch/__init__.py", ""]}
SEATED = Assignment(0, seat("a", 0), 2, 1, "10.0.0.1", 29500)


def test_what_ranks_import_goes_from_reports_into_the_next_rounds_assignments():
    ranks = OwnRanks(SEATED, 1)
    ranks.note(RanksGone(0, (), imports=TORCH), Now(1.0, UTC))
    report = Fault("a", "a-1", "host-a", (), extra=ranks.as_extra(Now(1.0, UTC)))
    extra = with_agreed_limits({STOP: {}, "colour": "red"}, [Fault("b", "b-1", "h", ()), report])
    assert extra == {"colour": "red", IMPORTS: TORCH}
    following = Round(1, Phase.RUNNING, UTC, token="t", extra=extra)
    assert in_round(SEATED, following).extra == {IMPORTS: TORCH}


def test_what_was_told_once_is_handed_on_by_rounds_that_teach_nothing():
    extra = {IMPORTS: TORCH, LIMITS: {"step": 3.0}}
    assert with_agreed_limits(extra, []) == extra
    assert handed_on({**extra, "colour": "red"}) == extra


def test_what_is_no_mapping_is_left_out():
    assert handed_on({IMPORTS: ["torch"], LIMITS: 3}) == {}
    assert with_agreed_limits({}, [Fault("b", "b-1", "h", (), extra={IMPORTS: "x"})]) == {}
