"""The membership of a consumer in a group: requests to the coordinator, and the steps to a new assignment.

`Membership` is what the consumer's core uses. `ConsumerMembership` speaks KIP-848: the coordinator sends the
partitions that the member shall have. The member first gives up the partitions that it shall not have any
more, then takes the new ones, then says what it has. Kafka's class is `ConsumerMembershipManager`.
`classic_membership.py` has the classic protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple
from uuid import UUID

from tidelog.client.core.cluster_view import ClusterView
from tidelog.client.errors import request_error
from tidelog.kernel.instants import Backoff
from tidelog.kernel.machine import StateTable
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
FIRST_INTERVAL_MS: Final = 5_000

GroupPartition = tuple[UUID, int] | TopicPartition
"""A partition as the group names it: by the topic's id (KIP-848), or by its name (classic)."""

_REJOIN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_LATER: Final = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNRELEASED_INSTANCE_ID})
OTHER_COORDINATOR: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class MemberState(Enum):
    OUTSIDE = "outside"
    """Without a subscription, or after a leave."""
    JOINING = "joining"
    STABLE = "stable"
    """The member has exactly the partitions that the coordinator assigned to it."""
    RECONCILING = "reconciling"
    """The member has to give up or take partitions."""
    REVOKING = "revoking"
    """The application is giving up partitions."""
    LOSING = "losing"
    """The coordinator removed the member, and the application is told that it lost its partitions."""
    FAILED = "failed"
    """An error that no repetition cures."""


STATES: Final = StateTable(
    "a member",
    {
        MemberState.OUTSIDE: {MemberState.JOINING},
        MemberState.JOINING: {
            MemberState.STABLE,
            MemberState.RECONCILING,
            MemberState.OUTSIDE,
            MemberState.FAILED,
        },
        MemberState.STABLE: {
            MemberState.RECONCILING,
            MemberState.LOSING,
            MemberState.OUTSIDE,
            MemberState.FAILED,
        },
        MemberState.RECONCILING: {
            MemberState.REVOKING,
            MemberState.STABLE,
            MemberState.LOSING,
            MemberState.OUTSIDE,
            MemberState.FAILED,
        },
        MemberState.REVOKING: {
            MemberState.RECONCILING,
            MemberState.LOSING,
            MemberState.OUTSIDE,
            MemberState.FAILED,
        },
        MemberState.LOSING: {MemberState.JOINING, MemberState.OUTSIDE, MemberState.FAILED},
        MemberState.FAILED: {MemberState.OUTSIDE},
    },
)


class Heartbeat(NamedTuple):
    """A heartbeat. None means that the field did not change since the last one that was answered.

    `attempt` tells responses to an earlier membership from those to this one.
    """

    attempt: int
    member_epoch: int
    topics: tuple[str, ...] | None
    pattern: str | None
    owned: frozenset[GroupPartition] | None


class HeartbeatAnswered(NamedTuple):
    request: Heartbeat
    error_code: int
    message: str | None
    member_epoch: int
    interval_ms: int
    assignment: frozenset[GroupPartition] | None


class LeaveHeartbeat(NamedTuple):
    """The goodbye of a member. The epoch is -1, or -2 for a static member, which keeps its partitions."""

    epoch: int


