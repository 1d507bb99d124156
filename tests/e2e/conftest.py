"""Fixtures of whole jobs: an etcd that all share, and a stage of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import stage as kit
from support.etcd_server import EtcdProcess, etcd_process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "e2e" in item.path.parts:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdProcess]:
    """One etcd for all jobs; a test that hurts it makes its own."""
    with etcd_process() as server:
        yield server


@pytest.fixture
def own_etcd() -> Iterator[EtcdProcess]:
    with etcd_process() as server:
        yield server


@pytest.fixture
def job(etcd: EtcdProcess) -> Iterator[kit.Stage]:
    """A stage on the etcd of all."""
    with kit.stage(etcd.endpoint) as made:
        yield made


@pytest.fixture
def alone() -> Iterator[kit.Stage]:
    """A stage without an etcd."""
    with kit.stage(None) as made:
        yield made
