"""Fetch v4 to v18: batches from the log as ranges of files, with incremental sessions and long polling.

An answer is held back until `min_bytes` are there or `max_wait_ms` has passed. Small ranges are read
into the answer, larger ones leave by sendfile. A follower's fetch (replica id >= 0) is taken up in
`follower_fetch.py`.

From v11 on a consumer may fetch from a follower, too, up to the high watermark that this one knows, and a
leader may name the replica that is closest to it (KIP-392, `closest_replica.py`). A follower that has not
got yet what is asked for answers OFFSET_NOT_AVAILABLE, so that the consumer comes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.closest_replica import closest_replica
from tidelog.broker.fetch_answer import MOVED, FetchAnswer, current_leader, node_endpoints
from tidelog.broker.fetch_sessions import NO_SESSION, FetchedPartition, FetchPlan
from tidelog.broker.handlers import follower_fetch
from tidelog.broker.partition.follower_role import FetchState
from tidelog.broker.replication.fetch_wire import (
    FETCH_VERSION,
    FollowerRequest,
    decode_request,
    follower_request,
)
from tidelog.broker.replication.follower_fetch_sessions import FIRST_VERSION_WITH_TOPIC_IDS
from tidelog.broker.request import PARKED, DelayedRequest, RequestContext
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.log.file_range import FileRange
    from tidelog.broker.partition.core import PartitionCore
    from tidelog.broker.replica import Replica
    from tidelog.runtime.telemetry import TopicTraffic

UNKNOWN_OFFSET = -1
NO_REPLICA = -1
FIRST_VERSION_FROM_FOLLOWERS = 11


def decoder(version: int) -> codec.Decoder:
    """The version that brokers speak is read as a follower's where it is one."""
    return decode_request if version == FETCH_VERSION else codec.request_decoder(ApiKey.FETCH, version)


def handle(broker: Broker, request: FetchRequest | FollowerRequest, context: RequestContext) -> object:
    if isinstance(request, FollowerRequest):
        return follower_fetch.handle(broker, request, context)
    state = request.replica_state
    if (request.replica_id if state is None else state.replica_id) >= 0:
        has_topic_ids = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
        return follower_fetch.handle(broker, follower_request(request, has_topic_ids=has_topic_ids), context)
    try:
        plan = broker.fetch_sessions.plan(request, context.api_version, broker.clock.now_ms())
    except KafkaError as error:
        return FetchResponse(error_code=error.code, session_id=NO_SESSION)
    return answer_or_park(Fetch(broker, request, context, plan))


def answer_or_park(fetch: Fetch) -> object:
    """What is there already, or PARKED until there is enough or its time is over."""
    reads = fetch.read()
    if fetch.is_answerable(reads):
        return fetch.answer(reads)
    reads.release()
    broker = fetch.broker
    operation = DelayedFetch(fetch)
    fetch.context.park(on_abandoned=lambda: broker.fetch_purgatory.cancel(operation))
    deadline_ms = broker.timer.now_ms() + fetch.request.max_wait_ms
    broker.fetch_purgatory.watch(operation, fetch.watched_keys(), deadline_ms)
    return PARKED


class PartitionRead:
    """What was found for one partition: an error, where the reader's log diverges, a replica that is closer
    to it, or a range (None: nothing to read) with the offsets that go with it.
    """

    __slots__ = (
        "aborted",
        "diverging",
        "error",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "partition",
        "preferred_replica",
        "range",
        "traffic",
    )

    def __init__(self, partition: FetchedPartition) -> None:
        self.partition = partition
        self.error = ErrorCode.NONE
        self.diverging: EpochEndOffset | None = None
        self.preferred_replica = NO_REPLICA
        self.high_watermark = UNKNOWN_OFFSET
        self.last_stable_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.range: FileRange | None = None
        self.aborted: list[AbortedTransaction] | None = None
        """Transactions whose records a read_committed reader leaves out."""
        self.traffic: TopicTraffic | None = None


class Reads:
    """All partitions of one fetch. Ranges keep their files open until they are sent or released."""

    __slots__ = ("bytes", "is_urgent", "partitions")

    def __init__(self) -> None:
        self.partitions: list[PartitionRead] = []
        self.bytes = 0
        self.is_urgent = False
        """Whether something else than records has to be told at once."""

    def release(self) -> None:
        for read in self.partitions:
            if read.range is not None:
                read.range.release()


