"""The types that classic groups, consumer groups and committed offsets of one shard share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    CoordinatorRecord,
    Reply,
    ShardDecision,
    ShardRequest,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.group_settings import GroupSettingsView
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.list_groups import ListedGroup

NO_IMAGE: Final = ClusterImage(0, {}, {})
CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of consumers, in classic groups as in KIP-848 groups."""
_FIRST_COMMIT_WITH_MEMBER_EPOCH: Final = 9
"""The version of OffsetCommit from which a request holds a member epoch."""


class GroupKind(StrEnum):
    """The type of a group, named as in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class TimerKey(NamedTuple):
    """The key of any timer of a group shard. `owner` names the object that handles the timer."""

    owner: str
    """"classic", "consumer", "share", "streams", "offsets" or "expiry"."""
    kind: str
    group_id: str = ""
    member_id: str = ""


class OffsetCommitter(NamedTuple):
    """The client that commits offsets, as OffsetCommit and TxnOffsetCommit describe it."""

    member_id: str
    group_instance_id: str | None
    generation_or_epoch: int
    api_key: int
    api_version: int
    is_transactional: bool

    def is_outside(self, members: Collection[str]) -> bool:
        """Returns whether the client commits without being a member, as in Kafka: it names no epoch, and the
        group has no members or the commit is that of a transaction which names no member.
        """
        is_anonymous = not self.member_id and self.group_instance_id is None
        return self.generation_or_epoch < 0 and (not members or (self.is_transactional and is_anonymous))

    @property
    def has_no_field_for_epochs(self) -> bool:
        """Whether the version of OffsetCommit is older than the epochs of members (KIP-848)."""
        return self.api_key == ApiKey.OFFSET_COMMIT and self.api_version < _FIRST_COMMIT_WITH_MEMBER_EPOCH


class TopicsChange(NamedTuple):
    """A change of the cluster's topics."""

    changed: Collection[str]
    """The topics that were created or deleted, grew, or moved to other racks."""
    deleted: Mapping[str, UUID]
    """The ids of the topics that were deleted. Another topic may have the name of one of them now."""
    has_other_names: bool
    """Whether the cluster has a topic with a new name, or none with one of the former names."""


class Group(Protocol):
    """The interface of a group of either kind toward the rest of its shard."""

    group_id: str

    @property
    def kind(self) -> GroupKind: ...

    def check_commit(self, committer: OffsetCommitter, decision: ShardDecision) -> ErrorCode:
        """Returns whether this client may commit. A commit extends the session of a classic member."""
        ...

    def partition_commit_check(self, committer: OffsetCommitter) -> Callable[[UUID, int], ErrorCode] | None:
        """Returns a check of each (topic id, partition) to commit, or None if `check_commit` is enough."""
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Returns whether this client may fetch offsets."""
        ...

    def check_offset_delete(self) -> ErrorCode:
        """Returns whether offsets may be deleted, except for topics that `is_subscribed_to` names."""
        ...

    def check_delete(self) -> ErrorCode:
        """Returns whether the group may be deleted."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Returns whether a member subscribes to the topic."""
        ...

    def offsets_expire_from(self, topic: str, commit_timestamp_ms: WallMs) -> WallMs | None:
        """Returns when the retention time of an offset of this topic began, or None if it has not."""
        ...

    def end(self) -> list[CoordinatorRecord]:
        """Makes the group Dead and returns the tombstones that delete it. They do not delete its offsets."""
        ...

    def has_members(self) -> bool: ...

    def member_count(self) -> int: ...

    @property
    def generation_or_epoch(self) -> int:
        """The number that each rebalance increases."""
        ...

    def listed(self) -> ListedGroup:
        """Returns the group's entry in ListGroups."""
        ...


WhenDeleted = Callable[[ErrorCode], list[Reply]]
"""Returns the replies that waited for a deletion, given its error."""


