"""The data that the members of a classic group exchange through the coordinator (protocol type `consumer`).

The sticky assignors add data of their own: `sticky` what a member had, `cooperative-sticky` its generation.
Both are as in Kafka's clients, so that groups of different clients work.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from tidelog.client.core.assignors import Subscriber, assignment_rows
from tidelog.model.topics import TopicPartition
from tidelog.wire.codec import record_codec
from tidelog.wire.malformed import MalformedMessageError
from tidelog.wire.messages.records.consumer_protocol_assignment import ConsumerProtocolAssignment
from tidelog.wire.messages.records.consumer_protocol_assignment import TopicPartition as AssignedTopic
from tidelog.wire.messages.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.records.consumer_protocol_subscription import TopicPartition as OwnedTopic
from tidelog.wire.schema import Buffer

PROTOCOL_TYPE: Final = "consumer"
NO_GENERATION: Final = -1
_GENERATION: Final = struct.Struct(">i")
_SUBSCRIPTION: Final = record_codec(ConsumerProtocolSubscription)
_ASSIGNMENT: Final = record_codec(ConsumerProtocolAssignment)


def encode_subscription(
    strategy: str,
    topics: Iterable[str],
    owned: frozenset[TopicPartition],
    had: frozenset[TopicPartition],
    generation: int,
    rack: str | None,
) -> bytes:
    """Returns the member's subscription for JoinGroup, in the format of one assignor.

    `owned` are the partitions that the member has now. `had` are those that it had in `generation`: an eager
    member gives up its partitions before it joins, and `sticky` returns them to it where it can.
    """
    user_data: bytes | None = None
    if strategy == "sticky" and generation != NO_GENERATION:
        user_data = _encode_sticky(had, generation)
    elif strategy == "cooperative-sticky":
        user_data = _GENERATION.pack(generation)
    return _SUBSCRIPTION.encode(
        ConsumerProtocolSubscription(
            sorted(topics),
            user_data,
            [OwnedTopic(topic, indexes) for topic, indexes in assignment_rows(owned)],
            generation,
            rack,
        )
    )


def decode_subscription(
    strategy: str, member_id: str, instance_id: str | None, metadata: Buffer
) -> Subscriber:
    """Returns a member as the leader's assignor sees it. Raises MalformedMessageError."""
    told = _SUBSCRIPTION.decode(metadata, newer_as_newest=True)
    owned = frozenset(
        TopicPartition(topic.topic, index) for topic in told.owned_partitions for index in topic.partitions
    )
    generation = told.generation_id
    if strategy == "sticky":
        owned, generation = _decode_sticky(bytes(told.user_data or b""))
    elif strategy == "cooperative-sticky" and generation == NO_GENERATION and told.user_data is not None:
        generation = _decode_generation(bytes(told.user_data))
    return Subscriber(member_id, instance_id, frozenset(told.topics), owned, generation, told.rack_id)


def encode_assignment(places: Iterable[TopicPartition]) -> bytes:
    return _ASSIGNMENT.encode(
        ConsumerProtocolAssignment(
            [AssignedTopic(topic, indexes) for topic, indexes in assignment_rows(places)]
        )
    )


def decode_assignment(data: Buffer) -> frozenset[TopicPartition]:
    """Returns the partitions that the leader gave, none for empty data. Raises MalformedMessageError."""
    if not len(data):
        return frozenset()
    told = _ASSIGNMENT.decode(data, newer_as_newest=True)
    return frozenset(
        TopicPartition(topic.topic, index) for topic in told.assigned_partitions for index in topic.partitions
    )


def _encode_sticky(had: frozenset[TopicPartition], generation: int) -> bytes:
    """Encodes Kafka's STICKY_ASSIGNOR_USER_DATA_V1."""
    rows = assignment_rows(had)
    parts = [struct.pack(">i", len(rows))]
    for topic, indexes in rows:
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(indexes)}i", len(name), name, len(indexes), *indexes))
    return b"".join((*parts, _GENERATION.pack(generation)))


def _decode_sticky(data: bytes) -> tuple[frozenset[TopicPartition], int]:
    """Decodes STICKY_ASSIGNOR_USER_DATA_V1, or V0, which has no generation."""
    if not data:
        return frozenset(), NO_GENERATION
    had: set[TopicPartition] = set()
    try:
        (topic_count,) = struct.unpack_from(">i", data, 0)
        position = 4
        for _ in range(topic_count):
            (length,) = struct.unpack_from(">h", data, position)
            name, count = struct.unpack_from(f">{length}si", data, position + 2)
            position += 2 + length + 4
            topic = name.decode()
            had.update(
                TopicPartition(topic, index) for index in struct.unpack_from(f">{count}i", data, position)
            )
            position += 4 * count
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedMessageError(f"data of the sticky assignor: {error}") from error
    return frozenset(had), _decode_generation(data[position:])


def _decode_generation(data: bytes) -> int:
    return _GENERATION.unpack_from(data)[0] if len(data) >= _GENERATION.size else NO_GENERATION
