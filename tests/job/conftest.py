"""An etcd for the session that holds recorded jobs, and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from support.etcd_server import EtcdProcess, etcd_process

from nvrx_async.etcd import EtcdClient, EtcdConfig
from nvrx_async.etcd.wire import grpc

grpc.aio.init_grpc_aio()  # one poller for all tests: else it comes and goes with the channels


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdProcess]:
    with etcd_process() as server:
        yield server


@pytest_asyncio.fixture
async def client(etcd: EtcdProcess) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(EtcdConfig((etcd.endpoint,))) as client:
        yield client