class Membership(ABC):
    """A member. The consumer's core calls it and performs what it returns."""

    STATES: ClassVar[StateTable[MemberState]] = STATES

    def __init__(self, group_id: str, backoff: Backoff) -> None:
        self.group_id = group_id
        self.state: MemberState = MemberState.OUTSIDE
        self.epoch: int = JOIN_EPOCH
        """The member's epoch, or the generation of a classic group."""
        self.member_id: str | None = None
        """The id that the coordinator gave, None if the shell chooses it."""
        self.error: KafkaError | None = None
        self.departures: int = 0
        """The number of times that the member has lost or left its group. Commits from before are void."""
        self.target: frozenset[GroupPartition] = frozenset()
        self.owned: frozenset[GroupPartition] = frozenset()
        self.may_take: bool = True
        """Whether what the member does not own of `target` is kept for it. A heartbeat that names the owned
        partitions lets the coordinator give the others away, so the member waits for a response."""
        self._revoking: frozenset[GroupPartition] = frozenset()
        self.is_coordinator_unknown: bool = False
        """Whether the shell has to look up the coordinator before the next request."""
        self.last_answer_ms: int | None = None
        self._topics: tuple[str, ...] = ()
        self._pattern: str | None = None
        self._backoff = backoff
        self._attempt = 0
        """The number of times that the member has left its group by itself."""
        self._due_ms = 0
        self._attempts = 0
        self._is_in_flight = False

    def move_to(self, state: MemberState) -> None:
        self.state = self.STATES.enter(self.state, state)

    @property
    def is_active(self) -> bool:
        return self.state not in (MemberState.OUTSIDE, MemberState.FAILED)

    @property
    def awaits_others(self) -> bool:
        """Whether the coordinator may be silent for long, because it waits for other members."""
        return False

    @abstractmethod
    def subscribe(self, topics: tuple[str, ...], pattern: str | None, now_ms: int) -> None:
        """Sets the topics, and joins the group if the member is outside."""

    def leave(self) -> None:
        """Forgets the membership. The shell sends what `goodbye` returned before."""
        self.epoch = JOIN_EPOCH
        self.departures += 1
        self._attempt += 1
        self._is_in_flight = False
        self.owned = self.target = frozenset()
        if self.state is not MemberState.OUTSIDE:
            self.move_to(MemberState.OUTSIDE)

    @abstractmethod
    def goodbye(self) -> Any:  # a request of the protocol
        """Returns the request with which the member leaves, None if the coordinator is not told."""

    @abstractmethod
    def request(self, now_ms: int) -> Any:  # a request of the protocol
        """Returns the request that is due, None if none is."""

    def next_wake_ms(self) -> int | None:
        """Returns the time of the next request, if no event comes before."""
        if self._is_in_flight or not self.is_active or self.state is MemberState.LOSING:
            return None
        return self._due_ms

    def _is_due(self, now_ms: int) -> bool:
        """Returns whether it is time for a request."""
        wake_ms = self.next_wake_ms()
        return wake_ms is not None and now_ms >= wake_ms

    def failed(self, request: Any, now_ms: int) -> None:
        """No response to a request arrived."""
        if request.attempt == self._attempt:
            self._is_in_flight = False
            self.is_coordinator_unknown = True
            self._retry_later(now_ms)

    def answered(self, answer: Any, now_ms: int) -> None:
        """Handles a response. Afterwards, `state` tells the consumer what to do next."""
        if answer.request.attempt == self._attempt:
            self._is_in_flight = False
            if self.is_active:
                self._handle(answer, now_ms)

    @abstractmethod
    def _handle(self, answer: Any, now_ms: int) -> None:
        """Handles a response to a request of this membership."""

    def took_metadata(self, view: ClusterView, now_ms: int) -> bool:
        """Takes new metadata. Returns whether they are not enough."""
        return False

    def assign_if_known(self, view: ClusterView, now_ms: int) -> bool:
        """Lets a new leader assign with the metadata at hand. Returns whether they are not enough."""
        return False

    @property
    def group_topics(self) -> tuple[str, ...]:
        """The topics of other members, of which the member needs metadata."""
        return ()

    @abstractmethod
    def place_of(self, partition: GroupPartition, view: ClusterView) -> TopicPartition | None:
        """Returns the name of a partition, None if metadata do not know it."""

    def _retry_later(self, now_ms: int) -> None:
        self._attempts += 1
        self._due_ms = now_ms + self._backoff.delay_ms(self._attempts)

    def _fail(self, code: int, message: str | None) -> None:
        self.error = request_error(code, f"group '{self.group_id}'", message)
        self.move_to(MemberState.FAILED)

    @abstractmethod
    def prepare(self, now_ms: int) -> None:
        """The application asks for records, so a rebalance may begin."""

    def partitions_to_revoke(self) -> frozenset[GroupPartition]:
        """Returns the partitions to give up, in state RECONCILING; then the state is REVOKING."""
        self._revoking = self.owned - self.target
        if self._revoking:
            self.move_to(MemberState.REVOKING)
        return self._revoking

    def revoked(self, now_ms: int) -> None:
        """The application has given up the partitions of `partitions_to_revoke`."""
        if self.state is MemberState.REVOKING:
            self.owned -= self._revoking
            self._say_owned(now_ms)
            self.move_to(MemberState.RECONCILING)

    def take(self, partitions: frozenset[GroupPartition], now_ms: int) -> None:
        """Takes new partitions whose topics are known, in state RECONCILING."""
        self.owned |= partitions
        self._say_owned(now_ms)
        if self.owned == self.target:
            self.move_to(MemberState.STABLE)

    def lost(self, now_ms: int) -> None:
        """The application knows that it has lost its partitions. The member joins again. It does nothing in
        another state than LOSING, because the loss was one of an earlier membership.
        """
        if self.state is MemberState.LOSING:
            self.departures += 1
            self.owned = self.target = frozenset()
            self._due_ms = now_ms
            self.move_to(MemberState.JOINING)

    @abstractmethod
    def _say_owned(self, now_ms: int) -> None:
        """`owned` has changed."""


