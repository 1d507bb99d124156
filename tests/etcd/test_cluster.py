"""The plan of a cluster, and which etcd may be in one."""

from __future__ import annotations

import pytest

from nvrx_async.etcd import (
    ConfigurationError,
    Credentials,
    UnfitVersionError,
    check_version,
    parse_endpoint,
    plan_cluster,
)


def plan(*texts, job="job"):
    return plan_cluster(tuple(map(parse_endpoint, texts)), job)


def test_peer_ports_follow_from_the_client_ports():
    found = plan("a:2379", "b:2379", "[fe80::1]:2379")
    assert [member.peer_url for member in found.members] == [
        "http://a:2380",
        "http://b:2380",
        "http://[fe80::1]:2380",
    ]
    assert found.quorum == 2
    assert found.initial.count("=http://") == 3


def test_members_on_one_host_do_not_take_each_others_ports():
    found = plan("h:2379", "h:2380", "h:2381")
    assert [member.peer_port for member in found.members] == [2382, 2383, 2384]


def test_every_node_comes_to_the_same_names_whatever_the_order():
    one, other = plan("a:1", "b:1", "c:1"), plan("c:1", "a:1", "b:1")
    assert one.token == other.token
    assert one.names == other.names
    assert len(one.names) == 3


def test_jobs_and_launches_keep_apart():
    assert plan("a:1", "b:1", "c:1", job="x").token != plan("a:1", "b:1", "c:1", job="y").token


def test_nodes_that_know_different_passwords_keep_apart():
    known = [None, Credentials("root", "a"), Credentials("root", "b"), Credentials("other", "a")]
    endpoints = tuple(map(parse_endpoint, ("a:1", "b:1", "c:1")))
    assert len({plan_cluster(endpoints, "job", one).token for one in known}) == 4
    again = plan_cluster(endpoints, "job", Credentials("root", "a"))
    assert again == plan_cluster(endpoints, "job", known[1])


@pytest.mark.parametrize("count", [1, 2, 4, 6, 7])
def test_other_numbers_are_refused_with_the_reason(count):
    with pytest.raises(ConfigurationError, match="threes or fives") as caught:
        plan(*(f"n{number}:2379" for number in range(count)))
    assert caught.value.hint.startswith("name three or five")


def test_no_room_for_peer_ports():
    with pytest.raises(ConfigurationError, match="65536"):
        plan("a:65535", "b:65535", "c:65535")


@pytest.mark.parametrize("version", ["3.4.31", "3.4.40", "3.5.13", "3.5.21", "3.6.0"])
def test_good_versions_say_nothing(version):
    assert check_version(version, "/bin/etcd") == ""


@pytest.mark.parametrize("version", ["3.4.23", "3.5.3", "3.5.12"])
def test_versions_that_can_end_leases_early_are_warned_of(version):
    assert "15247" in check_version(version, "/bin/etcd")


@pytest.mark.parametrize("version", ["3.5.0", "3.5.1", "3.5.2", "3.3.27"])
def test_versions_that_may_not(version):
    with pytest.raises(UnfitVersionError, match=version) as caught:
        check_version(version, "/bin/etcd")
    assert "3.5.13" in caught.value.hint


def test_a_version_that_is_not_told_is_warned_of():
    assert "/bin/etcd" in check_version("garbage", "/bin/etcd")