class OffsetsOfGroups(Protocol):
    """The interface of the committed offsets toward the groups."""

    def has_offsets(self, group_id: str) -> bool:
        """Returns whether the group has committed offsets or pending offsets of a transaction."""
        ...

    def delete_group(self, group_id: str, decision: ShardDecision, done: WhenDeleted | None = None) -> bool:
        """Deletes all offsets of a group, committed and pending. Returns False if they are so many that the
        deletion goes on in later turns. `done` is called at its end then.
        """
        ...

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        """Returns the partitions for which the group has committed offsets."""
        ...

    def expire(
        self, group: Group, partitions: Iterable[TopicPartition], now_ms: WallMs, decision: ShardDecision
    ) -> None:
        """Deletes the group's offsets of these partitions whose retention time is over."""
        ...

    def forget_producers(self, now_ms: WallMs) -> None:
        """Forgets the producers that have been silent for long."""
        ...


MEMBER_BYTES: Final = 1024
TEXT_BYTES: Final = 64
"""About what a member takes, and each text of it beside its characters: objects, tables and timers."""


def memory_of_member(texts: Iterable[str | None]) -> int:
    """Returns about how many bytes a member with these texts takes."""
    lengths = [len(text) for text in texts if text]
    return MEMBER_BYTES + TEXT_BYTES * len(lengths) + sum(lengths)


def may_assign(last_assignment_ms: WallMs, interval_ms: int, now_ms: WallMs) -> bool:
    """Returns whether another target assignment may be computed: `interval_ms` after the last one, which is 0
    if there was none. A time in the future says only that the wall clock was set back.
    """
    return not last_assignment_ms or not 0 <= now_ms - last_assignment_ms < interval_ms


class Groups:
    """All groups of one shard."""

    def __init__(
        self,
        settings: BrokerSettings,
        new_member_uuid: Callable[[], str],
        overrides_of: Callable[[str], Mapping[str, str]],
        current_settings: Callable[[], BrokerSettings],
    ) -> None:
        self.settings = settings
        self.group_settings = GroupSettingsView(current_settings, overrides_of)
        self.new_member_uuid = new_member_uuid
        self.by_id: dict[str, Group] = {}
        self.image = NO_IMAGE
        self.offsets: OffsetsOfGroups
        """The committed offsets of all groups. GroupCore sets this attribute."""
        self.new_simple_group: Callable[[str, WallMs | None], Group]
        """Adds a group without members for offsets that a client commits without joining.

        The time is None while the shard loads. No record describes such a group; it lives as long as its
        offsets. GroupCore sets this attribute.
        """

    def delete(self, group: Group, decision: ShardDecision, done: WhenDeleted | None = None) -> bool:
        """Deletes a group without members, and all its offsets. Returns False if some offsets are deleted in
        later turns. `done` is called at the end then.
        """
        is_done = self.offsets.delete_group(group.group_id, decision, done)
        decision.records += group.end()
        del self.by_id[group.group_id]
        return is_done

    def clear(self) -> None:
        """Forgets all groups and what GroupCore set, because the core has ended."""
        self.by_id.clear()
        del self.offsets, self.new_simple_group


def answer(request: ShardRequest[object], message: object) -> ShardDecision:
    """Returns a decision that consists of one reply."""
    return ShardDecision(replies=[Reply(request.reply_to, message)])


class ApiHandler(Protocol):
    """The handler of one API. The request's type depends on the key under which GroupCore stores it."""

    def __call__(self, request: ShardRequest[Any], now_ms: WallMs) -> ShardDecision: ...


class TimerOwner(Protocol):
    def timer_fired(self, key: TimerKey, now_ms: WallMs) -> ShardDecision: ...


def merge(into: ShardDecision, more: ShardDecision) -> None:
    """Adds `more` to `into`. Neither decision may be transactional."""
    into.records += more.records
    into.replies += more.replies
    into.timers += more.timers
    into.effects += more.effects


def as_timer_key(key: Hashable) -> TimerKey:
    """Returns `key` if it is a timer of a group shard. Raises TypeError otherwise."""
    if not isinstance(key, TimerKey):
        raise TypeError(f"{key!r} is not a timer key of a group shard")
    return key
