"""A classic group: its members and their generation. Source: Kafka's ClassicGroup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from tidelog.group_coordinator.groups.classic.group_records import (
    decode_subscribed_topics,
    group_tombstone,
)
from tidelog.group_coordinator.groups.classic.member import ClassicMember, MemberProtocol, SessionDeadline
from tidelog.group_coordinator.groups.classic.step import Step
from tidelog.group_coordinator.groups.shared import GroupKind, OffsetCommitter
from tidelog.group_coordinator.shard_core import CoordinatorRecord, Decision
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.list_groups import ListedGroup

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


class ClassicState(StrEnum):
    """The value is what DescribeGroups and ListGroups call it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """All have joined; the leader works out who gets what."""
    STABLE = "Stable"


_WITH_SESSIONS: Final = (ClassicState.STABLE, ClassicState.PREPARING_REBALANCE)


class InitialDelay(NamedTuple):
    """The group was empty: it waits for more members, longer as long as some come."""

    delay_ms: int
    remaining_ms: int


class ClassicGroup:
    """State and what can be asked of it; rebalance.py changes its state, joining.py its members."""

    kind: GroupKind = GroupKind.CLASSIC

    def __init__(self, group_id: str, now_ms: int | None) -> None:
        self.group_id = group_id
        self.state = ClassicState.EMPTY
        self.state_since_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """group.instance.id to member id."""
        self.is_recorded = False
        """A record of the log says that the group is there."""

        # -- what no record holds
        self.pending_members: dict[str, SessionDeadline] = {}
        """Ids given with MEMBER_ID_REQUIRED whose members have not yet joined."""
        self.pending_sync: set[str] = set()
        """Members of this generation that have not yet asked for their assignment."""
        self.initial_delay: InitialDelay | None = None
        self.has_new_member = False
        """Since the initial delay was last prolonged."""
        self._subscribed_topics: tuple[int, frozenset[str] | None] = (-1, None)
        self._candidates: frozenset[str] | None = None

    # -- members

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """A pending member is one no more."""
        if not self.members:
            self.protocol_type = protocol_type
            self._candidates = None
        if self.leader is None:
            self.leader = member.member_id
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self._candidates is not None:
            self._candidates &= _names(member.protocols)
        self.members[member.member_id] = member
        pending = self.pending_members.pop(member.member_id, None)
        if pending is not None:
            member.session = pending

    def remove(self, member_id: str) -> None:
        """What is owed to the member must be paid before."""
        member = self.members.pop(member_id, None)
        if member is not None and member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        self._candidates = None
        self.pending_members.pop(member_id, None)
        self.pending_sync.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """A static member came back under a new id."""
        old_id = member.member_id
        self.members = {
            member_id if known_id == old_id else known_id: known for known_id, known in self.members.items()
        }
        member.member_id = member_id
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(member_id)

    def elect_joined_leader(self) -> bool:
        """Whether the leader has joined, or another member that now is the leader."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.join is not None:
            return True
        joined = next((member for member in self.members.values() if member.join is not None), None)
        if joined is not None:
            self.leader = joined.member_id
        return joined is not None

    def has_members(self) -> bool:
        return bool(self.members or self.pending_members)

    def member_count(self) -> int:
        return len(self.members)

    def all_joined(self) -> bool:
        return not self.pending_members and all(member.join is not None for member in self.members.values())

    def joined_count(self) -> int:
        return sum(member.join is not None for member in self.members.values())

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        if group_instance_id is not None:
            known = self.static_members.get(group_instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # -- protocols

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def is_simple(self) -> bool:
        """Nobody ever joined: it is there for offsets that were committed without a member."""
        return self.protocol_type is None and not self.has_members()

    def candidates(self) -> frozenset[str]:
        """Protocols that every member knows."""
        if self._candidates is None:
            counts = Counter(name for member in self.members.values() for name in _names(member.protocols))
            every = len(self.members)
            self._candidates = frozenset(name for name, count in counts.items() if count == every)
        return self._candidates

    def supports(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether one with these protocols could be a member."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and any(True for _ in protocols)
        return protocol_type == self.protocol_type and not self.candidates().isdisjoint(protocols)

    def select_protocol(self) -> str | None:
        """The one that most members prefer of those that all know."""
        candidates = self.candidates()
        votes = Counter(vote for member in self.members.values() if (vote := member.vote(candidates)))
        return max(votes, key=votes.__getitem__) if votes else None

    def subscribed_topics(self) -> frozenset[str] | None:
        """Of all members in this generation; None if they can't be known: no consumers, no protocol yet."""
        generation, topics = self._subscribed_topics
        if generation != self.generation:
            topics = self._read_subscribed_topics()
            self._subscribed_topics = (self.generation, topics)
        return topics

    def _read_subscribed_topics(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if self.members and self.protocol is None:
            return None
        return decode_subscribed_topics(member.metadata(self.protocol) for member in self.members.values())

    def protocols_changed(self) -> None:
        """Of a member that is one already; with them its subscription, within a generation."""
        self._candidates = None
        self._subscribed_topics = (-1, None)

    # -- as any group

    def check_commit(self, committer: OffsetCommitter, now_ms: int, decision: Decision) -> ErrorCode:
        error = self._check_commit(committer)
        if error is ErrorCode.NONE and not committer.is_transactional and self.state in _WITH_SESSIONS:
            member = self.members.get(committer.member_id)
            if member is not None:
                Step(decision, now_ms).prolong(
                    member.session, self.group_id, member.member_id, member.session_timeout_ms
                )
        return error

    def _check_commit(self, committer: OffsetCommitter) -> ErrorCode:
        generation = committer.generation_or_epoch
        if generation < 0 and self.state is ClassicState.EMPTY:
            return ErrorCode.NONE  # a tool's, or a consumer's that assigns itself
        if generation >= 0 or committer.member_id or committer.group_instance_id is not None:
            error = self.check_member(committer.member_id, committer.group_instance_id)
            if error is not ErrorCode.NONE:
                return error
            if generation != self.generation:
                return ErrorCode.ILLEGAL_GENERATION
        elif not committer.is_transactional:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not committer.is_transactional and self.state is ClassicState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def check_commits_singly(self, committer: OffsetCommitter) -> None:
        return None

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def check_offset_delete(self) -> ErrorCode:
        if self.state is ClassicState.EMPTY or self.uses_consumer_protocol:
            return ErrorCode.NONE
        return ErrorCode.NON_EMPTY_GROUP

    def check_delete(self) -> ErrorCode:
        return ErrorCode.NONE if self.state is ClassicState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def is_subscribed_to(self, topic: str) -> bool:
        topics = self.subscribed_topics()
        return self.uses_consumer_protocol if topics is None else topic in topics

    def offsets_expire_from(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """KIP-211."""
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is ClassicState.EMPTY:
            return commit_timestamp_ms if self.state_since_ms is None else self.state_since_ms
        topics = self.subscribed_topics()
        if self.state is not ClassicState.STABLE or topics is None or topic in topics:
            return None
        return commit_timestamp_ms

    def tombstones(self) -> list[CoordinatorRecord]:
        return [group_tombstone(self.group_id)] if self.is_recorded else []

    @property
    def generation_or_epoch(self) -> int:
        return self.generation

    def listed(self) -> ListedGroup:
        return ListedGroup(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            group_state=self.state.value,
            group_type=self.kind.value,
        )


def _names(protocols: Iterable[MemberProtocol]) -> set[str]:
    return {name for name, _ in protocols}
