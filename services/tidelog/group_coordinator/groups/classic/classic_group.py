"""A classic group: its members, its state, its generation, and its record. Source: Kafka's ClassicGroup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from tidelog.group_coordinator.groups.shared import (
    CONSUMER_PROTOCOL_TYPE,
    GroupKind,
    OffsetCommitter,
    TimerKey,
)
from tidelog.group_coordinator.shard_core import (
    CoordinatorRecord,
    SetTimer,
    ShardDecision,
)
from tidelog.kernel.instants import WallMs
from tidelog.kernel.machine import StateTable
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode
from tidelog.wire.codec import MalformedMessageError, UnsupportedVersionError, record_codec
from tidelog.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from tidelog.wire.messages.list_groups import ListedGroup
from tidelog.wire.messages.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata

TIMER_OWNER: Final = "classic"
SESSION_TIMER: Final = "session"
MAX_GROUP_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of metadata and assignments of all members of a group. One record has them, and so has the
append to the log, which must be well below MAX_UNSENT_BYTES of the coordinator's session. Kafka's default
limit for that record is 1 MiB.
"""
_VALUE_VERSION: Final = 3
"""The version of GroupMetadataValue that Kafka writes. Version 4 differs only in its encoding."""

_key_codec: Final = record_codec(GroupMetadataKey)
_value_codec: Final = record_codec(GroupMetadataValue)
_subscription_codec: Final = record_codec(ConsumerProtocolSubscription)


class ClassicState(StrEnum):
    """The state of a classic group, named as in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    """The group has no members."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """The group waits for its members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """All members have joined, and the leader computes the assignment."""
    STABLE = "Stable"
    """The members have their assignments."""
    DEAD = "Dead"
    """The group is deleted."""


STATES: Final = StateTable(
    "a classic group",
    {
        ClassicState.EMPTY: {ClassicState.PREPARING_REBALANCE, ClassicState.DEAD},
        ClassicState.PREPARING_REBALANCE: {
            ClassicState.COMPLETING_REBALANCE,
            ClassicState.EMPTY,
            ClassicState.DEAD,
        },
        ClassicState.COMPLETING_REBALANCE: {
            ClassicState.STABLE,
            ClassicState.PREPARING_REBALANCE,
            ClassicState.DEAD,
        },
        ClassicState.STABLE: {ClassicState.PREPARING_REBALANCE, ClassicState.DEAD},
        ClassicState.DEAD: set(),
    },
)

_WITH_SESSIONS: Final = (ClassicState.STABLE, ClassicState.PREPARING_REBALANCE)


class MemberProtocol(NamedTuple):
    """An assignor that a member supports, and the member's metadata for it: a consumer's subscription."""

    name: str
    metadata: bytes


class ParkedJoin(NamedTuple):
    """A JoinGroup request that waits for its reply."""

    reply_to: Hashable
    api_version: int


@dataclass(slots=True)
class ClassicMember:
    """One member of a classic group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    """The member's protocols in its order of preference."""
    assignment: bytes = b""

    # No record holds the following state.

    is_new: bool = False
    """True until the member's first join is answered. Until then it knows no member id for heartbeats."""
    join: ParkedJoin | None = None
    """The member's JoinGroup request, while it waits."""
    sync: Hashable | None = None
    """`reply_to` of the member's SyncGroup request, while it waits."""

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        """Returns the member's metadata for a protocol, empty if the member does not support it."""
        return metadata_for(protocol, self.protocols)

    def metadata_bytes(self) -> int:
        """Returns the size of what the member says about itself, over all its protocols."""
        texts = (self.member_id, self.group_instance_id or "", self.client_id, self.client_host)
        return sum(len(text.encode()) for text in texts) + protocols_bytes(self.protocols)

    def vote(self, candidates: Collection[str]) -> str | None:
        """Returns the candidate that the member prefers."""
        return next((name for name, _ in self.protocols if name in candidates), None)


def metadata_for(protocol: str | None, protocols: Iterable[MemberProtocol]) -> bytes:
    """Returns a member's metadata for one of its protocols, empty if it is not one of them."""
    for name, metadata in protocols:
        if name == protocol:
            return metadata
    return b""