class ConsumerMembership(Membership):
    """A member of a group of KIP-848."""

    # Declared again, because type checkers may infer other types from the assignments of this class.
    epoch: int
    departures: int
    target: frozenset[GroupPartition]
    owned: frozenset[GroupPartition]
    may_take: bool
    is_coordinator_unknown: bool
    last_answer_ms: int | None

    def __init__(self, group_id: str, backoff: Backoff, *, is_static: bool = False) -> None:
        super().__init__(group_id, backoff)
        self._is_static = is_static
        self._interval_ms = FIRST_INTERVAL_MS
        self._has_to_say_all = True
        self._has_to_say_owned = False
        self._has_to_say_topics = False

    def subscribe(self, topics: tuple[str, ...], pattern: str | None, now_ms: int) -> None:
        self._topics, self._pattern = topics, pattern
        self._has_to_say_topics = True
        self._due_ms = now_ms
        if self.state is MemberState.OUTSIDE:
            self.epoch = JOIN_EPOCH
            self._has_to_say_all = True
            self.move_to(MemberState.JOINING)

    def goodbye(self) -> LeaveHeartbeat:
        """A static member keeps its partitions until it comes back or its session ends, whatever the reason
        for which it leaves, as in Kafka's consumer.
        """
        return LeaveHeartbeat(STATIC_LEAVE_EPOCH if self._is_static else LEAVE_EPOCH)

    def request(self, now_ms: int) -> Heartbeat | None:
        if not self._is_due(now_ms):
            return None
        self._is_in_flight = True
        says_all = self._has_to_say_all or self.epoch == JOIN_EPOCH
        says_topics = says_all or self._has_to_say_topics
        says_owned = says_all or self._has_to_say_owned
        self._has_to_say_all = self._has_to_say_topics = self._has_to_say_owned = False
        if says_owned:
            self.may_take = False
        return Heartbeat(
            self._attempt,
            self.epoch,
            self._topics if says_topics else None,
            self._pattern if says_topics else None,
            (frozenset() if self.epoch == JOIN_EPOCH else self.owned) if says_owned else None,
        )

    def _handle(self, answer: HeartbeatAnswered, now_ms: int) -> None:
        code = answer.error_code
        if code == ErrorCode.NONE:
            self._accepted(answer, now_ms)
        elif code in _REJOIN:
            self._has_to_say_all = True
            self.epoch = JOIN_EPOCH
            self._due_ms = now_ms
            if self.state is not MemberState.JOINING and self.state is not MemberState.LOSING:
                self.move_to(MemberState.LOSING)
        elif code in OTHER_COORDINATOR or code in _LATER:
            self.is_coordinator_unknown |= code in OTHER_COORDINATOR
            self._retry_later(now_ms)
        else:
            self._fail(code, answer.message)

    def _accepted(self, answer: HeartbeatAnswered, now_ms: int) -> None:
        self._attempts = 0
        self.may_take = True
        self.last_answer_ms = now_ms
        self._interval_ms = answer.interval_ms or FIRST_INTERVAL_MS
        self._due_ms = now_ms + self._interval_ms
        if self.state is MemberState.LOSING:
            return
        self.epoch = answer.member_epoch
        if self._has_to_say_owned or self._has_to_say_topics:
            self._due_ms = now_ms
        if answer.assignment is not None:
            self.target = answer.assignment
        wanted = MemberState.STABLE if self.target == self.owned else MemberState.RECONCILING
        if self.state in (MemberState.JOINING, MemberState.STABLE) and self.state is not wanted:
            self.move_to(wanted)

    def place_of(self, partition: GroupPartition, view: ClusterView) -> TopicPartition | None:
        topic, index = partition
        name = None if isinstance(topic, str) else view.names_by_id.get(topic)
        return None if name is None else TopicPartition(name, index)

    def prepare(self, now_ms: int) -> None:
        """Does nothing, because the coordinator decides when partitions change."""

    def _retry_later(self, now_ms: int) -> None:
        self._has_to_say_all = True
        super()._retry_later(now_ms)

    def _say_owned(self, now_ms: int) -> None:
        self._has_to_say_owned = True
        self._due_ms = now_ms
