"""How nodes are named: by id, so that two agents of one host are told apart."""

from __future__ import annotations

import pytest

from nvrx_async.job.where import where


@pytest.mark.parametrize(
    ("node_id", "host", "name"),
    [
        ("h1", "h1", "h1"),
        ("h1-2", "h1", "h1-2 (host h1)"),
        ("b", "h1", "b (host h1)"),
        ("b", "", "b"),
        ("b", None, "b"),
        (None, "h1", "h1"),
        (None, None, "an unknown node"),
    ],
)
def test_a_node_is_named_by_its_id_and_the_host_beside_it_where_it_differs(node_id, host, name):
    assert where(node_id, host) == name