class InitialDelay(NamedTuple):
    """The delay of a group's first rebalance, which every new member prolongs.

    `delay_ms` is the length of the current wait. `remaining_ms` is the time left for further waits.
    """

    delay_ms: int
    remaining_ms: int


class ClassicGroup:
    """The state of a classic group.

    rebalance.py moves the group from state to state; joining.py adds and updates members.
    """

    kind: GroupKind = GroupKind.CLASSIC

    def __init__(self, group_id: str, now_ms: WallMs | None) -> None:
        self.group_id = group_id
        self.state = ClassicState.EMPTY
        self.state_since_ms = now_ms
        """When the group entered its state; None if its record does not say."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """Maps each group.instance.id to its member id."""
        self.metadata_bytes = 0
        """The sum of the members' `metadata_bytes`."""
        self.is_recorded = False
        """Whether the log holds a record of this group."""

        # No record holds the following state.
        self.pending_members: set[str] = set()
        """Member ids sent with MEMBER_ID_REQUIRED whose members have not joined yet."""
        self.pending_sync: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self.initial_delay: InitialDelay | None = None
        self.has_new_member = False
        """Whether a member has joined since the initial delay was last prolonged."""
        self._subscribed_topics: tuple[int, frozenset[str] | None] = (-1, None)
        self._candidates: frozenset[str] | None = None

    def enter(self, state: ClassicState, now_ms: WallMs) -> None:
        """Moves the group to another state. Raises IllegalTransitionError."""
        self.state = STATES.enter(self.state, state)
        self.state_since_ms = now_ms

    def restore_stable(self) -> None:
        """Makes a newly constructed group stable, because its members and assignments are known."""
        self.state = ClassicState.STABLE

    def end(self) -> list[CoordinatorRecord]:
        self.state = ClassicState.DEAD
        return [CoordinatorRecord(_key(self.group_id), None)] if self.is_recorded else []

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Adds a member. The member is no longer pending."""
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
        self.metadata_bytes += member.metadata_bytes()
        self.pending_members.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Removes a member or pending member. The caller must have answered its requests."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self.metadata_bytes -= member.metadata_bytes()
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
        self._candidates = None
        self.pending_members.discard(member_id)
        self.pending_sync.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Changes the member id of a static member that has rejoined."""
        old_id = member.member_id
        self.members = {
            member_id if known_id == old_id else known_id: known for known_id, known in self.members.items()
        }
        self.metadata_bytes -= member.metadata_bytes()
        member.member_id = member_id
        self.metadata_bytes += member.metadata_bytes()
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(member_id)

    def elect_joined_leader(self) -> bool:
        """Keeps the leader if it has joined, or elects another joined member.

        Returns False if no member has joined.
        """
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
        """Returns an error if the group has no such member, or if the static member has another member id."""
        if group_instance_id is not None:
            known = self.static_members.get(group_instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def candidates(self) -> frozenset[str]:
        """Returns the protocols that every member supports."""
        if self._candidates is None:
            counts = Counter(name for member in self.members.values() for name in _names(member.protocols))
            every = len(self.members)
            self._candidates = frozenset(name for name, count in counts.items() if count == every)
        return self._candidates

    def supports(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Returns whether a client with these protocols can be a member."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and any(True for _ in protocols)
        return protocol_type == self.protocol_type and not self.candidates().isdisjoint(protocols)

    def select_protocol(self) -> str | None:
        """Returns the protocol with the most votes among those that every member supports."""
        candidates = self.candidates()
        votes = Counter(vote for member in self.members.values() if (vote := member.vote(candidates)))
        return max(votes, key=votes.__getitem__) if votes else None

    def subscribed_topics(self) -> frozenset[str] | None:
        """Returns the topics that this generation's members subscribe to.

        Returns None if they are unknown: the members are not consumers, or no protocol is selected yet.
        """
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
        return _decode_topics(member.metadata(self.protocol) for member in self.members.values())

    def replace_protocols(self, member: ClassicMember, protocols: tuple[MemberProtocol, ...]) -> None:
        """Gives a member other protocols, and drops what was derived from the earlier ones."""
        self.metadata_bytes += protocols_bytes(protocols) - protocols_bytes(member.protocols)
        member.protocols = protocols
        self._candidates = None
        self._subscribed_topics = (-1, None)

    def check_commit(self, committer: OffsetCommitter, decision: ShardDecision) -> ErrorCode:
        error = self._check_commit(committer)
        if error is ErrorCode.NONE and not committer.is_transactional and self.state in _WITH_SESSIONS:
            member = self.members.get(committer.member_id)
            if member is not None:
                key = session_key(self.group_id, member.member_id)
                decision.timers.append(SetTimer(key, member.session_timeout_ms))
        return error

    def _check_commit(self, committer: OffsetCommitter) -> ErrorCode:
        generation = committer.generation_or_epoch
        if generation < 0 and self.state is ClassicState.EMPTY:
            return ErrorCode.NONE  # the client is a tool, or a consumer that assigns itself partitions
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

    def partition_commit_check(self, committer: OffsetCommitter) -> None:
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

    def offsets_expire_from(self, topic: str, commit_timestamp_ms: WallMs) -> WallMs | None:
        """Implements KIP-211: offsets of an empty group expire from the time when the group became empty."""
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is ClassicState.EMPTY:
            return commit_timestamp_ms if self.state_since_ms is None else self.state_since_ms
        topics = self.subscribed_topics()
        if self.state is not ClassicState.STABLE or topics is None or topic in topics:
            return None
        return commit_timestamp_ms

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

    def described(self) -> Steps[DescribedGroup]:
        """Returns the group's entry in DescribeGroups, as the group is at the first step.

        Only a stable group has a protocol, and metadata of members for it.
        """
        protocol = self.protocol if self.state is ClassicState.STABLE else None
        described = DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=protocol or "",
        )
        members = [(member, member.protocols, member.assignment) for member in self.members.values()]
        for member, protocols, assignment in members:
            described.members.append(
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=metadata_for(protocol, protocols),
                    member_assignment=assignment,
                )
            )
            yield
        return described


