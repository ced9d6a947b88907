"""The drivers of consumers: they carry out what a core decides, with calls to brokers and coordinators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from tidelog.client.calls import NO_MEMBER_EPOCH
from tidelog.client.core.cluster_view import PartitionLeader, partitions_by_topic
from tidelog.client.core.consuming.classic_membership import (
    ClassicRequest,
    GroupHeartbeat,
    GroupHeartbeatAnswered,
    JoinAnswered,
    JoinGroup,
    SyncAnswered,
    SyncGroup,
)
from tidelog.client.core.consuming.consumed_partition import OffsetToCommit
from tidelog.client.core.consuming.consumer import ConsumerCore
from tidelog.client.core.consuming.consumer_events import (
    AssignmentDone,
    CheckPositions,
    CommitConsumed,
    CommittedFound,
    Event,
    FetchAnswered,
    FetchedPartition,
    FetchFailed,
    GroupRequestFailed,
    LeaveGroup,
    LookUpCommitted,
    LookupFailed,
    LookUpOffsets,
    MetadataFailed,
    OffsetsFound,
    PartitionsAssigned,
    PositionsChecked,
    RecordsReady,
    RequestMetadata,
    RevocationDone,
    RevokePartitions,
    SendFetch,
    SendGroupRequest,
    SessionRequest,
    TopicReplaced,
    TopicsMissing,
    TruncationFound,
)
from tidelog.client.core.consuming.membership import Heartbeat, HeartbeatAnswered, MemberState
from tidelog.client.core.consuming.share_consumer import ShareConsumerCore
from tidelog.client.core.settings import ConsumerSettings
from tidelog.client.errors import ClientError, ClosedError, StaleMemberError, UnknownTopicError, request_error
from tidelog.client.shell.consuming.callbacks import RebalanceCallbacks
from tidelog.client.shell.consuming.group_calls import (
    PERMANENT_ERRORS,
    GroupCalls,
    Member,
    is_temporary,
    refusal_code,
)
from tidelog.client.shell.consuming.share_calls import ShareCalls
from tidelog.client.shell.network import Network
from tidelog.client.shell.tasks import CoreTasks, now_ms
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import READ_COMMITTED
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

logger: Final = logging.getLogger("tidelog.client")
Core = TypeVar("Core", ConsumerCore, ShareConsumerCore)
FETCH_SINCE: Final = 7
LAST_FETCH_BY_NAME: Final = 12
INTERRUPTED_CLOSE_TIMEOUT_S: Final = 5.0
"""The time to commit and to call `on_revoked` after an exception, and for the goodbye to the coordinator."""
_EMPTY: Final = memoryview(b"")


class CoreDriver(Generic[Core]):
    """The common part of the drivers of a consumer and of a share consumer."""

    def __init__(self, subject: str, core: Core, network: Network, calls: GroupCalls | ShareCalls) -> None:
        """`subject` names the consumer in the log."""
        self.core: Core = core
        self.network: Network = network
        self.tasks: CoreTasks = CoreTasks(subject, self.pump)
        self.ready: asyncio.Event = asyncio.Event()
        """Set when the application has to look for records or an error."""
        self.is_closed: bool = False
        """Whether the application has closed the consumer, which may still give up its partitions."""
        self.has_ended: bool = False
        self._subject = subject
        self.calls: GroupCalls | ShareCalls = calls

    async def start(self) -> None:
        """Connects to a broker. Raises ClientError."""
        self.tasks.start()
        await self.network.start()

    async def end_work(self) -> None:
        """Ends the tasks. Neither the core nor the application gives them more to do."""
        self.has_ended = True
        await self.tasks.stop()

    def check_open(self) -> None:
        """Raises ClosedError unless the application may ask for records."""
        if self.is_closed:
            raise ClosedError("the consumer is closed")
        if self.tasks.loop is None:
            raise ClosedError("the consumer was not started: use `async with`, or await `start`")

    def begin_poll(self) -> None:
        self.ready.clear()
        self.perform(self.core.begin_poll(now_ms()))

    def end_poll(self) -> None:
        self.core.end_poll(now_ms())
        self.pump()

    async def await_records(self, timeout_s: float | None) -> None:
        """Waits until the application has to look for records. Its poll goes on, or is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.ready.wait()
        except TimeoutError:
            pass
        finally:
            self.core.end_poll(now_ms())

    def pump(self) -> None:
        self.network.home.check()
        if not self.has_ended and self.tasks.loop is not None:
            self.perform(self.core.poll(now_ms()))

    def step(self, event: Any) -> None:  # Any: each core has events of its own
        if not self.has_ended:
            self.perform(self.core.step(event, now_ms()))

    def perform(self, effects: Sequence[object]) -> None:
        for effect in effects:
            self._carry_out(effect)
        at_ms = now_ms()
        wake_ms = self.core.next_wake_ms(at_ms)
        self.tasks.wake_in(None if wake_ms is None else max(1, wake_ms - at_ms))

    def _carry_out(self, effect: object) -> None:
        """Carries out an effect that both cores have."""
        match effect:
            case RecordsReady():
                self.ready.set()
            case RequestMetadata(topics, has_unknown_ids):
                self.tasks.spawn(self._request_metadata(None if has_unknown_ids else topics))
            case SendGroupRequest(request, finds_coordinator):
                self.tasks.spawn(self._ask_group(request, finds_coordinator))
            case TopicsMissing(reasons):
                for subject, reason in reasons.items():
                    logger.warning("the %s gets no records of %s: %s", self._subject, subject, reason)
            case LeaveGroup(goodbye):
                logger.warning(
                    "the application did not poll for max.poll.interval.ms (%d), so the %s leaves its group",
                    self.core.settings.max_poll_interval_ms,
                    self._subject,
                )
                if goodbye is not None:
                    self.tasks.spawn(self.say_goodbye(goodbye))

    async def _request_metadata(self, topics: tuple[str, ...] | None) -> None:
        creates = self.core.settings.allow_auto_create_topics
        try:
            received = await self.network.metadata(topics, creates=creates)
        except ClientError as error:
            logger.info("no metadata: %s", error)
            self.step(MetadataFailed())
            return
        self.step(received._replace(is_complete=topics is None))

    async def _ask_group(self, request: Any, finds_coordinator: bool) -> None:
        """Sends a request of the membership. Any: a share group has heartbeats only."""
        if finds_coordinator:
            self.calls.coordinator.forget()
        try:
            answer: object = await self.calls.ask(request)
        except (KafkaError, ClientError) as error:
            if is_temporary(error):
                logger.info("a request to the group's coordinator failed: %s", error)
                self.step(GroupRequestFailed(request))
                return
            answer = _refused(request, error)
        self.step(answer)

    async def say_goodbye(self, goodbye: Any) -> None:
        """Leaves the group. Any: a share group has goodbyes of one kind only."""
        await self.quietly(self.calls.leave(goodbye), "leave its group")

    async def quietly(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Logs an error of a call on whose success nothing depends."""
        try:
            await work
        except (KafkaError, ClientError) as error:
            logger.warning("the %s could not %s: %s", self._subject, what, error)


class ConsumerDriver(CoreDriver[ConsumerCore]):
    """The driver of a consumer of topics. It knows the membership and commits."""

    def __init__(self, core: ConsumerCore, network: Network) -> None:
        self.settings: ConsumerSettings = core.settings
        self.calls: GroupCalls = GroupCalls(network, core.settings, core.view)
        super().__init__("consumer", core, network, self.calls)
        self.callbacks: RebalanceCallbacks = RebalanceCallbacks()
        self.commit_count: int = 0
        self._commit_lock = asyncio.Lock()
        self.calls.member = self.member

    async def close(self, *, commits: bool, timeout_s: float) -> None:
        """Gives up the partitions within `timeout_s`, leaves the group, and closes the connections."""
        if self.is_closed or not self.network.home.is_current:
            return
        self.is_closed = self.calls.is_closing = True
        self.ready.set()
        try:
            await self._within(timeout_s, "give up its partitions", self.give_up(commits=commits))
            await self.end_work()
            membership = self.core.membership
            goodbye = membership.goodbye() if membership is not None and membership.is_active else None
            if goodbye is not None:
                leaving = self.say_goodbye(goodbye)
                await self._within(INTERRUPTED_CLOSE_TIMEOUT_S, "leave its group", leaving)
        finally:
            await self.end_work()
            await self.network.close()

    async def _within(self, timeout_s: float, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await work
        except TimeoutError:
            logger.warning("the consumer could not %s in %g s", what, timeout_s)

    async def give_up(self, *, commits: bool = True) -> None:
        """Commits what is dealt with, if commits are automatic, and tells the application of the partitions
        that it gives up.
        """
        if commits and self.settings.enable_auto_commit and self.settings.group_id is not None:
            await self.commit_quietly(self.core.partitions.commitable())
        places, is_lost = self.core.partitions_to_leave()
        await self.callbacks.given_up(places, is_lost=is_lost)

    def member(self) -> Member:
        """Returns the member as requests about offsets name it now."""
        membership = self.core.membership
        if membership is None:
            return Member()
        if not membership.is_active:
            return Member(departures=membership.departures)
        member_id = self.calls.member_id if membership.member_id is None else membership.member_id
        return Member(
            member_id,
            membership.epoch,
            self.settings.is_classic,
            membership.awaits_others,
            membership.departures,
            membership.last_answer_ms,
        )

    def _carry_out(self, effect: object) -> None:
        match effect:
            case SendFetch():
                self.tasks.spawn(self._fetch(effect))
            case LookUpCommitted():
                self.tasks.spawn(self._look_up_committed(effect))
            case LookUpOffsets():
                self.tasks.spawn(self._look_up_offsets(effect))
            case CheckPositions():
                self.tasks.spawn(self._check_positions(effect))
            case TruncationFound(place, position, end_offset):
                logger.warning(
                    "%s has lost records that were read before offset %d; the consumer goes on at %s",
                    place,
                    position,
                    "the reset position" if end_offset is None else end_offset,
                )
            case TopicReplaced(topic):
                logger.warning(
                    "topic '%s' was deleted and created again; its records are read from the committed "
                    "offsets of the new topic, or from auto.offset.reset",
                    topic,
                )
            case CommitConsumed(offsets):
                if not self._commit_lock.locked():  # else after the next interval
                    self.tasks.spawn(self.commit_quietly(offsets))
            case RevokePartitions():
                self.tasks.spawn(self._revoke(effect))
            case PartitionsAssigned(places):
                self.tasks.spawn(self._assign(places))
            case _:
                super()._carry_out(effect)

    async def _fetch(self, effect: SendFetch) -> None:
        try:
            connection = await self.network.broker(effect.node_id)
            answer: FetchResponse = await connection.call(
                fetch_request(effect, self.settings),
                self.network.timeout_s + self.settings.fetch_max_wait_ms / 1000,
                at_least=FETCH_SINCE,
                at_most=None if effect.session.has_ids else LAST_FETCH_BY_NAME,
            )
        except ClientError as error:
            logger.info("a fetch failed: %s", error)
            self.step(FetchFailed(effect.request_id))
            return
        partitions = fetched_partitions(answer, effect.session, self.settings.isolation)
        self.step(FetchAnswered(effect.request_id, answer.error_code, partitions, answer.session_id))

    async def _look_up_committed(self, effect: LookUpCommitted) -> None:
        try:
            found = await self.calls.committed(effect.generations)
        except (KafkaError, ClientError) as error:
            self._lookup_failed(effect, error)
            return
        self.step(CommittedFound(effect, found))

    async def _look_up_offsets(self, effect: LookUpOffsets) -> None:
        try:
            found = await self.calls.offsets(effect.timestamps)
        except (KafkaError, ClientError) as error:
            self._lookup_failed(effect, error)
            return
        self.step(OffsetsFound(effect, found))

    def _lookup_failed(
        self, effect: LookUpCommitted | LookUpOffsets, error: KafkaError | ClientError
    ) -> None:
        logger.warning("the consumer could not look up its positions: %s", error)
        self.step(LookupFailed(effect, _kafka_error(error)))

    async def _check_positions(self, effect: CheckPositions) -> None:
        try:
            ends = await self.calls.epoch_ends(effect.node_id, effect.checks)
        except ClientError as error:
            logger.info("positions could not be checked: %s", error)
            ends = {}
        self.step(PositionsChecked(effect.checks, ends))

    async def _assign(self, places: tuple[TopicPartition, ...]) -> None:
        await self.callbacks.assigned(places)
        self._report_callback_error()
        self.step(AssignmentDone(places))

    async def _revoke(self, effect: RevokePartitions) -> None:
        places, is_lost, step = effect
        if not is_lost:
            if self.settings.enable_auto_commit:
                await self.commit_quietly(self.core.partitions.commitable(places))
            async with self._commit_lock:
                pass  # a commit that is under way would replace one of the next owner
        await self.callbacks.given_up(places, is_lost=is_lost)
        self._report_callback_error()
        self.step(RevocationDone(step))

    def _report_callback_error(self) -> None:
        """Lets the application's poll raise the exception of a callback."""
        if self.callbacks.error is not None:
            self.core.require_full_poll()
            self.ready.set()

    def check_pace(self, subject: str) -> None:
        """Raises StaleMemberError if the application polled too rarely and has not been told yet."""
        if self.core.is_removed_for_slowness:
            raise StaleMemberError(
                f"{subject} for group '{self.settings.group_id}': the consumer left the group, because the "
                "application did not poll for max.poll.interval.ms"
            )

    def check_member(self, subject: str) -> None:
        """Raises StaleMemberError if the consumer subscribes and has no id or epoch in its group."""
        self.check_pace(subject)
        membership = self.core.membership
        if membership is None or membership.state is MemberState.OUTSIDE:
            return
        if self.member().epoch == NO_MEMBER_EPOCH:
            raise StaleMemberError(
                f"{subject} for group '{self.settings.group_id}': the consumer is no member of the group at "
                "present"
            )

    async def commit(self, offsets: Mapping[TopicPartition, OffsetToCommit]) -> None:
        self.check_member("commit")
        member = self.member()
        async with self._commit_lock:  # a later commit must not overtake an earlier one
            await self.calls.commit(offsets, member)
        self.commit_count += 1
        if self.member().departures == member.departures:  # else another member may have committed since
            self.core.partitions.committed(offsets)

    async def commit_quietly(self, offsets: Mapping[TopicPartition, OffsetToCommit]) -> None:
        if not offsets:
            return
        try:
            await self.commit(offsets)
        except UnknownTopicError as error:
            logger.info("%s", error)  # nobody needs an offset of a deleted topic
        except (KafkaError, ClientError) as error:
            logger.warning("an automatic commit failed: %s", error)


def _refused(request: Heartbeat | ClassicRequest, error: KafkaError | ClientError) -> Event:
    """Returns the answer to a request that no repetition gets through."""
    code = refusal_code(error)
    match request:
        case Heartbeat():
            return HeartbeatAnswered(request, code, str(error), 0, 0, None)
        case JoinGroup():
            return JoinAnswered(request, code, "", -1, "", "", (), message=str(error))
        case SyncGroup():
            return SyncAnswered(request, code, b"", str(error))
        case GroupHeartbeat():
            return GroupHeartbeatAnswered(request, code, str(error))


def _kafka_error(error: KafkaError | ClientError) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    code = (
        ErrorCode.UNSUPPORTED_VERSION if isinstance(error, PERMANENT_ERRORS) else ErrorCode.NETWORK_EXCEPTION
    )
    return request_error(code, "offsets", str(error))


def fetch_request(effect: SendFetch, settings: ConsumerSettings) -> FetchRequest:
    session = effect.session
    topics: dict[str, FetchTopic] = {}
    for place in session.changed:
        offset, leader_epoch = effect.offsets[place]
        row = FetchPartition(place.partition, leader_epoch, offset)
        row.partition_max_bytes = settings.max_partition_fetch_bytes
        topic = topics.setdefault(place.topic, FetchTopic(place.topic, session.topic_ids[place.topic]))
        topic.partitions.append(row)
    request = FetchRequest(
        max_wait_ms=settings.fetch_max_wait_ms,
        min_bytes=settings.fetch_min_bytes,
        max_bytes=settings.fetch_max_bytes,
        isolation_level=settings.isolation,
        session_id=session.session_id,
        session_epoch=session.epoch,
        topics=list(topics.values()),
        forgotten_topics_data=[
            ForgottenTopic(name, session.topic_ids[name], indexes)
            for name, indexes in partitions_by_topic(session.forgotten).items()
        ],
        rack_id=settings.client_rack,
    )
    request.replica_id = -1
    return request


def fetched_partitions(
    answer: FetchResponse, session: SessionRequest, isolation: int
) -> dict[TopicPartition, FetchedPartition]:
    """Returns the answers by name."""
    names = {topic_id: name for name, topic_id in session.topic_ids.items()}
    partitions: dict[TopicPartition, FetchedPartition] = {}
    for topic_row in answer.responses:
        name = topic_row.topic or names.get(topic_row.topic_id, "")
        for data in topic_row.partitions:
            partitions[TopicPartition(name, data.partition_index)] = _fetched(data, isolation)
    return partitions


def _fetched(data: PartitionData, isolation: int) -> FetchedPartition:
    aborted: list[tuple[int, int]] = []
    if isolation == READ_COMMITTED:
        rows = data.aborted_transactions or ()
        aborted = [(row.first_offset, row.producer_id) for row in rows]
    leader = data.current_leader
    return FetchedPartition(
        data.error_code,
        memoryview(data.records) if data.records else _EMPTY,  # type: ignore[arg-type]  # decoded: a view
        data.high_watermark,
        data.last_stable_offset,
        data.log_start_offset,
        aborted,
        data.preferred_read_replica,
        None
        if leader is None or leader.leader_id < 0
        else PartitionLeader(leader.leader_id, leader.leader_epoch),
    )
