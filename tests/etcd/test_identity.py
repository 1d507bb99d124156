from __future__ import annotations

from types import SimpleNamespace

import pytest

from nvrx_async.etcd import ForeignClusterError
from nvrx_async.etcd.identity import Identity


def header(cluster_id, revision):
    return SimpleNamespace(cluster_id=cluster_id, revision=revision)


def test_the_first_answer_pins_the_cluster():
    identity = Identity()
    identity.admit(header(7, 10), "a:1")
    identity.admit(header(7, 12), "b:1", at_least=10)
    assert (identity.cluster_id, identity.revision) == (7, 12)
    with pytest.raises(ForeignClusterError, match="another cluster"):
        identity.admit(header(8, 20), "c:1")
    assert identity.revision == 12


def test_a_linearizable_answer_may_not_go_back_but_another_may():
    identity = Identity()
    identity.admit(header(7, 10), "a:1")
    identity.admit(header(7, 9), "follower:1")
    with pytest.raises(ForeignClusterError, match="lost its data"):
        identity.admit(header(7, 9), "a:1", at_least=10)
