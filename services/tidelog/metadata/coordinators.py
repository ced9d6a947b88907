"""Keys and values of coordinators and of the shards that they own.

A coordinator is alive while `/coordinators/<kind>/ids/<id>` exists. It owns the shard n while
`/coordinators/<kind>/shards/<n>/owner` holds its id. Both keys have a lease.
`/coordinators/<kind>/shards/<n>/epoch` has no lease and holds the shard epoch. `<kind>` is `group`,
`transaction` or `share`.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from tidelog.metadata.entries import InvalidEntryError
from tidelog.model.coordinator_shards import ShardId, ShardKind

GROUP: Final = ShardKind.GROUP.value
COORDINATORS: Final = "/coordinators/"
_SHARD_KEY: Final = re.compile(r"/coordinators/(group|transaction|share)/shards/(\d+)/(owner|epoch)")
_KEY: Final = re.compile(r"/coordinators/([^/]+)/ids/(\d+)")
_VERSION: Final = 1


def coordinator_ids(kind: str) -> str:
    """Returns the prefix of the keys of all coordinators of a kind."""
    return f"/coordinators/{kind}/ids/"


class CoordinatorEntry(NamedTuple):
    """A coordinator that is alive. `rpc_address` is its gRPC address ("host:port"), or "" if it serves no
    calls.
    """

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
    """Returns the entry at a coordinator's key. Raises InvalidEntryError."""
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
    """True for the key of the owner, False for the key of the shard epoch."""


def parse_shard_key(key: str) -> ShardKey | None:
    """Returns the parts of a shard's key, or None if the key is of another kind."""
    match = _SHARD_KEY.fullmatch(key)
    if match is None:
        return None
    return ShardKey(ShardId(ShardKind(match[1]), int(match[2])), match[3] == "owner")


def encode_owner(coordinator_id: int) -> bytes:
    return json.dumps({"version": _VERSION, "coordinator_id": coordinator_id}, separators=(",", ":")).encode()


def decode_owner(key: str, value: bytes) -> int:
    """Returns the coordinator id of a shard's owner. Raises InvalidEntryError."""
    try:
        return int(json.loads(value)["coordinator_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidEntryError(f"{key} holds {value[:200]!r}: {error!r}") from error


def encode_epoch(epoch: int) -> bytes:
    return b"%d" % epoch


def decode_epoch(key: str, value: bytes) -> int:
    """Returns the shard epoch. Raises InvalidEntryError."""
    try:
        return int(value)
    except ValueError as error:
        raise InvalidEntryError(f"{key} holds {value[:200]!r}: {error!r}") from error
