"""Partitions of members, in the forms that the protocol needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""What a member is to own. No topic without partitions."""

OwnedPartitions: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""What a member owns: partition -> the member epoch in which it was given. No topic without partitions."""

NO_PARTITIONS: Final[Assignment] = MappingProxyType({})
NOTHING_OWNED: Final[OwnedPartitions] = MappingProxyType({})


class _Topic(Protocol):
    topic_id: UUID
    partitions: list[int]


T = TypeVar("T", bound=_Topic)


def from_message(topics: Iterable[T]) -> Assignment:
    """A topic may be named more than once."""
    found: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        if topic.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return found


def to_message(topic_class: type[T], partitions: Mapping[UUID, Iterable[int]]) -> list[T]:
    """In the order of topic ids and partitions, so that equal assignments are equal bytes."""
    topics = []
    for topic_id in sorted(partitions):
        topic = topic_class()
        topic.topic_id = topic_id
        topic.partitions = sorted(partitions[topic_id])
        topics.append(topic)
    return topics


def without_epochs(owned: OwnedPartitions) -> Assignment:
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def holds_any(partitions: Assignment, of: OwnedPartitions) -> bool:
    """Whether any of the partitions is among those."""
    return any(
        topic_id in of and not found.isdisjoint(of[topic_id]) for topic_id, found in partitions.items()
    )


def holds_all(owned: OwnedPartitions, partitions: Assignment) -> bool:
    return all(
        topic_id in owned and found <= owned[topic_id].keys() for topic_id, found in partitions.items()
    )
