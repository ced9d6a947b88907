"""What consumers of the classic protocol say and are told within JoinGroup and SyncGroup (Kafka's
ConsumerProtocol).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import unpack_from
from typing import Final
from uuid import UUID

from tidelog.group_coordinator.shard_core import ClusterImage
from tidelog.wire.codec import MalformedMessageError, UnsupportedVersionError, record_codec
from tidelog.wire.messages.records.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from tidelog.wire.messages.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.schema import Buffer

_subscription: Final = record_codec(ConsumerProtocolSubscription)
_assignment: Final = record_codec(ConsumerProtocolAssignment)


def read_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """Raises ValueError."""
    try:
        return _subscription.decode(data, newer_as_newest=True)
    except (MalformedMessageError, UnsupportedVersionError) as error:
        raise ValueError("the embedded consumer protocol is malformed") from error


def owned_partitions(
    subscription: ConsumerProtocolSubscription, image: ClusterImage
) -> dict[UUID, frozenset[int]]:
    return _by_id({topic.topic: topic.partitions for topic in subscription.owned_partitions}, image)


def read_assignment(data: Buffer, image: ClusterImage) -> dict[UUID, frozenset[int]]:
    """Raises ValueError, also if it holds what only the assignor of a client understands."""
    if not data:
        return {}
    try:
        assignment = _assignment.decode(data, newer_as_newest=True)
    except (MalformedMessageError, UnsupportedVersionError) as error:
        raise ValueError("the embedded consumer protocol is malformed") from error
    if assignment.user_data:
        raise ValueError("an unsupported custom assignor is in use")
    return _by_id({topic.topic: topic.partitions for topic in assignment.assigned_partitions}, image)


def _by_id(topics: Mapping[str, Iterable[int]], image: ClusterImage) -> dict[UUID, frozenset[int]]:
    return {
        image.topics[name].topic_id: frozenset(partitions)
        for name, partitions in topics.items()
        if name in image.topics and partitions
    }


def encode_assignment(
    owned: Mapping[UUID, Iterable[int]], subscription: Buffer, image: ClusterImage
) -> bytes:
    """In the version of the member's subscription."""
    topics = [
        TopicPartition(image.topic_names[topic_id], sorted(partitions))
        for topic_id, partitions in owned.items()
        if topic_id in image.topic_names
    ]
    topics.sort(key=lambda topic: topic.topic)
    version: int = unpack_from(">h", subscription)[0] if len(subscription) >= 2 else 0
    first, last = ConsumerProtocolAssignment.VERSIONS
    return _assignment.encode(
        ConsumerProtocolAssignment(topics, None), version=min(max(version, first), last)
    )
