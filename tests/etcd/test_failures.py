"""What an answer that is no answer of etcd is taken for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from nvrx_async.etcd.errors import PermissionDeniedError, RequestRefusedError
from nvrx_async.etcd.failures import Verdict, classify
from nvrx_async.etcd.wire import grpc


@dataclass(frozen=True)
class CallFailed:
    """As `grpc.aio.AioRpcError`, of which only these are read."""

    status: grpc.StatusCode
    text: str

    def code(self) -> grpc.StatusCode:
        return self.status

    def details(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("status", "number"), [(grpc.StatusCode.UNIMPLEMENTED, 404), (grpc.StatusCode.PERMISSION_DENIED, 403)]
)
def test_a_web_server_is_not_taken_for_an_etcd_that_refuses(status: grpc.StatusCode, number: int) -> None:
    text = f"Received http2 header with status: {number}"
    failure = classify(CallFailed(status, text), "proxy:2379")
    assert failure.verdict is Verdict.REFUSED
    assert isinstance(failure.error, RequestRefusedError)
    assert not isinstance(failure.error, PermissionDeniedError)
    assert "no etcd" in failure.error.cause
    assert "client port" in failure.error.hint


def test_a_proxy_whose_etcd_is_away_is_waited_for() -> None:
    failure = classify(
        CallFailed(grpc.StatusCode.UNAVAILABLE, "Received http2 header with status: 503"), "proxy:2379"
    )
    assert failure.error is None
