"""Reads etcd's keys with plain gRPC calls, independently of the client under test.

etcd's JSON gateway cannot be used: it refuses certificates with a common name when etcd knows users.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import grpc

from tidelog.metadata.etcd.generated import kv_pb2, rpc_pb2
from tidelog.metadata.etcd.generated import rpc_pb2_grpc as stubs

TIMEOUT_S = 5.0
T = TypeVar("T")


class EtcdKey(NamedTuple):
    key: str
    value: bytes
    mod_revision: int
    create_revision: int
    lease: int

    @property
    def json(self) -> Any:
        return json.loads(self.value)


class EtcdGateway:
    """`url` is a client listener, https://HOST:PORT. The methods raise OSError if etcd does not answer.

    `certificate` is a directory with the files ca.crt, tls.crt and tls.key.
    """

    def __init__(self, url: str, certificate: Path) -> None:
        self._target = urlsplit(url).netloc
        self._credentials = grpc.ssl_channel_credentials(
            (certificate / "ca.crt").read_bytes(),
            (certificate / "tls.key").read_bytes(),
            (certificate / "tls.crt").read_bytes(),
        )

    def _channel(self) -> grpc.Channel:
        # Otherwise a connection of another certificate's channel may be used.
        options = (("grpc.use_local_subchannel_pool", 1),)
        return grpc.secure_channel(self._target, self._credentials, options)

    def _call(self, ask: Callable[[stubs.KVStub], T]) -> T:
        with self._channel() as channel:
            try:
                return ask(stubs.KVStub(channel))
            except grpc.RpcError as error:
                raise OSError(f"etcd at {self._target}: {error}") from error

    def keys(self, prefix: str) -> list[EtcdKey]:
        """Returns all keys that start with `prefix`, in order."""
        request = rpc_pb2.RangeRequest(key=prefix.encode(), range_end=_after(prefix))
        found = self._call(lambda kv: kv.Range(request, timeout=TIMEOUT_S))
        return [
            EtcdKey(kv.key.decode(), kv.value, kv.mod_revision, kv.create_revision, kv.lease)
            for kv in found.kvs
        ]

    def get(self, key: str) -> EtcdKey | None:
        return next((found for found in self.keys(key) if found.key == key), None)

    def put(self, key: str, value: bytes) -> None:
        request = rpc_pb2.PutRequest(key=key.encode(), value=value)
        self._call(lambda kv: kv.Put(request, timeout=TIMEOUT_S))

    def watch(self, prefix: str) -> EtcdWatch:
        """Watches keys from now on. The caller closes the watch or uses it as a context."""
        request = rpc_pb2.WatchCreateRequest(
            key=prefix.encode(), range_end=_after(prefix), start_revision=self.revision() + 1
        )
        return EtcdWatch(self._channel(), request)

    def revision(self) -> int:
        """Returns the revision, which grows with each change of any key."""
        request = rpc_pb2.RangeRequest(key=b"/")
        return int(self._call(lambda kv: kv.Range(request, timeout=TIMEOUT_S)).header.revision)


class EtcdChange(NamedTuple):
    """A `value` of None means that the key was deleted."""

    key: str
    value: bytes | None
    mod_revision: int


class EtcdWatch(threading.Thread):
    """Collects changes in a thread until it is closed or etcd ends."""

    def __init__(self, channel: grpc.Channel, request: rpc_pb2.WatchCreateRequest) -> None:
        super().__init__(name="etcd-watch", daemon=True)
        self.changes: list[EtcdChange] = []
        self._channel = channel
        self._is_closed = threading.Event()
        self._answers = stubs.WatchStub(channel).Watch(self._requests(request))
        self.start()

    def _requests(self, request: rpc_pb2.WatchCreateRequest) -> Iterator[rpc_pb2.WatchRequest]:
        yield rpc_pb2.WatchRequest(create_request=request)
        self._is_closed.wait()  # the watch ends with its stream of requests

    def __enter__(self) -> EtcdWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._answers.cancel()
        self.join(TIMEOUT_S)
        self._channel.close()

    def run(self) -> None:
        try:
            for answer in self._answers:
                for event in answer.events:
                    kv = event.kv
                    value = None if event.type == kv_pb2.Event.DELETE else kv.value
                    self.changes.append(EtcdChange(kv.key.decode(), value, kv.mod_revision))
        except grpc.RpcError:
            return  # closed, or etcd ended


def _after(prefix: str) -> bytes:
    """Returns the first key after those with this prefix."""
    first = prefix.encode()
    return first[:-1] + bytes([first[-1] + 1])
