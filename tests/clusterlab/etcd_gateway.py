"""Reads etcd's keys through its JSON gateway, independently of the client under test."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import threading
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

TIMEOUT_S = 5.0
WATCH_S = 300.0


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
    """`url` is a client listener, https://HOST:PORT. Raises OSError if etcd does not answer.

    `certificate` is a directory with the files ca.crt, tls.crt and tls.key.
    """

    def __init__(self, url: str, certificate: Path) -> None:
        self._url = url.rstrip("/")
        self._tls = ssl.create_default_context(cafile=certificate / "ca.crt")
        self._tls.load_cert_chain(certificate / "tls.crt", certificate / "tls.key")

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._tls) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def keys(self, prefix: str) -> list[EtcdKey]:
        """Returns all keys that start with `prefix`, in order."""
        first = prefix.encode()
        end = first[:-1] + bytes([first[-1] + 1])
        found = self._post("/v3/kv/range", {"key": _text(first), "range_end": _text(end)})
        return [
            EtcdKey(
                base64.b64decode(kv["key"]).decode(),
                base64.b64decode(kv.get("value", "")),
                int(kv["mod_revision"]),
                int(kv["create_revision"]),
                int(kv.get("lease", 0)),
            )
            for kv in found.get("kvs", ())
        ]

    def get(self, key: str) -> EtcdKey | None:
        return next((found for found in self.keys(key) if found.key == key), None)

    def put(self, key: str, value: bytes) -> None:
        self._post("/v3/kv/put", {"key": _text(key.encode()), "value": _text(value)})

    def watch(self, prefix: str) -> EtcdWatch:
        """Watches keys from now on. The caller closes the watch or uses it as a context."""
        first = prefix.encode()
        end = first[:-1] + bytes([first[-1] + 1])
        start = self.revision() + 1
        request = {"key": _text(first), "range_end": _text(end), "start_revision": start}
        return EtcdWatch(f"{self._url}/v3/watch", {"create_request": request}, self._tls)

    def revision(self) -> int:
        """Returns the revision, which grows with each change of any key."""
        return int(self._post("/v3/kv/range", {"key": _text(b"\0")})["header"]["revision"])


class EtcdChange(NamedTuple):
    """A `value` of None means that the key was deleted."""

    key: str
    value: bytes | None
    mod_revision: int


class EtcdWatch(threading.Thread):
    """Collects changes in a thread until it is closed or etcd ends."""

    def __init__(self, url: str, body: dict[str, Any], tls: ssl.SSLContext) -> None:
        super().__init__(name="etcd-watch", daemon=True)
        self.changes: list[EtcdChange] = []
        data = json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        self._answer = urllib.request.urlopen(request, timeout=WATCH_S, context=tls)
        self.start()

    def __enter__(self) -> EtcdWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.fp.raw._sock.shutdown(socket.SHUT_RDWR)
        self.join(TIMEOUT_S)

    def run(self) -> None:
        try:
            for line in self._answer:
                for event in json.loads(line).get("result", {}).get("events", ()):
                    kv = event["kv"]
                    is_deleted = event.get("type") == "DELETE"
                    value = None if is_deleted else base64.b64decode(kv.get("value", ""))
                    key = base64.b64decode(kv["key"]).decode()
                    self.changes.append(EtcdChange(key, value, int(kv["mod_revision"])))
        except (OSError, http.client.HTTPException):
            return  # closed, or etcd ended


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
