"""Where coordinators say that they are alive: `/coordinators/<kind>/ids/<id>`, under a lease.

DESIGN section 2; `<kind>` is `group` or `transaction`.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from tidelog.metadata.entries import InvalidEntryError

GROUP: Final = "group"
_KEY: Final = re.compile(r"/coordinators/([^/]+)/ids/(\d+)")
_VERSION: Final = 1


def coordinator_ids(kind: str) -> str:
    """The prefix of all of a kind."""
    return f"/coordinators/{kind}/ids/"


class CoordinatorEntry(NamedTuple):
    """`rpc_address` is the "host:port" that brokers call, "" while the coordinator serves nothing."""

    kind: str
    coordinator_id: int
    rpc_address: str = ""

    @property
    def key(self) -> str:
        return f"{coordinator_ids(self.kind)}{self.coordinator_id}"

    def encode(self) -> bytes:
        return json.dumps(
            {"version": _VERSION, "rpc_address": self.rpc_address}, separators=(",", ":")
        ).encode()


def decode_coordinator(key: str, value: bytes) -> CoordinatorEntry:
    """Raises InvalidEntryError."""
    match = _KEY.fullmatch(key)
    try:
        if match is not None:
            return CoordinatorEntry(match[1], int(match[2]), str(json.loads(value)["rpc_address"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidEntryError(f"{key} holds {value[:200]!r}: {error!r}") from error
    raise InvalidEntryError(f"{key} is not the key of a coordinator")
