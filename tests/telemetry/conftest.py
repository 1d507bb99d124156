"""Fixtures of telemetry tests: collectors, and jobs that send to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import stage as kit
from support.etcd_server import EtcdProcess, etcd_process
from support.otlp_receiver import Receiver, grpc_receiver, http_receiver


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with etcd_process() as server:
        yield server


@pytest.fixture
def job(etcd: EtcdProcess) -> Iterator[kit.Stage]:
    with kit.stage(etcd.endpoint) as made:
        yield made


@pytest.fixture
def alone() -> Iterator[kit.Stage]:
    with kit.stage(None) as made:
        yield made


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with http_receiver() as made:
        yield made


@pytest.fixture
def grpc_collector() -> Iterator[Receiver]:
    with grpc_receiver() as made:
        yield made
