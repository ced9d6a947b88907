"""The requests of a consumer to its group's coordinator, and those about offsets, with their retries."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from tidelog.client import calls
from tidelog.client.calls import GROUP, NO_MEMBER_EPOCH
from tidelog.client.core.cluster_view import ClusterView, EpochEnd, in_parts, partitions_by_topic
from tidelog.client.core.connection_settings import ConnectionSettings
from tidelog.client.core.consuming.assignors import PROTOCOL_TYPE
from tidelog.client.core.consuming.classic_membership import (
    ClassicAnswer,
    ClassicRequest,
    GroupHeartbeat,
    GroupHeartbeatAnswered,
    GroupMember,
    JoinAnswered,
    JoinGroup,
    LeaveGroupRequest,
    SyncAnswered,
    SyncGroup,
)
from tidelog.client.core.consuming.consumed_partition import OffsetToCommit
from tidelog.client.core.consuming.consumer_events import PositionCheck
from tidelog.client.core.consuming.membership import (
    GroupPartition,
    Heartbeat,
    HeartbeatAnswered,
    LeaveHeartbeat,
)
from tidelog.client.core.settings import ConsumerSettings
from tidelog.client.errors import (
    AuthenticationFailedError,
    ClientError,
    NetworkError,
    NotKafkaError,
    NotTrustedError,
    RequestTimeoutError,
    StaleMemberError,
    UnknownTopicError,
    UnsupportedApiError,
    request_error,
)
from tidelog.client.shell.connection import AsyncConnection, answer_of
from tidelog.client.shell.network import Network
from tidelog.model.errors import ErrorCode, KafkaError, meaning_of
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.wire.messages.leave_group import LeaveGroupRequest as WireLeaveGroupRequest
from tidelog.wire.messages.leave_group import MemberIdentity
from tidelog.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tidelog.wire.messages.share_group_heartbeat import ShareGroupHeartbeatResponse
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

COORDINATOR_LANE: Final = "coordinator"
"""Requests to a coordinator have a connection of their own, because fetches wait at the broker."""
REBALANCE_LANE: Final = "rebalance"
"""JoinGroup and SyncGroup wait at the broker for other members."""
REBALANCE_GRACE_S: Final = 5.0
"""The time that a response to JoinGroup may take after the end of the rebalance, as in Kafka's clients."""
PERMANENT_ERRORS: Final = (AuthenticationFailedError, NotTrustedError, NotKafkaError, UnsupportedApiError)
"""The failures of a connection that no repetition cures."""
COORDINATOR_ERRORS: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_MEMBER_ERRORS: Final = frozenset(
    {
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
_DELETED: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
T = TypeVar("T")


def is_temporary(error: KafkaError | ClientError) -> bool:
    """Returns whether a repetition may succeed."""
    if isinstance(error, KafkaError):
        return error.is_retriable
    return not isinstance(error, PERMANENT_ERRORS)


def refusal_code(error: KafkaError | ClientError) -> ErrorCode:
    """Returns the code with which a core learns of an error that no repetition cures."""
    return error.code if isinstance(error, KafkaError) else ErrorCode.UNSUPPORTED_VERSION


def heartbeat_answered(
    request: Heartbeat,
    answer: ConsumerGroupHeartbeatResponse | ShareGroupHeartbeatResponse,
) -> HeartbeatAnswered:
    """Returns what a heartbeat's response means for the membership."""
    assignment = None
    if answer.assignment is not None:
        assignment = frozenset(
            (topic.topic_id, index)
            for topic in answer.assignment.topic_partitions
            for index in topic.partitions
        )
    return HeartbeatAnswered(
        request,
        answer.error_code,
        answer.error_message,
        answer.member_epoch,
        answer.heartbeat_interval_ms,
        assignment,
    )


class Member(NamedTuple):
    """A member of the group, as requests about offsets name it. The epoch may be a generation."""

    member_id: str = ""
    epoch: int = NO_MEMBER_EPOCH
    is_classic: bool = False
    is_joining: bool = False
    """Whether a rebalance of a classic group is going on, in which a commit may have to wait."""
    departures: int = 0
    """The number of times that the member has lost or left its group."""
    last_answer_ms: int | None = None
    """When the coordinator last answered a heartbeat, or a request of a rebalance."""


async def until_answered(
    settings: ConnectionSettings, timeout_ms: int, subject: str, ask: Callable[[], Awaitable[T]]
) -> T:
    """Repeats `ask` while its errors are temporary, and cancels it after `timeout_ms`. Raises KafkaError,
    ClientError: the last temporary error, or RequestTimeoutError if there was none.
    """
    backoff = settings.retry_backoff(random.random)
    last: KafkaError | ClientError | None = None
    attempts = 0
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while True:
                try:
                    return await ask()
                except (KafkaError, ClientError) as error:
                    if not is_temporary(error):
                        raise
                    last = error
                attempts += 1
                await asyncio.sleep(backoff.delay_ms(attempts) / 1000)
    except TimeoutError:
        if isinstance(last, KafkaError):
            raise last from None
        if last is not None:
            raise NetworkError(f"{subject}: {last}") from last
        raise RequestTimeoutError(f"{subject}: no answer in {timeout_ms} ms") from None


class Coordinator:
    """The location of one coordinator, which is looked up again after an error."""

    def __init__(self, network: Network, kind: int, key: str) -> None:
        self._network = network
        self._kind = kind
        self._key = key
        self._node_id: int | None = None

    async def connection(self, lane: str = COORDINATOR_LANE) -> AsyncConnection:
        """Raises KafkaError, ClientError."""
        if self._node_id is None:
            call = calls.find_coordinator(self._kind, self._key)
            found = call.read(await self._network.call_any(call.request))
            self._network.learn_node(*found)
            self._node_id = found.node_id
        try:
            return await self._network.broker(self._node_id, lane)
        except ClientError:
            self.forget()
            raise

    def forget(self) -> None:
        self._node_id = None

    def check(self, code: int, subject: str, message: str | None = None) -> None:
        """Raises the error of a response, and forgets the coordinator if the error says that it moved."""
        if code in COORDINATOR_ERRORS:
            self.forget()
        if code:
            raise request_error(code, subject, message)


class GroupCalls:
    def __init__(self, network: Network, settings: ConsumerSettings, view: ClusterView) -> None:
        self._network = network
        self._settings = settings
        self._view = view
        self.group_id: str = settings.group_id or ""
        self.coordinator: Coordinator = Coordinator(network, GROUP, self.group_id)
        self.member_id: str = str(uuid.uuid4())
        self.member: Callable[[], Member] = Member
        self.is_closing = False
        """Whether the membership does not go on, so that no new generation comes."""

    async def ask(self, request: Heartbeat | ClassicRequest) -> HeartbeatAnswered | ClassicAnswer:
        """Sends a request of the membership. Raises KafkaError, ClientError."""
        answer: HeartbeatAnswered | ClassicAnswer
        match request:
            case Heartbeat():
                answer = await self._heartbeat(request)
            case JoinGroup():
                answer = await self._join(request)
            case SyncGroup():
                answer = await self._sync(request)
            case GroupHeartbeat():
                answer = await self._classic_heartbeat(request)
        if answer.error_code in COORDINATOR_ERRORS:
            self.coordinator.forget()
        return answer

    @property
    def _rebalance_timeout_s(self) -> float:
        """The time in which the other members join, too."""
        return max(self._network.timeout_s, self._settings.max_poll_interval_ms / 1000 + REBALANCE_GRACE_S)

    async def _join(self, request: JoinGroup) -> JoinAnswered:
        settings = self._settings
        connection = await self.coordinator.connection(REBALANCE_LANE)
        answer: JoinGroupResponse = await connection.call(
            JoinGroupRequest(
                self.group_id,
                settings.session_timeout_ms,
                settings.max_poll_interval_ms,
                request.member_id,
                settings.group_instance_id,
                PROTOCOL_TYPE,
                [JoinGroupRequestProtocol(name, data) for name, data in request.protocols],
            ),
            self._rebalance_timeout_s,
            at_least=0 if settings.group_instance_id is None else 5,
        )
        members = tuple(
            GroupMember(row.member_id, row.group_instance_id, bytes(row.metadata)) for row in answer.members
        )
        return JoinAnswered(
            request,
            answer.error_code,
            answer.member_id,
            answer.generation_id,
            answer.protocol_name or "",
            answer.leader,
            members,
            answer.skip_assignment,
        )

    async def _sync(self, request: SyncGroup) -> SyncAnswered:
        settings = self._settings
        connection = await self.coordinator.connection(REBALANCE_LANE)
        answer: SyncGroupResponse = await connection.call(
            SyncGroupRequest(
                self.group_id,
                request.generation,
                request.member_id,
                settings.group_instance_id,
                PROTOCOL_TYPE,
                request.protocol,
                [SyncGroupRequestAssignment(member_id, data) for member_id, data in request.assignments],
            ),
            self._rebalance_timeout_s,
        )
        return SyncAnswered(request, answer.error_code, bytes(answer.assignment))

    async def _classic_heartbeat(self, request: GroupHeartbeat) -> GroupHeartbeatAnswered:
        wire = HeartbeatRequest(
            self.group_id, request.generation, request.member_id, self._settings.group_instance_id
        )
        connection = await self.coordinator.connection()
        answer: HeartbeatResponse = await connection.call(wire, self._network.timeout_s)
        return GroupHeartbeatAnswered(request, answer.error_code)

    async def _heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswered:
        settings = self._settings
        is_full = heartbeat.topics is not None
        request = ConsumerGroupHeartbeatRequest(
            self.group_id,
            self.member_id,
            heartbeat.member_epoch,
            settings.group_instance_id,
            settings.client_rack or None if is_full else None,
            settings.max_poll_interval_ms if is_full else -1,
            None if heartbeat.topics is None else list(heartbeat.topics),
            heartbeat.pattern,
            settings.group_remote_assignor if is_full else None,
            None if heartbeat.owned is None else _topic_partitions(heartbeat.owned),
        )
        connection = await self.coordinator.connection()
        answer: ConsumerGroupHeartbeatResponse = await connection.call(
            request, self._network.timeout_s, at_least=1 if heartbeat.pattern is not None else 0
        )
        return heartbeat_answered(heartbeat, answer)

    async def leave(self, goodbye: LeaveHeartbeat | LeaveGroupRequest) -> None:
        """Says goodbye. Raises KafkaError, ClientError."""
        connection = await self.coordinator.connection()
        instance_id = self._settings.group_instance_id
        if isinstance(goodbye, LeaveHeartbeat):
            beat = ConsumerGroupHeartbeatRequest(self.group_id, self.member_id, goodbye.epoch, instance_id)
            await connection.call(beat, self._network.timeout_s)
            return
        members = [MemberIdentity(goodbye.member_id, instance_id)]
        leave = WireLeaveGroupRequest(self.group_id, goodbye.member_id, members)
        await connection.call(leave, self._network.timeout_s)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetToCommit], owner: Member) -> None:
        """Commits offsets with the epochs of the records before them. `owner` is the member that chose them.

        A repetition names the member as it is then, with its new epoch. Raises KafkaError, ClientError;
        StaleMemberError if the member was removed in the meantime: another member may have committed more;
        UnknownTopicError if a topic was deleted, after the others were committed.
        """
        deleted: set[TopicPartition] = set()
        for part in in_parts(offsets.items()):
            deleted |= await self._commit(dict(part), owner)
        if deleted:
            places = ", ".join(map(str, sorted(deleted)))
            raise UnknownTopicError(
                f"commit for group '{self.group_id}': the topic of {places} was deleted, so its offset was "
                "not committed"
            )

    async def _commit(
        self, offsets: Mapping[TopicPartition, OffsetToCommit], owner: Member
    ) -> set[TopicPartition]:
        """Returns the partitions whose topics were deleted."""
        subject = f"commit for group '{self.group_id}'"
        deleted: set[TopicPartition] = set()
        refused: Member | None = None
        """The member as it was when the coordinator first refused its present epoch."""

        async def ask() -> None:
            nonlocal refused
            rows: dict[TopicPartition, OffsetToCommit] = {}
            for place, wanted in offsets.items():
                current_id = self._view.topic_id(place.topic)
                if wanted.topic_id is not None and current_id not in (None, wanted.topic_id):
                    deleted.add(place)  # another topic has the name
                if place not in deleted:
                    rows[place] = wanted._replace(topic_id=wanted.topic_id or current_id)
            if not rows:
                return
            member = self.member()
            is_member = member.epoch != NO_MEMBER_EPOCH
            if member.departures != owner.departures or is_member != (owner.epoch != NO_MEMBER_EPOCH):
                raise StaleMemberError(
                    f"commit for group '{self.group_id}': the group removed the consumer, and may have given "
                    "the partitions to another member"
                )
            call = calls.commit_offsets(
                self.group_id,
                rows,
                epoch=member.epoch,
                member_id=member.member_id,
                instance_id=self._settings.group_instance_id if is_member else None,
            )
            connection = await self.coordinator.connection()
            for place, code in (await answer_of(connection, call, self._network.timeout_s)).items():
                subject = f"commit of {place} for group '{self.group_id}'"
                if code in _DELETED:
                    await self._learn_topics({place.topic})
                    if place.topic not in self._view.topics:
                        deleted.add(place)
                if code == ErrorCode.STALE_MEMBER_EPOCH and member.epoch > 0:
                    # A heartbeat brings the new epoch, or says that the member is out.
                    reason = f"{subject}: the coordinator does not accept the member epoch {member.epoch}"
                    if refused is None or refused.epoch != member.epoch:
                        refused = member
                    elif refused.last_answer_ms != member.last_answer_ms:
                        raise StaleMemberError(f"{reason}, although a heartbeat with it succeeded since")
                    raise KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, reason)
                if self._waits_for_generation(member, code):
                    raise request_error(ErrorCode.UNSTABLE_OFFSET_COMMIT, subject, "the group rebalances")
                if code in _MEMBER_ERRORS or code == ErrorCode.REBALANCE_IN_PROGRESS:
                    raise StaleMemberError(f"{subject}: the group gave the partition to another member")
                self.coordinator.check(code, subject)

        await self._until_answered(subject, ask)
        return deleted

    async def _learn_topics(self, topics: Collection[str]) -> None:
        self._view.update(await self._network.metadata(topics))

    def _waits_for_generation(self, member: Member, code: int) -> bool:
        """Whether a member of a classic group commits again after the rebalance, with its new generation."""
        if self.is_closing:
            return False
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return True
        now = self.member()
        return code == ErrorCode.ILLEGAL_GENERATION and (now.is_joining or now.epoch > member.epoch)

    async def committed(self, places: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Returns the committed offsets and epochs; the offset is -1 if there is none. Raises KafkaError,
        ClientError.
        """
        found: dict[TopicPartition, tuple[int, int]] = {}
        for part in in_parts(places):
            found |= await self._committed(part)
        return found

    async def _committed(self, places: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        wanted = partitions_by_topic(places)

        async def ask() -> dict[TopicPartition, tuple[int, int]]:
            names = {self._view.topic_id(name) or ZERO_TOPIC_ID: name for name in wanted}
            topics = [
                OffsetFetchRequestTopics(name, self._view.topic_id(name) or ZERO_TOPIC_ID, rows)
                for name, rows in wanted.items()
            ]
            member = self.member()
            if member.is_classic or member.epoch == NO_MEMBER_EPOCH:
                group = OffsetFetchRequestGroup(self.group_id, None, NO_MEMBER_EPOCH, topics=topics)
            else:
                group = OffsetFetchRequestGroup(self.group_id, member.member_id, member.epoch, topics=topics)
            call = calls.fetch_offsets(
                [group], requires_stable=True, has_topic_ids=ZERO_TOPIC_ID not in names
            )
            connection = await self.coordinator.connection()
            (found,) = await answer_of(connection, call, self._network.timeout_s)
            subject = f"committed offsets of group '{self.group_id}'"
            if found.error_code in _MEMBER_ERRORS:
                meaning = meaning_of(found.error_code)
                raise request_error(ErrorCode.UNSTABLE_OFFSET_COMMIT, subject, meaning)
            self.coordinator.check(found.error_code, subject)
            offsets: dict[TopicPartition, tuple[int, int]] = {}
            for topic in found.topics:
                for row in topic.partitions:
                    place = TopicPartition(topic.name or names[topic.topic_id], row.partition_index)
                    if row.error_code in _DELETED:
                        await self._learn_topics({place.topic})
                    self.coordinator.check(row.error_code, f"{subject}, {place}")
                    offsets[place] = (
                        row.committed_offset,
                        row.committed_leader_epoch,
                    )
            _check_complete(offsets, places, subject)
            return offsets

        return await self._until_answered(f"committed offsets of group '{self.group_id}'", ask)

    async def offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Returns the offsets of times: -1 is the end, -2 the beginning, others are milliseconds since 1970.

        The offset of a time after the last record is -1. Raises KafkaError, ClientError.
        """
        found: dict[TopicPartition, int] = {}

        async def ask() -> dict[TopicPartition, int]:
            left = {place: timestamp for place, timestamp in timestamps.items() if place not in found}
            if any(self._view.leader(place).leader < 0 for place in left):
                await self._learn_topics({place.topic for place in left})
            by_node: dict[int, list[TopicPartition]] = {}
            for place in left:
                leader = self._view.leader(place).leader
                if leader < 0:
                    code = self._view.errors.get(place.topic, ErrorCode.LEADER_NOT_AVAILABLE)
                    raise request_error(code, f"offset of {place}")
                by_node.setdefault(leader, []).append(place)
            for node_id, places in by_node.items():
                for part in in_parts(places):
                    await self._ask_leader(node_id, part, left, found)
            return found

        return await self._until_answered("offsets", ask)

    async def _ask_leader(
        self,
        node_id: int,
        places: list[TopicPartition],
        timestamps: Mapping[TopicPartition, int],
        found: dict[TopicPartition, int],
    ) -> None:
        asked = {place: timestamps[place] for place in places}
        call = calls.list_offsets(asked, isolation_level=self._settings.isolation)
        connection = await self._network.broker(node_id, COORDINATOR_LANE)
        for place, row in (await answer_of(connection, call, self._network.timeout_s)).items():
            if row.error_code:
                self._view.forget(place.topic)
                raise request_error(row.error_code, f"offset of {place}")
            found[place] = row.offset
        _check_complete(found, places, "offsets")

    async def epoch_ends(
        self, node_id: int, checks: Mapping[TopicPartition, PositionCheck]
    ) -> dict[TopicPartition, EpochEnd]:
        """Asks a leader for the ends of epochs in its log. Raises ClientError."""
        found: dict[TopicPartition, EpochEnd] = {}
        for part in in_parts(checks.items()):
            call = calls.epoch_ends(
                {place: check.epoch for place, check in part},
                {place: check.leader_epoch for place, check in part},
            )
            connection = await self._network.broker(node_id, COORDINATOR_LANE)
            ends = await answer_of(connection, call, self._network.timeout_s)
            found |= ends
        return found

    async def _until_answered(self, subject: str, ask: Callable[[], Awaitable[T]]) -> T:
        return await until_answered(self._settings, self._settings.default_api_timeout_ms, subject, ask)


def _check_complete(
    found: Mapping[TopicPartition, object], asked: Iterable[TopicPartition], subject: str
) -> None:
    """Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION) if a broker's answer leaves out a partition."""
    for place in asked:
        if place not in found:
            raise request_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{subject}: no answer for {place}")


def _topic_partitions(owned: Iterable[GroupPartition]) -> list[TopicPartitions]:
    grouped: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(owned, key=str):
        assert isinstance(topic_id, uuid.UUID)
        grouped.setdefault(topic_id, []).append(index)
    return [TopicPartitions(topic_id, indexes) for topic_id, indexes in grouped.items()]
