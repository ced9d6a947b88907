"""The record with which an owner marks its beginning in a shard's partition.

Key `29801 int16, "claim"`, value `0 int16, shard_epoch int32, coordinator_id int32`. Kafka's tools skip keys
of types that they don't know. The key is always the same, so compaction keeps the last.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

CLAIM_KEY: Final = struct.pack(">h", 29801) + b"claim"
_VALUE: Final = struct.Struct(">hii")
_VERSION: Final = 0


class ShardClaim(NamedTuple):
    shard_epoch: int
    coordinator_id: int


def encode_claim(claim: ShardClaim) -> bytes:
    return _VALUE.pack(_VERSION, claim.shard_epoch, claim.coordinator_id)


def decode_claim(value: bytes | None) -> ShardClaim | None:
    """None if it is none; a later version's longer value is read too."""
    if value is None or len(value) < _VALUE.size:
        return None
    _, shard_epoch, coordinator_id = _VALUE.unpack_from(value)
    return ShardClaim(shard_epoch, coordinator_id)