class Fetch:
    """One Fetch request: reads what there is, decides whether that is enough, makes the answer."""

    __slots__ = ("broker", "context", "plan", "request")

    def __init__(
        self, broker: Broker, request: FetchRequest, context: RequestContext, plan: FetchPlan
    ) -> None:
        self.broker = broker
        self.request = request
        self.context = context
        self.plan = plan

    def read(self) -> Reads:
        reads = Reads()
        left = min(self.request.max_bytes, self.broker.settings.fetch_max_bytes)
        for partition in self.plan.partitions:
            read = PartitionRead(partition)
            reads.partitions.append(read)
            try:
                replica = self._replica(partition)
                self._read_partition(replica, read, left, at_least_one_batch=not reads.bytes)
                if read.preferred_replica != NO_REPLICA or read.diverging is not None:
                    reads.is_urgent = True
            except KafkaError as error:
                read.error = error.code
                reads.is_urgent = True
                self.broker.telemetry.fetch_failed(partition.key.topic or None, error.code)
                continue
            if read.range is not None:
                size = len(read.range)
                reads.bytes += size
                left = max(left - size, 0)
        return reads

    def is_answerable(self, reads: Reads) -> bool:
        request = self.request
        return (
            reads.bytes >= request.min_bytes
            or request.max_wait_ms <= 0
            or reads.is_urgent
            or not reads.partitions
        )

    def has_enough(self) -> bool:
        """Whether the answer need wait no longer; leaves no files open."""
        if self.request.min_bytes <= 1:  # the usual case, and nothing was there when the request was parked
            return any(self._has_news(partition) for partition in self.plan.partitions)
        reads = self.read()
        reads.release()
        return self.is_answerable(reads)

    def _has_news(self, partition: FetchedPartition) -> bool:
        try:
            core = self._replica(partition).core
        except KafkaError:
            return True
        is_readable = partition.fetch_offset < core.read_limit(self.request.isolation_level)
        return is_readable or self._refusal(core, partition) != ErrorCode.NONE

    def watched_keys(self) -> list[TopicPartition]:
        names = self.broker.metadata.topic_names
        return [
            TopicPartition(key.topic or names.get(key.topic_id, ""), key.partition)
            for key in (partition.key for partition in self.plan.partitions)
        ]

    def _replica(self, partition: FetchedPartition) -> Replica:
        key = partition.key
        topic = key.topic or self.broker.metadata.topic_names.get(key.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        replica = self.broker.replicas.get(TopicPartition(topic, key.partition))
        if replica is None:
            raise self.broker.no_replica_error(topic, key.partition)
        return replica

    def _read_partition(
        self, replica: Replica, read: PartitionRead, left: int, *, at_least_one_batch: bool
    ) -> None:
        core, partition = replica.core, read.partition
        read.traffic = replica.traffic
        error = self._refusal(core, partition)
        if error:
            raise KafkaError(error)
        rack = self.request.rack_id
        if rack and core.is_leader:
            closest = closest_replica(self.broker, core, rack, partition.fetch_offset, self.context)
            read.preferred_replica = NO_REPLICA if closest is None else closest
        if partition.last_fetched_epoch >= 0:
            diverging = core.diverging_epoch(partition.last_fetched_epoch, partition.fetch_offset)
            read.diverging = None if diverging is None else EpochEndOffset(*diverging)
        max_bytes = min(left, partition.max_bytes)
        is_elsewhere = read.preferred_replica != NO_REPLICA or read.diverging is not None
        file_range = None
        if not is_elsewhere and (max_bytes > 0 or at_least_one_batch):
            file_range = replica.read(
                partition.fetch_offset,
                max(max_bytes, 0),
                self.request.isolation_level,
                at_least_one_batch=at_least_one_batch,
            )
        if self.request.isolation_level:
            read.aborted = _aborted_within(replica, partition.fetch_offset, file_range)
        read.range = file_range
        read.high_watermark = core.high_watermark
        read.last_stable_offset = core.last_stable_offset
        read.log_start_offset = core.log_start_offset

    def _refusal(self, core: PartitionCore, partition: FetchedPartition) -> ErrorCode:
        """Why nothing can be read here; NONE if it can."""
        error = core.leadership_error(partition.current_leader_epoch)
        if (
            error != ErrorCode.NOT_LEADER_OR_FOLLOWER
            or not core.is_follower
            or self.context.api_version < FIRST_VERSION_FROM_FOLLOWERS
        ):
            return error
        # While the log is being cut, which a thread does, nobody else is let at it.
        is_whole = core.fetch_state is not FetchState.TRUNCATING
        is_here = is_whole and partition.fetch_offset <= core.log_end_offset
        return ErrorCode.NONE if is_here else ErrorCode.OFFSET_NOT_AVAILABLE

    # -- the answer

    def answer(self, reads: Reads) -> FetchResponse:
        session, is_incremental = self.plan.session, self.plan.is_incremental
        answer = FetchAnswer()
        for read in reads.partitions:
            partition, file_range = read.partition, read.range
            is_telling = (
                file_range is not None or read.diverging is not None or read.preferred_replica != NO_REPLICA
            )
            news = partition.is_news(read.error, read.high_watermark, read.log_start_offset, is_telling)
            if is_incremental and not news:
                continue
            key = partition.key
            if file_range is not None:
                if read.traffic is not None:
                    read.traffic.fetch_requests += 1
                    read.traffic.bytes_out += file_range.length
                if session is not None:
                    session.move_to_end(key)
            answer.add(key.topic, key.topic_id, self._partition_data(read), file_range)
        self.broker.telemetry.fetched(reads.bytes)
        response = FetchResponse(
            session_id=NO_SESSION if session is None else session.session_id, responses=answer.topics
        )
        if reads.is_urgent:
            listener_name = self.context.listener_name
            response.node_endpoints = node_endpoints(self.broker, response.responses, listener_name)
        return response

    def _partition_data(self, read: PartitionRead) -> PartitionData:
        key = read.partition.key
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
        if read.error in MOVED:
            topic = key.topic or self.broker.metadata.topic_names.get(key.topic_id, "")
            data.current_leader = current_leader(self.broker, topic, key.partition)
        return data


def _aborted_within(
    replica: Replica, fetch_offset: int, file_range: FileRange | None
) -> list[AbortedTransaction]:
    if file_range is None:
        return []
    try:
        found = replica.log.aborted_transactions(fetch_offset, file_range.next_offset)
    except KafkaError:
        file_range.release()
        raise
    return [AbortedTransaction(entry.producer_id, entry.first_offset) for entry in found]


class DelayedFetch(DelayedRequest):
    """A long poll: answered as soon as `min_bytes` can be read, something is wrong, or `max_wait_ms` is
    over.
    """

    __slots__ = ("_fetch",)

    def __init__(self, fetch: Fetch) -> None:
        super().__init__(fetch.context)
        self._fetch = fetch

    def try_complete(self) -> bool:
        return self._fetch.has_enough()

    def on_complete(self) -> None:
        reads = self._fetch.read()
        try:
            self.context.reply(self._fetch.answer(reads))
        except BaseException:
            reads.release()
            raise
