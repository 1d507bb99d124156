"""What an etcd holds and counts, read from beside the product: over its JSON gateway and its metrics page."""

from __future__ import annotations

import base64
import http.client
import json
import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 10.0
WATCH_S = 30.0
PUTS = "etcd_debugging_mvcc_put_total"
PROPOSALS = "etcd_server_proposals_committed_total"


@dataclass(frozen=True)
class Item:
    """A key's value, decoded, its lease, 0 for none, and the revision at which it was created."""

    value: dict[str, Any]
    lease: int
    created: int


class EtcdView:
    """One endpoint, `host:port`, without TLS."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def job(self, run_id: str) -> dict[str, Item]:
        """All keys of a job, without the prefix they share."""
        prefix = f"/nvrx/v1/{run_id}/"
        return {key.removeprefix(prefix): item for key, item in self.items(prefix).items()}

    def items(self, prefix: str) -> dict[str, Item]:
        last = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        answer = self._call("/v3/kv/range", {"key": _coded(prefix), "range_end": _coded(last)})
        return {
            base64.b64decode(pair["key"]).decode(): Item(
                json.loads(base64.b64decode(pair["value"])),
                int(pair.get("lease", 0)),
                int(pair["create_revision"]),
            )
            for pair in answer.get("kvs", [])
        }

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Write a key as a person would."""
        self._call("/v3/kv/put", {"key": _coded(key), "value": _coded(json.dumps(value))})

    def next_deletion(self, prefix: str) -> AbstractContextManager[Callable[[], None]]:
        """Watch from now on; what is given returns when a key has been deleted."""
        return self._next(prefix, b"DELETE")

    def next_change(self, prefix: str) -> AbstractContextManager[Callable[[], None]]:
        """Watch from now on; what is given returns when a key has been written or deleted."""
        return self._next(prefix, b'"events"')

    @contextmanager
    def _next(self, prefix: str, wanted: bytes) -> Iterator[Callable[[], None]]:
        connection = http.client.HTTPConnection(self.endpoint, timeout=WATCH_S)
        with closing(connection):
            last = prefix[:-1] + chr(ord(prefix[-1]) + 1)
            request = {"create_request": {"key": _coded(prefix), "range_end": _coded(last)}}
            connection.request("POST", "/v3/watch", json.dumps(request))
            answer = connection.getresponse()
            assert b'"created":true' in answer.readline()

            def wait() -> None:
                while wanted not in answer.readline():
                    pass

            yield wait

    def revision(self) -> int:
        """The store's revision: every write moves it."""
        answer = self._call("/v3/kv/range", {"key": _coded("/"), "count_only": True})
        return int(answer["header"]["revision"])

    def leases(self) -> set[int]:
        # The name under which etcd 3.4 has it; 3.5 answers there too.
        return {int(lease["ID"]) for lease in self._call("/v3/lease/leases", {}).get("leases", [])}

    def revoke(self, lease: int) -> None:
        """End a lease, and all keys on it."""
        self._call("/v3/lease/revoke", {"ID": lease})

    def metric(self, name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", self._metrics(), re.MULTILINE)
        assert found, f"etcd counts no {name}"
        return float(found[1])

    def messages(self) -> Counter[str]:
        """How many messages etcd got from clients, by method."""
        found: Counter[str] = Counter()
        for match in re.finditer(
            r"^grpc_server_msg_received_total\{(.*)\} (\S+)$", self._metrics(), re.MULTILINE
        ):
            method = re.search(r'grpc_method="(\w+)"', match[1])
            if method:
                found[method[1]] += int(float(match[2]))
        return found

    def _metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.endpoint}/metrics", timeout=TIMEOUT_S) as page:
            return str(page.read().decode())

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"http://{self.endpoint}{path}", data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
