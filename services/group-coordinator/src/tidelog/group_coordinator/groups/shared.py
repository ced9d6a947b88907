"""What classic groups, consumer groups and offsets of one shard share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    CoordinatorRecord,
    Decision,
    Reply,
    ShardRequest,
)
from tidelog.model.errors import ErrorCode
from tidelog.runtime.coordinator_settings import CoordinatorSettings
from tidelog.wire.messages.list_groups import ListedGroup

NO_IMAGE: Final = ClusterImage(0, {}, {})


class GroupKind(StrEnum):
    """The value is what ListGroups calls the type."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class TimerKey(NamedTuple):
    """Every timer key of a group shard; `owner` is who `timer_fired` is passed on to."""

    owner: str
    """"classic", "consumer", "offsets" or "expiry"."""
    what: str
    group_id: str = ""
    member_id: str = ""


class OffsetCommitter(NamedTuple):
    """Who commits offsets, as OffsetCommit and TxnOffsetCommit say it."""

    member_id: str
    group_instance_id: str | None
    generation_or_epoch: int
    api_key: int
    api_version: int
    is_transactional: bool


class Group(Protocol):
    """What the shard asks of any group."""

    group_id: str

    @property
    def kind(self) -> GroupKind: ...

    def check_commit(self, committer: OffsetCommitter, now_ms: int, decision: Decision) -> ErrorCode:
        """Whether these offsets may be committed; a classic member's session is prolonged by it."""
        ...

    def check_commits_singly(self, committer: OffsetCommitter) -> Callable[[UUID, int], ErrorCode] | None:
        """After `check_commit` said NONE: what says it of each (topic id, partition), if that is not the
        same for all.
        """
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode: ...

    def check_offset_delete(self) -> ErrorCode:
        """Of the whole group; then `is_subscribed_to` is asked of each topic."""
        ...

    def check_delete(self) -> ErrorCode: ...

    def is_subscribed_to(self, topic: str) -> bool: ...

    def offsets_expire_from(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """Since when offsets.retention.minutes count for a committed offset; None: it does not expire now."""
        ...

    def tombstones(self) -> list[CoordinatorRecord]:
        """That delete the group without its offsets."""
        ...

    def has_members(self) -> bool: ...

    def member_count(self) -> int: ...

    @property
    def generation_or_epoch(self) -> int:
        """What each rebalance raises."""
        ...

    def listed(self) -> ListedGroup: ...


class OffsetsOfGroups(Protocol):
    """What groups ask of the offsets."""

    def has_offsets(self, group_id: str) -> bool:
        """Also if only a transaction's pending ones."""
        ...

    def delete_group(self, group_id: str, decision: Decision) -> None:
        """Tombstones for all committed offsets of a group; pending ones are forgotten."""
        ...

    def expire(self, group: Group, now_ms: int, decision: Decision) -> None:
        """Tombstones for what is past its retention."""
        ...


class Groups:
    """All groups of one shard."""

    def __init__(self, settings: CoordinatorSettings, new_member_uuid: Callable[[], str]) -> None:
        self.settings = settings
        self.new_member_uuid = new_member_uuid
        self.by_id: dict[str, Group] = {}
        self.image = NO_IMAGE
        self.offsets: OffsetsOfGroups
        """Set by the core, which makes them all."""
        self.new_simple_group: Callable[[str, int | None], Group]
        """(group id, now_ms or None while loading) -> a group without members, now in `by_id`, made by a
        commit without a member; no record says so but the offsets.
        """

    def drop(self, group: Group, decision: Decision) -> None:
        """Delete a group that has no members, with all its offsets."""
        self.offsets.delete_group(group.group_id, decision)
        decision.records += group.tombstones()
        del self.by_id[group.group_id]


def answer(request: ShardRequest, message: Any) -> Decision:
    """Nothing but a reply."""
    return Decision(replies=[Reply(request.reply_to, message)])


class ApiHandler(Protocol):
    def __call__(self, request: ShardRequest, now_ms: int) -> Decision: ...


class TimerOwner(Protocol):
    def timer_fired(self, key: TimerKey, now_ms: int) -> Decision: ...


def merge(into: Decision, more: Decision) -> None:
    """Both as one; neither may be transactional."""
    into.records += more.records
    into.replies += more.replies
    into.timers += more.timers
    into.effects += more.effects


def as_timer_key(key: Hashable) -> TimerKey:
    if not isinstance(key, TimerKey):
        raise TypeError(f"{key!r} is no timer of a group shard")
    return key