def session_key(group_id: str, member_id: str) -> TimerKey:
    """Returns the key of the timer that ends a member's session."""
    return TimerKey(TIMER_OWNER, SESSION_TIMER, group_id, member_id)


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Returns the size of the names and the metadata of a member's protocols."""
    return sum(len(name.encode()) + len(metadata) for name, metadata in protocols)


def _names(protocols: Iterable[MemberProtocol]) -> set[str]:
    return {name for name, _ in protocols}


def group_record(group: ClassicGroup) -> CoordinatorRecord:
    """Returns a record of the group's current state, and marks the group as recorded."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=-1 if group.state_since_ms is None else group.state_since_ms,
        members=[_member_metadata(member, group.protocol) for member in group.members.values()],
    )
    group.is_recorded = True
    return CoordinatorRecord(_key(group.group_id), _value_codec.encode(value, _VALUE_VERSION))


def _key(group_id: str) -> bytes:
    return _key_codec.encode(GroupMetadataKey(group=group_id))


def _member_metadata(member: ClassicMember, protocol: str | None) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=member.assignment,
    )


def decode_group_id(key: bytes) -> str:
    """Returns the group id in a record's key. Raises MalformedMessageError, UnsupportedVersionError."""
    return _key_codec.decode(key).group


def group_from_record(group_id: str, data: bytes) -> ClassicGroup:
    """Returns the group as a record describes it.

    Raises MalformedMessageError, UnsupportedVersionError.
    """
    value = _value_codec.decode(data)
    since_ms = value.current_state_timestamp
    group = ClassicGroup(group_id, None if since_ms == -1 else WallMs(since_ms))
    group.is_recorded = True
    group.generation = value.generation
    group.protocol = value.protocol
    for member in value.members:
        group.add(_recorded_member(member, value.protocol or ""), value.protocol_type)
    if group.members:
        group.restore_stable()
    group.protocol_type = value.protocol_type or None
    group.leader = value.leader
    return group


def _recorded_member(member: MemberMetadata, protocol: str) -> ClassicMember:
    """Returns a member with only one protocol: records hold no other than the selected one."""
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=(
            member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout
        ),
        session_timeout_ms=member.session_timeout,
        protocols=(MemberProtocol(protocol, bytes(member.subscription)),),
        assignment=bytes(member.assignment),
    )


def _decode_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Returns the topics of all subscriptions, or None if a subscription is malformed."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            topics.update(_subscription_codec.decode(subscription, newer_as_newest=True).topics)
    except (MalformedMessageError, UnsupportedVersionError):
        return None
    return frozenset(topics)
