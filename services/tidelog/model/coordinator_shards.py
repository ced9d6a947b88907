"""The shards of the coordinators, and the mapping of names to shards.

A shard is one partition of `__consumer_offsets`, `__transaction_state` or `__share_group_state`. The leader
of the partition receives the requests for the shard, and the owner of the shard answers them.
"""

from __future__ import annotations

import re
import struct
from enum import StrEnum
from operator import mul
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.model.topics import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    topic_id_text,
)

_SHARE_PARTITION_KEY: Final = re.compile(r".+:[A-Za-z0-9_-]{22}:[0-9]{1,10}", re.DOTALL)
_INT_MIN: Final = -(1 << 31)
_HASHED_AT_ONCE: Final = 256
_POWERS_OF_31: Final = tuple(pow(31, power, 1 << 32) for power in reversed(range(_HASHED_AT_ONCE)))
"""With these, a long name needs no loop over its characters."""


class ShardKind(StrEnum):
    """The kinds of shards. The value is the `<kind>` of `/coordinators/<kind>/...` in the metadata store."""

    GROUP = "group"
    TRANSACTION = "transaction"
    SHARE = "share"

    @property
    def topic(self) -> str:
        return _TOPICS[self]


_TOPICS: Final = {
    ShardKind.GROUP: GROUP_METADATA_TOPIC,
    ShardKind.TRANSACTION: TRANSACTION_STATE_TOPIC,
    ShardKind.SHARE: SHARE_GROUP_STATE_TOPIC,
}


class ShardId(NamedTuple):
    kind: ShardKind
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.kind.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.kind.value}-{self.partition}"


def shard_for(kind: ShardKind, name: str, partition_count: int) -> ShardId:
    """Returns the shard of a group id, a transactional id or the key of a share partition: Kafka's
    `Utils.abs(name.hashCode()) % partitions`.
    """
    return ShardId(kind, _absolute(java_hash_code(name)) % partition_count)


def share_partition_key(group_id: str, topic_id: UUID, partition: int) -> str:
    """Returns the name by which the shard of a share partition is found (Kafka's `SharePartitionKey`)."""
    return f"{group_id}:{topic_id_text(topic_id)}:{partition}"


class ShareShards:
    """The shards of the share partitions of one group, whose id is in the key of each of them."""

    def __init__(self, group_id: str) -> None:
        self._group_code = java_hash_code(f"{group_id}:")

    def shard_for(self, topic_id: UUID, partition: int, partition_count: int) -> ShardId:
        """Returns the shard of the `share_partition_key` of the group and this partition."""
        code = java_hash_code(f"{topic_id_text(topic_id)}:{partition}", self._group_code)
        return ShardId(ShardKind.SHARE, _absolute(code) % partition_count)


def is_share_partition_key(text: str) -> bool:
    """Returns whether `text` has the form of a `share_partition_key`."""
    return _SHARE_PARTITION_KEY.fullmatch(text) is not None


def java_hash_code(text: str, code: int = 0) -> int:
    """Returns Java's `String.hashCode`, which is computed over UTF-16 units, as an int32. `code` is that of
    the text before `text`.
    """
    encoded = text.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    for begin in range(0, len(units), _HASHED_AT_ONCE):
        part = units[begin : begin + _HASHED_AT_ONCE]
        powers = _POWERS_OF_31[_HASHED_AT_ONCE - len(part) :]
        code = (code * pow(31, len(part), 1 << 32) + sum(map(mul, part, powers))) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code


def _absolute(number: int) -> int:
    """Returns Kafka's `Utils.abs`. The only int32 without a positive counterpart becomes 0."""
    return 0 if number == _INT_MIN else abs(number)
