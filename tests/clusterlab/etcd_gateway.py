"""etcd's keys, by its own JSON gateway: independent of the client under test."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import Any, NamedTuple

TIMEOUT_S = 5.0


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
    """`url`: of a client listener, http://HOST:PORT. Raises OSError if etcd doesn't answer."""

    def __init__(self, url: str, prefix: str = "") -> None:
        self._url = url.rstrip("/")
        self._prefix = prefix

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def keys(self, prefix: str) -> list[EtcdKey]:
        """All keys that start with `prefix`, in order."""
        first = (self._prefix + prefix).encode()
        end = first[:-1] + bytes([first[-1] + 1])
        found = self._post("/v3/kv/range", {"key": _text(first), "range_end": _text(end)})
        return [
            EtcdKey(
                base64.b64decode(kv["key"]).decode()[len(self._prefix) :],
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
        self._post("/v3/kv/put", {"key": _text((self._prefix + key).encode()), "value": _text(value)})

    def revision(self) -> int:
        """Grows with each change of any key."""
        return int(self._post("/v3/kv/range", {"key": _text(b"\0")})["header"]["revision"])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
