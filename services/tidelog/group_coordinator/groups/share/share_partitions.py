"""The share partitions of one group, and how far their states in `__share_group_state` have got.

The group coordinator records what it is about to do before it asks the owners of the states, so that a later
owner of the group can repeat it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias
from uuid import UUID


class TopicShare(NamedTuple):
    """Some partitions of a topic."""

    name: str
    partitions: frozenset[int]


Shares: TypeAlias = Mapping[UUID, TopicShare]
"""Share partitions by topic id. No topic has an empty set."""


@dataclass(frozen=True, slots=True)
class SharePartitions:
    """A change replaces the object. A share partition is in at most one of the three places."""

    initializing: Shares = field(default_factory=dict)
    """The states of these are being created. No member gets such a partition."""
    initialized: Shares = field(default_factory=dict)
    deleting: Mapping[UUID, str] = field(default_factory=dict)
    """The names of the topics whose states are being deleted, by topic id."""

    def is_empty(self) -> bool:
        return not (self.initializing or self.initialized or self.deleting)

    def missing(self, wanted: Shares) -> Shares:
        """Returns the wanted share partitions that are in none of the three places."""
        found: dict[UUID, TopicShare] = {}
        for topic_id, topic in wanted.items():
            if topic_id in self.deleting:
                continue
            left = topic.partitions - _of(self.initializing, topic_id) - _of(self.initialized, topic_id)
            if left:
                found[topic_id] = TopicShare(topic.name, left)
        return found

    def with_initializing(self, shares: Shares) -> SharePartitions:
        """Returns this with more share partitions that are being initialized."""
        return replace(self, initializing=_plus(self.initializing, shares))

    def with_initialized(self, shares: Shares) -> SharePartitions:
        """Returns this after the initialization of `shares`."""
        return replace(
            self,
            initializing=_minus(self.initializing, shares),
            initialized=_plus(self.initialized, shares),
        )

    def with_deleting(self, topic_ids: Iterable[UUID]) -> SharePartitions:
        """Returns this after the decision to delete the states of known topics."""
        known = {topic_id: self._name(topic_id) for topic_id in topic_ids}
        return SharePartitions(
            _without(self.initializing, known), _without(self.initialized, known), {**self.deleting, **known}
        )

    def without(self, topic_ids: Iterable[UUID]) -> SharePartitions:
        """Returns this without everything about these topics."""
        gone = set(topic_ids)
        return SharePartitions(
            _without(self.initializing, gone),
            _without(self.initialized, gone),
            {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in gone},
        )

    def topic_ids(self) -> set[UUID]:
        return {*self.initializing, *self.initialized, *self.deleting}

    def partitions_of(self, topic_id: UUID) -> frozenset[int]:
        """Returns the partitions that have a state, or whose state is being created."""
        return _of(self.initializing, topic_id) | _of(self.initialized, topic_id)

    def _name(self, topic_id: UUID) -> str:
        for shares in (self.initialized, self.initializing):
            if topic_id in shares:
                return shares[topic_id].name
        return self.deleting[topic_id]


def _of(shares: Shares, topic_id: UUID) -> frozenset[int]:
    topic = shares.get(topic_id)
    return frozenset() if topic is None else topic.partitions


def _plus(shares: Shares, more: Shares) -> Shares:
    added = {
        topic_id: TopicShare(topic.name, topic.partitions | _of(shares, topic_id))
        for topic_id, topic in more.items()
    }
    return {**shares, **added}


def _minus(shares: Shares, fewer: Shares) -> Shares:
    left = {
        topic_id: TopicShare(topic.name, topic.partitions - _of(fewer, topic_id))
        for topic_id, topic in shares.items()
    }
    return {topic_id: topic for topic_id, topic in left.items() if topic.partitions}


def _without(shares: Shares, topic_ids: Iterable[UUID]) -> Shares:
    gone = set(topic_ids)
    return {topic_id: topic for topic_id, topic in shares.items() if topic_id not in gone}
