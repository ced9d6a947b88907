"""The membership of a consumer in a group of the classic protocol: JoinGroup, SyncGroup, Heartbeat.

All members join; the coordinator names one of them the leader. The leader assigns the partitions and sends
the assignment with SyncGroup. Kafka's classes are `AbstractCoordinator` and `ConsumerCoordinator`.

A rebalance begins only while the application asks for records. Until then the member goes on with its
heartbeats, which keep its place. With an eager assignor a member gives up all its partitions before it joins.
With cooperative assignors it keeps them (KIP-429), gives up what the new assignment does not contain, and
joins again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from itertools import zip_longest
from typing import ClassVar, Final, NamedTuple

from tidelog.client.core.cluster_view import ClusterView
from tidelog.client.core.consuming.assignors import (
    NO_GENERATION,
    STRATEGIES,
    Assigned,
    Subscriber,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidelog.client.core.consuming.membership import (
    OTHER_COORDINATOR,
    STATES,
    GroupPartition,
    Membership,
    MemberState,
)
from tidelog.client.core.settings import ConsumerSettings
from tidelog.kernel.instants import Backoff
from tidelog.kernel.machine import StateTable
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import INTERNAL_TOPICS, TopicPartition

METADATA_ATTEMPTS: Final = 3
"""The metadata responses after which a leader assigns without the topics that nobody knows."""
_LOST: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_LATER: Final = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS})

CLASSIC_STATES: Final = StateTable(
    "a member",
    {
        **STATES.following,
        # Each rebalance is a join, and a member may lose its partitions before it is over.
        MemberState.JOINING: {*STATES.following[MemberState.JOINING], MemberState.LOSING},
        MemberState.STABLE: {*STATES.following[MemberState.STABLE], MemberState.JOINING},
        MemberState.RECONCILING: {*STATES.following[MemberState.RECONCILING], MemberState.JOINING},
    },
)


class JoinGroup(NamedTuple):
    """`attempt` tells responses to an earlier membership from those to this one."""

    attempt: int
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    """The assignors that the member knows, the preferred one first, with its subscription."""


class SyncGroup(NamedTuple):
    attempt: int
    member_id: str
    generation: int
    protocol: str
    assignments: tuple[tuple[str, bytes], ...]
    """The assignment of each member, from the leader."""


class GroupHeartbeat(NamedTuple):
    attempt: int
    member_id: str
    generation: int


class LeaveGroupRequest(NamedTuple):
    member_id: str


class GroupMember(NamedTuple):
    """A member as JoinGroup tells the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswered(NamedTuple):
    request: JoinGroup
    error_code: int
    member_id: str
    generation: int
    protocol: str
    leader: str
    members: tuple[GroupMember, ...]
    skips_assignment: bool = False
    """Whether the coordinator keeps the assignment, because a static leader came back (KIP-814)."""
    message: str | None = None


class SyncAnswered(NamedTuple):
    request: SyncGroup
    error_code: int
    assignment: bytes
    message: str | None = None


class GroupHeartbeatAnswered(NamedTuple):
    request: GroupHeartbeat
    error_code: int
    message: str | None = None


ClassicRequest = JoinGroup | SyncGroup | GroupHeartbeat
ClassicAnswer = JoinAnswered | SyncAnswered | GroupHeartbeatAnswered


_Replicas = Mapping[str, tuple[frozenset[int], ...]]
"""The brokers with replicas of each partition, by topic. They are left out if no member names its rack. Racks
are not compared, so that a broker that is away for a moment causes no rebalance.
"""


class _Next(Enum):
    """The next step of the protocol."""

    JOIN = "join"
    ASSIGN = "assign"
    """The leader waits for metadata of the members' topics."""
    SYNC = "sync"
    HEARTBEAT = "heartbeat"


