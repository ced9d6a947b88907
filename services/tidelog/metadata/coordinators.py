"""Where coordinators say that they are alive, `/coordinators/<kind>/ids/<id>`, and which shards are theirs,
`/coordinators/<kind>/shards/<n>/owner`, both under a lease; `.../epoch` beside the owner has none.

DESIGN section 2; `<kind>` is `group` or `transaction`.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from tidelog.metadata.entries import InvalidEntryError
from tidelog.model.coordinator_shards import ShardId, ShardKind

GROUP: Final = ShardKind.GROUP.value
COORDINATORS: Final = "/coordinators/"
_SHARD_KEY: Final = re.compile(r"/coordinators/(group|transaction)/shards/(\d+)/(owner|epoch)")
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


def shard_owner(shard: ShardId) -> str:
    return f"{COORDINATORS}{shard.kind.value}/shards/{shard.partition}/owner"


def shard_epoch(shard: ShardId) -> str:
    return f"{COORDINATORS}{shard.kind.value}/shards/{shard.partition}/epoch"


class ShardKey(NamedTuple):
    shard: ShardId
    is_owner: bool
    """Else it is the epoch's."""


def parse_shard_key(key: str) -> ShardKey | None:
    """None if it is another kind of key."""
    match = _SHARD_KEY.fullmatch(key)
    if match is None:
        return None
    return ShardKey(ShardId(ShardKind(match[1]), int(match[2])), match[3] == "owner")


def encode_owner(coordinator_id: int) -> bytes:
    return json.dumps({"version": _VERSION, "coordinator_id": coordinator_id}, separators=(",", ":")).encode()


def decode_owner(key: str, value: bytes) -> int:
    """The coordinator's id. Raises InvalidEntryError."""
    try:
        return int(json.loads(value)["coordinator_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidEntryError(f"{key} holds {value[:200]!r}: {error!r}") from error


def encode_epoch(epoch: int) -> bytes:
    return b"%d" % epoch


def decode_epoch(key: str, value: bytes) -> int:
    """Raises InvalidEntryError."""
    try:
        return int(value)
    except ValueError as error:
        raise InvalidEntryError(f"{key} holds {value[:200]!r}: {error!r}") from error
