"""Fetch v4 to v18: batches from the log as ranges of files, with incremental sessions and long polling.

A response waits until `min_bytes` are available or `max_wait_ms` has passed. Small ranges are read into the
response, larger ones leave by sendfile. `follower_fetch.py` handles a follower's fetch (replica id >= 0).

From v11 on, a client may also fetch from a follower, up to the high watermark that this follower knows, and a
leader may name the replica that is closest to the client (KIP-392, `closest_replica`). A follower that
does not have the requested offset yet responds with OFFSET_NOT_AVAILABLE, so that the client retries.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tidelog.broker.cluster.view import closest_replica
from tidelog.broker.hosting.hosted_partitions import HostedPartitions
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.segment import FileRange, is_resident
from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.roles import FetchState
from tidelog.broker.replication.fetch_wire import (
    FETCH_VERSION,
    FollowerRequest,
    decode_request,
    follower_request,
)
from tidelog.broker.requests.client_fetch_sessions import (
    ClientFetchPosition,
    ClientPartitionKey,
    FetchPlan,
)
from tidelog.broker.requests.request import PARKED, Answer, RequestContext
from tidelog.broker.requests.waiting import DelayedRequest, WaitingRequests
from tidelog.kernel.instants import MonotonicMs
from tidelog.metrics.telemetry import TopicTraffic
from tidelog.model.acl import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import FIRST_VERSION_WITH_TOPIC_IDS, NO_REPLICA, NO_SESSION, UNKNOWN_OFFSET
from tidelog.model.topics import TopicPartition
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

if TYPE_CHECKING:
    from tidelog.broker.parts import BrokerParts

READ: Final = AclOperation.READ
FIRST_VERSION_FROM_FOLLOWERS: Final = 11
FIRST_VERSION_WITH_LEADERS: Final = 16
"""The first version whose responses name the leader to a client that asked another broker (KIP-951)."""
INLINE_RANGE_BYTES: Final = 32 * 1024
"""A range up to this size is read into the response if it is in the page cache, which is cheaper than a
sendfile of its own.
"""
INLINE_RESPONSE_BYTES: Final = 64 * 1024
"""The most bytes that are read into one response. Beyond it even small ranges leave by sendfile, so that
waiting responses hold little memory.
"""
MAX_ABORTED_TRANSACTIONS: Final = 5_000
"""The most aborted transactions of all partitions of one response, about 15 ms of work. A range of records
ends before the next one begins, or after the first batch of the response.
"""
FEW_PARTITIONS: Final = 32
"""A fetch that waits for at most this number of partitions is answered at once when the wait ends. With more,
it is answered soon.
"""
MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""The errors that come with the leader that this broker knows (KIP-951)."""

_log = structlog.get_logger(__name__)


class FollowerFetchHandler(Protocol):
    """Handles the fetches of followers."""

    def handle(self, request: FollowerRequest, context: RequestContext) -> Answer: ...


def decoder(version: int) -> codec.Decoder:
    """Returns the decoder of a version. The version that brokers use yields a FollowerRequest for a
    follower's.
    """
    return decode_request if version == FETCH_VERSION else codec.request_decoder(ApiKey.FETCH, version)


class FetchHandler:
    """Answers Fetch, with the parts of the broker that it needs."""

    __slots__ = (
        "authorizer",
        "clock",
        "followers",
        "hosted",
        "metadata",
        "replication_listener_names",
        "sessions",
        "settings",
        "telemetry",
        "waiting",
    )

    def __init__(self, parts: BrokerParts, followers: FollowerFetchHandler) -> None:
        self.authorizer = parts.authorizer
        self.hosted = parts.hosted
        self.metadata = parts.metadata
        self.sessions = parts.fetch_sessions
        self.waiting = parts.waiting
        self.settings = parts.current_settings
        self.telemetry = parts.telemetry
        self.clock = parts.clock
        self.followers = followers
        self.replication_listener_names = frozenset(
            self.settings.broker.listener_plan().replication_listener_names
        )
        """Followers fetch over these listeners only. Otherwise a client could report positions that no
        replica has reached, and acknowledge records that are not replicated.
        """

    def handle(self, request: FetchRequest | FollowerRequest, context: RequestContext) -> Answer:
        if isinstance(request, FollowerRequest):
            return self._handle_follower(request, context)
        state = request.replica_state
        if (request.replica_id if state is None else state.replica_id) >= 0:
            has_topic_ids = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
            return self._handle_follower(follower_request(request, has_topic_ids=has_topic_ids), context)
        try:
            plan = self.sessions.plan(
                request,
                context.api_version,
                context.connection.budget_key,
                self.clock.monotonic_ms(),
                None if self.authorizer is None else lambda key: self._may_read(key, context),
            )
        except KafkaError as error:
            return FetchResponse(error_code=error.code, session_id=NO_SESSION)
        fetch = Fetch(self, request, context, plan)
        reads = fetch.read()
        if fetch.is_complete(reads):
            return fetch.response(reads)
        reads.release()
        fetch.park()
        return PARKED

    def _may_read(self, key: ClientPartitionKey, context: RequestContext) -> bool:
        """Returns whether the client may read a partition. The read itself reports a denial."""
        authorizer = self.authorizer
        topic = key.topic or self.metadata.topic_names.get(key.topic_id, "")
        return authorizer is None or authorizer.may(
            context, READ, ResourceType.TOPIC, topic, is_asked_for=False
        )

    def _handle_follower(self, request: FollowerRequest, context: RequestContext) -> Answer:
        authorizer = self.authorizer
        if context.listener_name not in self.replication_listener_names or (
            authorizer is not None
            and not authorizer.may(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
        ):
            return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, session_id=NO_SESSION)
        context.charge = None  # quotas are for clients; replication has throttles of its own
        return self.followers.handle(request, context)


