"""Which shard of the coordinators a group or a transactional id belongs to (SPEC E1).

A shard is one partition of `__consumer_offsets` or `__transaction_state`: who leads the partition takes the
shard's requests, who owns the shard decides them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from tidelog.model.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition

_INT_MIN: Final = -(1 << 31)


class ShardKind(StrEnum):
    """The value is the `<kind>` of the metadata store's `/coordinators/<kind>/...`."""

    GROUP = "group"
    TRANSACTION = "transaction"

    @property
    def topic(self) -> str:
        return GROUP_METADATA_TOPIC if self is ShardKind.GROUP else TRANSACTION_STATE_TOPIC


class ShardId(NamedTuple):
    kind: ShardKind
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.kind.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.kind.value}-{self.partition}"


def shard_for(kind: ShardKind, name: str, partition_count: int) -> ShardId:
    """The shard of a group id or transactional id: Kafka's `Utils.abs(name.hashCode()) % partitions`."""
    return ShardId(kind, _absolute(java_hash_code(name)) % partition_count)


def java_hash_code(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 units, as int32."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (code * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code


def _absolute(number: int) -> int:
    """As Kafka's `Utils.abs`: the one int32 without a positive counterpart becomes 0."""
    return 0 if number == _INT_MIN else abs(number)