class ClassicMembership(Membership):
    """A member of a classic group. `epoch` is the generation."""

    STATES: ClassVar[StateTable[MemberState]] = CLASSIC_STATES

    # Declared again, because type checkers may infer other types from the assignments of this class.
    epoch: int
    departures: int
    target: frozenset[GroupPartition]
    owned: frozenset[GroupPartition]
    is_coordinator_unknown: bool
    last_answer_ms: int | None
    member_id: str | None

    def __init__(self, settings: ConsumerSettings, backoff: Backoff) -> None:
        super().__init__(settings.group_id or "", backoff)
        self._settings = settings
        self._strategies = settings.assignors
        self._is_cooperative = all(STRATEGIES[name].is_cooperative for name in self._strategies)
        """Whether all assignors permit cooperative rebalances. Otherwise they are eager, as in Kafka."""
        self.member_id = ""
        self.epoch = NO_GENERATION
        self._next = _Next.JOIN
        self._must_rejoin = False
        self._protocol = ""
        self._members: tuple[Subscriber, ...] = ()
        """All members, if this one is the leader."""
        self._shares: tuple[tuple[str, bytes], ...] = ()
        self._metadata_attempts = 0
        self._assigned_replicas: _Replicas | None = None
        """The partitions that the leader assigned, None if they are unknown."""
        self._had: frozenset[TopicPartition] = frozenset()
        """The last assignment, and its generation, which `sticky` tells the leader."""
        self._had_generation = NO_GENERATION
        self._joined_topics: tuple[str, ...] = ()
        self._is_matched = True
        """Whether the topics of the pattern are known."""
        self._is_preparing = False
        """Whether the member gives up partitions before it joins."""

    @property
    def awaits_others(self) -> bool:
        return self._next is not _Next.HEARTBEAT

    @property
    def group_topics(self) -> tuple[str, ...]:
        return tuple(sorted({topic for member in self._members for topic in member.topics}))

    def place_of(self, partition: GroupPartition, view: ClusterView) -> TopicPartition | None:
        return partition if isinstance(partition, TopicPartition) else None

    def subscribe(self, topics: tuple[str, ...], pattern: str | None, now_ms: int) -> None:
        """Raises ValueError if the pattern is no regular expression."""
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"the pattern {pattern!r} is no regular expression: {error}") from error
        self._topics, self._pattern = topics, pattern
        self._is_matched = pattern is None
        if self.state is MemberState.OUTSIDE:
            self._forget_generation()
            self._due_ms = now_ms
            self.move_to(MemberState.JOINING)
        else:
            self._must_rejoin = True

    def leave(self) -> None:
        super().leave()
        self._forget_generation()
        self.member_id = ""

    def goodbye(self) -> LeaveGroupRequest | None:
        """A static member never says goodbye; its session ends if it does not come back (KIP-345)."""
        if self._settings.group_instance_id is not None or not self.member_id:
            return None
        return LeaveGroupRequest(self.member_id)

    def request(self, now_ms: int) -> ClassicRequest | None:
        if not self._is_due(now_ms):
            return None
        self._is_in_flight = True
        assert self.member_id is not None
        match self._next:
            case _Next.JOIN:
                self._must_rejoin = False
                self._joined_topics = self._topics
                return JoinGroup(self._attempt, self.member_id, self._protocols())
            case _Next.SYNC:
                return SyncGroup(self._attempt, self.member_id, self.epoch, self._protocol, self._shares)
            case _:
                return GroupHeartbeat(self._attempt, self.member_id, self.epoch)

    def next_wake_ms(self) -> int | None:
        return None if self._waits_for_metadata else super().next_wake_ms()

    @property
    def _waits_for_metadata(self) -> bool:
        return self._next is _Next.ASSIGN or (self._next is _Next.JOIN and not self._is_matched)

    def _protocols(self) -> tuple[tuple[str, bytes], ...]:
        owned = frozenset(place for place in self.owned if isinstance(place, TopicPartition))
        rack = self._settings.client_rack or None
        return tuple(
            (name, encode_subscription(name, self._topics, owned, self._had, self._had_generation, rack))
            for name in self._strategies
        )

    def _handle(self, answer: ClassicAnswer, now_ms: int) -> None:
        code = answer.error_code
        if code == ErrorCode.NONE:
            self._attempts = 0
            self.last_answer_ms = now_ms
            self._due_ms = now_ms
            if self.state is not MemberState.LOSING:
                self._accepted(answer, now_ms)
        elif code == ErrorCode.MEMBER_ID_REQUIRED and isinstance(answer, JoinAnswered):
            self.member_id = answer.member_id
            self._due_ms = now_ms
        elif code in _LOST:
            self._removed(code, now_ms)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS and isinstance(answer, GroupHeartbeatAnswered):
            self.last_answer_ms = now_ms
            self._must_rejoin = True
            self._due_ms = now_ms + self._settings.heartbeat_interval_ms
        elif code in OTHER_COORDINATOR or code in _LATER:
            self.is_coordinator_unknown |= code in OTHER_COORDINATOR
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self._next = _Next.JOIN
            self._retry_later(now_ms)
        else:
            self._fail(code, answer.message)

    def _accepted(self, answer: ClassicAnswer, now_ms: int) -> None:
        match answer:
            case JoinAnswered():
                self._joined(answer)
            case SyncAnswered():
                self._synced(answer, now_ms)
            case GroupHeartbeatAnswered():
                self._due_ms = now_ms + self._settings.heartbeat_interval_ms

    def _joined(self, answer: JoinAnswered) -> None:
        self.member_id = answer.member_id
        self.epoch = answer.generation
        self._protocol = answer.protocol
        self._members, self._shares = (), ()
        self._next = _Next.SYNC
        self._assigned_replicas = None
        if answer.leader != answer.member_id:
            return
        if answer.protocol not in STRATEGIES:
            self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the assignor {answer.protocol} is unknown")
            return
        try:
            self._members = tuple(
                decode_subscription(answer.protocol, each.member_id, each.instance_id, each.metadata)
                for each in answer.members
            )
        except ValueError as error:
            self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"a member's subscription: {error}")
            return
        if not answer.skips_assignment:
            self._next = _Next.ASSIGN
            self._metadata_attempts = 0

    def _synced(self, answer: SyncAnswered, now_ms: int) -> None:
        try:
            given = decode_assignment(answer.assignment)
        except ValueError as error:
            self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the leader's assignment: {error}")
            return
        self._next = _Next.HEARTBEAT
        self._due_ms = now_ms + self._settings.heartbeat_interval_ms
        self._shares = ()
        self._had, self._had_generation = given, self.epoch
        self.target = frozenset(given)
        if self.owned - self.target:
            self._must_rejoin = True  # another member waits for what this one gives up
        if self._topics != self._joined_topics:
            self._must_rejoin = True
        self.move_to(MemberState.STABLE if self.target == self.owned else MemberState.RECONCILING)

    def _removed(self, code: int, now_ms: int) -> None:
        """The coordinator does not know the member, or knows a newer generation."""
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self._forget_generation()
        self._due_ms = now_ms
        if self.state is MemberState.LOSING:
            return
        if self.owned:
            self.move_to(MemberState.LOSING)
        else:
            self.target = frozenset()
            if self.state is not MemberState.JOINING:
                self.move_to(MemberState.JOINING)

    def _forget_generation(self) -> None:
        self._is_preparing = False
        self.epoch = NO_GENERATION
        self._next = _Next.JOIN
        self._members, self._shares = (), ()
        self._assigned_replicas = None
        self._had, self._had_generation = frozenset(), NO_GENERATION

    def took_metadata(self, view: ClusterView, now_ms: int) -> bool:
        """Matches the pattern, assigns if the member is the leader, and notices new partitions."""
        if not self.is_active:
            return False
        if self._pattern is not None:
            self._match_topics(view)
        if self._next is _Next.ASSIGN:
            self._metadata_attempts += 1
            return not self._assign(view, now_ms)
        if self._members:
            replicas = self._replicas(view)
            if self._assigned_replicas is None:
                self._assigned_replicas = replicas  # the coordinator kept the assignment
            elif replicas != self._assigned_replicas:
                self._must_rejoin = True
        return False

    def _match_topics(self, view: ClusterView) -> None:
        assert self._pattern is not None
        pattern = re.compile(self._pattern)
        topics = tuple(
            sorted(
                name
                for name in view.topics
                if pattern.fullmatch(name)
                and not (self._settings.exclude_internal_topics and name in INTERNAL_TOPICS)
            )
        )
        self._is_matched = True
        if topics != self._topics:
            self._topics = topics
            self._must_rejoin = True

    def assign_if_known(self, view: ClusterView, now_ms: int) -> bool:
        """Lets a new leader assign with the metadata at hand. Returns whether it lacks some."""
        return self._next is _Next.ASSIGN and not self._assign(view, now_ms)

    def _assign(self, view: ClusterView, now_ms: int) -> bool:
        """Returns False if a topic is not in the metadata, and may be in the next ones."""
        replicas = self._replicas(view)
        if len(replicas) < len(self.group_topics) and self._metadata_attempts < METADATA_ATTEMPTS:
            return False
        counts = {topic: len(partitions) for topic, partitions in replicas.items()}
        racks: dict[TopicPartition, frozenset[str]] = {}
        for topic in replicas if self._names_racks else ():
            racks.update(view.racks(topic))
        assigned: Assigned = STRATEGIES[self._protocol].assign(self._members, counts, racks)
        self._shares = tuple((member_id, encode_assignment(own)) for member_id, own in assigned.items())
        self._assigned_replicas = replicas
        self._next = _Next.SYNC
        self._due_ms = now_ms
        return True

    @property
    def _names_racks(self) -> bool:
        return any(member.rack for member in self._members)

    def _replicas(self, view: ClusterView) -> _Replicas:
        """Returns the partitions of the group's topics that exist."""
        topics = [view.topics[topic] for topic in self.group_topics if topic in view.topics]
        if not self._names_racks:
            return {topic.name: (frozenset(),) * len(topic.partitions) for topic in topics}
        return {
            topic.name: tuple(
                frozenset(replicas)
                for _, replicas in zip_longest(topic.partitions, topic.replicas, fillvalue=())
            )
            for topic in topics
        }

    def prepare(self, now_ms: int) -> None:
        if not self._must_rejoin or self.state not in (MemberState.STABLE, MemberState.RECONCILING):
            return
        is_applying = self.state is MemberState.RECONCILING and not self._is_preparing
        if is_applying and self._is_cooperative:
            return  # first finish the assignment that has begun
        kept: frozenset[GroupPartition] = frozenset()
        if self._is_cooperative:
            kept = frozenset(place for place in self.owned if place[0] in self._topics)
        self.target = kept
        if self.owned != kept:
            self._is_preparing = True
            if self.state is MemberState.STABLE:
                self.move_to(MemberState.RECONCILING)
            return
        self._is_preparing = False
        self.move_to(MemberState.JOINING)
        self._next = _Next.JOIN
        self._due_ms = now_ms

    def _say_owned(self, now_ms: int) -> None:
        """The coordinator learns in the next JoinGroup what the member owns."""
