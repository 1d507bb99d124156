"""Nodes that take no seat, and until when. Pure."""

from __future__ import annotations

from nvrx_async.job.errors import RecordError
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import Exclusion
from nvrx_async.rounds.mirror import Mirror

BY_POLICY = "policy"
"""Who barred a node that no person did: it was to blame too often."""


def exclusions(mirror: Mirror, keys: AttemptKeys, utc: str) -> dict[str, Exclusion]:
    """The exclusions that count now, by node id.

    An end is compared with the coordinator's own wall clock: whoever is let in a little early or late takes part
    in no race. What this version cannot read excludes nobody.
    """
    found = {}
    for held in mirror.under(keys.exclusions):
        try:
            exclusion = mirror.record(Exclusion, held.key)
        except RecordError:
            continue
        if exclusion is None:
            continue
        if not exclusion.until_utc or exclusion.until_utc > utc:
            found[held.key[len(keys.exclusions.key) :]] = exclusion
    return found