class PartitionRead:
    """The result for one partition: an error, the point where the reader's log diverges, a replica that is
    closer to the client, or a range (None if there is nothing to read) with the offsets that belong to it.
    """

    __slots__ = (
        "aborted",
        "diverging",
        "error",
        "high_watermark",
        "is_cut",
        "last_stable_offset",
        "log_start_offset",
        "position",
        "preferred_replica",
        "range",
        "traffic",
    )

    def __init__(self, position: ClientFetchPosition) -> None:
        self.position = position
        self.error = ErrorCode.NONE
        self.diverging: EpochEndOffset | None = None
        self.preferred_replica = NO_REPLICA
        self.high_watermark = UNKNOWN_OFFSET
        self.last_stable_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.range: FileRange | None = None
        self.aborted: list[AbortedTransaction] | None = None
        """The transactions whose records a read_committed client skips."""
        self.is_cut = False
        """Whether the range is shorter than it could be, so that more bytes are not to be waited for."""
        self.traffic: TopicTraffic | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether the response must leave at once, because waiting would not make it more complete."""
        return self.preferred_replica != NO_REPLICA or self.diverging is not None or self.is_cut


class Reads:
    """The results for all partitions of one fetch. A range keeps its file open until it is sent or
    released.
    """

    __slots__ = ("bytes", "is_urgent", "partitions")

    def __init__(self) -> None:
        self.partitions: list[PartitionRead] = []
        self.bytes = 0
        self.is_urgent = False
        """Whether the response must leave at once for another reason than records."""

    def release(self) -> None:
        """Releases the files of all ranges."""
        for read in self.partitions:
            if read.range is not None:
                read.range.release()


class Fetch:
    """One Fetch request of a client: reads, decides whether the result is complete, and builds the
    response.
    """

    __slots__ = (
        "_available",
        "_available_bytes",
        "_context",
        "_handler",
        "_plan",
        "_positions",
        "_readable",
        "_request",
    )

    def __init__(
        self, handler: FetchHandler, request: FetchRequest, context: RequestContext, plan: FetchPlan
    ) -> None:
        self._handler = handler
        self._request = request
        self._context = context
        self._plan = plan
        self._readable: dict[str, bool] = {}
        """The decisions of the authorizer about topics. They belong to the connection."""
        self._positions: dict[Hashable, ClientFetchPosition] | None = None
        """The positions of a fetch that waits."""
        self._available: dict[ClientFetchPosition, int] | None = None
        """The bytes that a fetch that waits has found at each position where there are any. It is None unless
        the fetch waits for more than one byte.
        """
        self._available_bytes = 0

    def park(self) -> None:
        """Waits until the result is complete or `max_wait_ms` has passed. The plan has all that the request
        asked for, so the request lets go of it: the budget counts a partition once, however often the request
        names it.
        """
        self._request.topics, self._request.forgotten_topics_data = [], []
        waiting, waiter = self._handler.waiting, DelayedFetch(self, self._context)
        self._context.park(on_abandoned=lambda: waiting.fetch.cancel(waiter))
        deadline_ms = MonotonicMs(waiting.timer.monotonic_ms() + self._request.max_wait_ms)
        positions: dict[Hashable, ClientFetchPosition]
        positions = self._positions = dict(zip(self._topic_partitions(), self._plan.partitions, strict=True))
        waiting.fetch.watch(waiter, positions, deadline_ms)

    def is_complete(self, reads: Reads) -> bool:
        """Returns whether the response need not wait."""
        request = self._request
        return (
            reads.bytes >= request.min_bytes
            or request.max_wait_ms <= 0
            or reads.is_urgent
            or not reads.partitions
        )

    def may_complete(self) -> bool:
        """Returns whether the wait may end. Leaves no file open."""
        if self._request.min_bytes <= 1:  # the usual case: nothing was there when the request was parked
            return any(self._has_news(position) for position in self._plan.partitions)
        reads = self._read()
        reads.release()
        self._available_bytes = reads.bytes
        self._available = {
            read.position: len(read.range) for read in reads.partitions if read.range is not None
        }
        return self.is_complete(reads)

    def may_complete_after(self, changed: Hashable) -> bool:
        """Returns whether the wait may end after a change of one of its partitions."""
        position = None if self._positions is None else self._positions.get(changed)
        if position is None:
            return self.may_complete()
        available = self._available
        return self._has_news(position) if available is None else self._has_enough(position, available)

    @property
    def is_answered_soon(self) -> bool:
        """Whether the answer takes so long that fetches that wait for the same partition have turns."""
        return len(self._plan.partitions) > FEW_PARTITIONS

    @property
    def waiting(self) -> WaitingRequests:
        return self._handler.waiting

    def _has_enough(self, position: ClientFetchPosition, available: dict[ClientFetchPosition, int]) -> bool:
        """Looks again at one position. Returns whether `min_bytes` are available at all positions, or whether
        the response must leave at once. As in Kafka, only the limit of each partition holds for the bytes
        that are available, so that a fetch whose response is full does not go on waiting for more.
        """
        read = PartitionRead(position)
        at_others = self._available_bytes - available.pop(position, 0)
        try:
            left, replica = self._begin_to_read(), self._replica(position)
            self._read_partition(
                replica, read, left, MAX_ABORTED_TRANSACTIONS, at_least_one_batch=not at_others
            )
        except KafkaError:
            return True
        size = 0
        if read.range is not None:
            size = available[position] = len(read.range)
            read.range.release()
        self._available_bytes = at_others + size
        return read.is_urgent or self._available_bytes >= self._request.min_bytes

    def _has_news(self, position: ClientFetchPosition) -> bool:
        try:
            core = self._replica(position).core
        except KafkaError:
            return True
        is_readable = position.fetch_offset < core.read_limit(self._request.isolation_level)
        return is_readable or self._refusal(core, position) != ErrorCode.NONE

    def _topic_partitions(self) -> list[TopicPartition]:
        names = self._handler.metadata.topic_names
        return [
            TopicPartition(key.topic or names.get(key.topic_id, ""), key.partition)
            for key in (position.key for position in self._plan.partitions)
        ]

    def read(self) -> Reads:
        """Reads what is available, up to the limits of the request."""
        steps = self._context.steps
        if steps is None:
            return self._read()
        steps.read_began([topic_partition.topic for topic_partition in self._topic_partitions()])
        reads = self._read()
        steps.read_ended(reads.bytes, len(reads.partitions))
        return reads

    def _read(self) -> Reads:
        reads = Reads()
        left = self._begin_to_read()
        left_aborted = MAX_ABORTED_TRANSACTIONS
        for position in self._plan.partitions:
            read = PartitionRead(position)
            reads.partitions.append(read)
            try:
                replica = self._replica(position)
                self._read_partition(replica, read, left, left_aborted, at_least_one_batch=not reads.bytes)
                reads.is_urgent = reads.is_urgent or read.is_urgent
            except KafkaError as error:
                read.error = error.code
                reads.is_urgent = True
                self._handler.telemetry.fetch_failed(position.key.topic or None, error.code)
                continue
            if read.range is not None:
                size = len(read.range)
                reads.bytes += size
                left_aborted = max(left_aborted - len(read.aborted or ()), 0)
                left = max(left - size, 0)
        return reads

    def _begin_to_read(self) -> int:
        """Takes the authorizer's current decisions. Returns the most bytes that the response may have."""
        authorizer = self._handler.authorizer
        if authorizer is not None:
            self._readable = authorizer.decisions(self._context.connection, READ, ResourceType.TOPIC)
        left = min(self._request.max_bytes, self._handler.settings.broker.fetch_max_bytes)
        charge = self._context.charge
        quota_bytes = None if charge is None else charge.max_fetch_bytes
        return left if quota_bytes is None else min(left, quota_bytes)

    def _replica(self, position: ClientFetchPosition) -> Replica:
        key, handler = position.key, self._handler
        topic = key.topic or handler.metadata.topic_names.get(key.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if (
            handler.authorizer is not None
            and not self._readable.get(topic)
            and not handler.authorizer.may(self._context, READ, ResourceType.TOPIC, topic)
        ):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        replica = handler.hosted.replicas.get(TopicPartition(topic, key.partition))
        if replica is None:
            raise handler.hosted.no_replica_error(topic, key.partition)
        return replica

    def _read_partition(
        self,
        replica: Replica,
        read: PartitionRead,
        left: int,
        left_aborted: int,
        *,
        at_least_one_batch: bool,
    ) -> None:
        core, position = replica.core, read.position
        read.traffic = replica.traffic
        error = self._refusal(core, position)
        if error:
            raise KafkaError(error)
        rack = self._request.rack_id
        if rack and core.is_leader:
            closest = closest_replica(
                self._handler.settings.broker,
                self._handler.metadata,
                core,
                rack,
                position.fetch_offset,
                self._context.listener_name,
            )
            read.preferred_replica = NO_REPLICA if closest is None else closest
        if position.last_fetched_epoch >= 0:
            diverging = core.diverging_epoch(position.last_fetched_epoch, position.fetch_offset)
            read.diverging = None if diverging is None else EpochEndOffset(*diverging)
        max_bytes = min(left, position.max_bytes)
        is_elsewhere = read.preferred_replica != NO_REPLICA or read.diverging is not None
        file_range = None
        if not is_elsewhere and (max_bytes > 0 or at_least_one_batch):
            file_range = replica.read(
                position.fetch_offset,
                max(max_bytes, 0),
                self._request.isolation_level,
                at_least_one_batch=at_least_one_batch,
            )
        if self._request.isolation_level:
            read.aborted = []
            if file_range is not None:
                whole = file_range
                found, file_range = replica.aborted_within(
                    position.fetch_offset, whole, left_aborted, at_least_one_batch=at_least_one_batch
                )
                read.is_cut = file_range is not whole
                read.aborted = [AbortedTransaction(entry.producer_id, entry.first_offset) for entry in found]
        read.range = file_range
        read.high_watermark = core.high_watermark
        read.last_stable_offset = core.last_stable_offset
        read.log_start_offset = core.log_start_offset

    def _refusal(self, core: PartitionCore, position: ClientFetchPosition) -> ErrorCode:
        """Returns the error if the partition cannot be read here, else NONE."""
        error = core.leadership_error(position.current_leader_epoch)
        if (
            error != ErrorCode.NOT_LEADER_OR_FOLLOWER
            or not core.is_follower
            or self._context.api_version < FIRST_VERSION_FROM_FOLLOWERS
        ):
            return error
        # A thread that truncates the log must be alone with it.
        is_whole = core.fetch_state is not FetchState.TRUNCATING
        is_here = is_whole and position.fetch_offset <= core.log_end_offset
        return ErrorCode.NONE if is_here else ErrorCode.OFFSET_NOT_AVAILABLE

    def response(self, reads: Reads) -> FetchResponse:
        """Returns the response with the ranges of `reads`, and takes them over."""
        session, is_incremental = self._plan.session, self._plan.is_incremental
        charge = self._context.charge
        if charge is not None and charge.exceeds_fetch_quota(reads.bytes):
            reads.release()
            return self._empty_response()
        topics = ResponseTopics()
        for read in reads.partitions:
            position, file_range = read.position, read.range
            has_more = (
                file_range is not None or read.diverging is not None or read.preferred_replica != NO_REPLICA
            )
            news = position.is_news(read.error, read.high_watermark, read.log_start_offset, has_more)
            if is_incremental and not news:
                continue
            key = position.key
            if file_range is not None:
                if read.traffic is not None:
                    read.traffic.fetch_requests += 1
                    read.traffic.bytes_out += file_range.length
                if session is not None:
                    session.move_to_end(key)
            topics.add(key.topic, key.topic_id, self._partition_data(read), file_range)
        self._handler.telemetry.fetched(reads.bytes)
        response = FetchResponse(
            session_id=NO_SESSION if session is None else session.session_id, responses=topics.topics
        )
        if reads.is_urgent:
            response.node_endpoints = self._node_endpoints(response.responses)
        return response

    def _empty_response(self) -> FetchResponse:
        """Returns the response to a client above its quota. A new session ends, because the client takes an
        empty response for none, and begins again (KIP-219).
        """
        session = self._plan.session
        if session is None or not self._plan.is_incremental:
            if session is not None:
                self._handler.sessions.remove(session.session_id)
            return FetchResponse(session_id=NO_SESSION)
        return FetchResponse(session_id=session.session_id)

    def _partition_data(self, read: PartitionRead) -> PartitionData:
        key = read.position.key
        data = PartitionData(
            partition_index=key.partition,
            error_code=read.error,
            high_watermark=read.high_watermark,
            last_stable_offset=read.last_stable_offset,
            log_start_offset=read.log_start_offset,
            diverging_epoch=read.diverging,
            aborted_transactions=read.aborted,
            preferred_read_replica=read.preferred_replica,
            records=b"",
        )
        if read.error in MOVED and self._context.api_version >= FIRST_VERSION_WITH_LEADERS:
            topic = key.topic or self._handler.metadata.topic_names.get(key.topic_id, "")
            data.current_leader = current_leader(self._handler.hosted, topic, key.partition)
        return data

    def _node_endpoints(self, topics: Iterable[FetchableTopicResponse]) -> list[NodeEndpoint]:
        """Returns the addresses of the leaders that the response names, so that a client need not ask for
        them.
        """
        leaders = {
            partition.current_leader.leader_id
            for topic in topics
            for partition in topic.partitions
            if partition.current_leader
        }
        return [
            NodeEndpoint(node.broker_id, endpoint.host, endpoint.port, node.rack)
            for node, endpoint in self._handler.metadata.nodes(leaders, self._context.listener_name)
        ]


class DelayedFetch(DelayedRequest):
    """A long poll. It completes when `min_bytes` can be read, an error occurs, or `max_wait_ms` has
    passed.
    """

    __slots__ = ("_fetch",)

    def __init__(self, fetch: Fetch, context: RequestContext) -> None:
        super().__init__(context)
        self._fetch = fetch

    def on_change(self, key: Hashable | None) -> bool:
        """Has a fetch of many partitions answered soon if its wait ends with a change."""
        fetch = self._fetch
        if key is None:
            return fetch.may_complete()
        if not fetch.may_complete_after(key):
            return False
        if fetch.is_answered_soon:
            fetch.waiting.complete_fetch_soon(self)
            return False
        return True

    def on_complete(self) -> None:
        reads = self._fetch.read()
        try:
            self.context.reply(self._fetch.response(reads))
        except BaseException:
            reads.release()
            raise


class InlineRecords:
    """Decides for each range of one response whether it is read into the response or leaves by sendfile."""

    __slots__ = ("_left_bytes",)

    def __init__(self) -> None:
        self._left_bytes = INLINE_RESPONSE_BYTES

    def take(self, file_range: FileRange) -> bytes | FileRange | None:
        """Returns the bytes of a small range, which it releases, or the range itself for sendfile. Returns
        None if the range cannot be read (KAFKA_STORAGE_ERROR).
        """
        size = file_range.length
        if (
            size > INLINE_RANGE_BYTES
            or size > self._left_bytes
            or not is_resident(file_range.fileno(), file_range.position + size - 1)
        ):
            return file_range
        self._left_bytes -= size
        try:
            return file_range.read()
        except OSError as error:
            _log.error("records cannot be read", range=repr(file_range), reason=str(error))
            return None
        finally:
            file_range.release()


class ResponseTopics:
    """Groups the partitions of a response by topic."""

    __slots__ = ("_records", "_topics")

    def __init__(self) -> None:
        self._topics: dict[object, FetchableTopicResponse] = {}
        self._records = InlineRecords()

    @property
    def topics(self) -> list[FetchableTopicResponse]:
        return list(self._topics.values())

    def add(self, topic: str, topic_id: uuid.UUID, data: PartitionData, file_range: FileRange | None) -> None:
        """Adds a partition and its records. The topic has a name or an id, as in the request."""
        if file_range is not None:
            records = self._records.take(file_range)
            if records is None:
                data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            else:
                data.records = records  # of a FileRange, the encoder needs only len()
        key: object = topic or topic_id.int
        in_response = self._topics.get(key)
        if in_response is None:
            in_response = self._topics[key] = FetchableTopicResponse(topic, topic_id, [])
        in_response.partitions.append(data)


def current_leader(hosted: HostedPartitions, topic: str, partition: int) -> LeaderIdAndEpoch | None:
    """Returns the leader for a client that asked the wrong broker, None if this broker does not know it."""
    known = hosted.leader_of(topic, partition)
    return None if known is None else LeaderIdAndEpoch(*known)
