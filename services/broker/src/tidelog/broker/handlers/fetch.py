"""Fetch v4 to v18: batches from the log as ranges of files, with incremental sessions and long polling.

An answer is held back until `min_bytes` are there or `max_wait_ms` has passed. Small ranges are read
into the answer, larger ones leave by sendfile. Followers' fetches (replica id >= 0) are served like
clients' until there is replication.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from tidelog.broker.fetch_sessions import NO_SESSION, FetchedPartition, FetchPlan
from tidelog.broker.page_cache import is_resident
from tidelog.broker.request import PARKED, DelayedRequest, RequestContext
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.log.file_range import FileRange
    from tidelog.broker.replica import Replica
    from tidelog.runtime.telemetry import TopicTraffic

INLINE_RANGE_BYTES = 32 * 1024
"""A range up to this size is read into the answer if it is in memory: cheaper than a sendfile of its own."""
INLINE_ANSWER_BYTES = 64 * 1024
"""So many bytes of an answer are read at most; beyond it even small ranges leave by sendfile, so that
waiting answers take no memory.
"""
UNKNOWN_OFFSET = -1
_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)

_log = structlog.get_logger(__name__)


def handle(broker: Broker, request: FetchRequest, context: RequestContext) -> object:
    try:
        plan = broker.fetch_sessions.plan(request, context.api_version, broker.clock.now_ms())
    except KafkaError as error:
        return FetchResponse(error_code=error.code, session_id=NO_SESSION)
    fetch = Fetch(broker, request, context, plan)
    reads = fetch.read()
    if fetch.is_answerable(reads):
        return fetch.answer(reads)
    reads.release()
    operation = DelayedFetch(fetch)
    context.park(on_abandoned=lambda: broker.fetch_purgatory.cancel(operation))
    deadline_ms = broker.timer.now_ms() + request.max_wait_ms
    broker.fetch_purgatory.watch(operation, fetch.watched_keys(), deadline_ms)
    return PARKED


class PartitionRead:
    """What was found for one partition: an error, or a range (None: nothing to read) with the offsets that
    go with it.
    """

    __slots__ = (
        "error",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "partition",
        "range",
        "traffic",
    )

    def __init__(self, partition: FetchedPartition) -> None:
        self.partition = partition
        self.error = ErrorCode.NONE
        self.high_watermark = UNKNOWN_OFFSET
        self.last_stable_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.range: FileRange | None = None
        self.traffic: TopicTraffic | None = None


class Reads:
    """All partitions of one fetch. Ranges keep their files open until they are sent or released."""

    __slots__ = ("bytes", "has_error", "partitions")

    def __init__(self) -> None:
        self.partitions: list[PartitionRead] = []
        self.bytes = 0
        self.has_error = False

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
            except KafkaError as error:
                read.error = error.code
                reads.has_error = True
                self.broker.telemetry.fetch_failed(partition.key.topic or None)
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
            or reads.has_error
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
        return partition.fetch_offset < core.read_limit(self.request.isolation_level) or not core.is_leader

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
        error = core.leadership_error(partition.current_leader_epoch)
        if error:
            raise KafkaError(error)
        max_bytes = min(left, partition.max_bytes)
        if max_bytes > 0 or at_least_one_batch:
            read.range = replica.read(
                partition.fetch_offset,
                max(max_bytes, 0),
                self.request.isolation_level,
                at_least_one_batch=at_least_one_batch,
            )
        read.high_watermark = core.high_watermark
        read.last_stable_offset = core.last_stable_offset
        read.log_start_offset = core.log_start_offset

    # -- the answer

    def answer(self, reads: Reads) -> FetchResponse:
        session, is_incremental = self.plan.session, self.plan.is_incremental
        topics: dict[object, FetchableTopicResponse] = {}
        inline_left = INLINE_ANSWER_BYTES
        for read in reads.partitions:
            partition, file_range = read.partition, read.range
            news = partition.is_news(
                read.error, read.high_watermark, read.log_start_offset, file_range is not None
            )
            if is_incremental and not news:
                continue
            key = partition.key
            data = self._partition_data(read)
            if file_range is not None:
                size = len(file_range)
                if read.traffic is not None:
                    read.traffic.fetch_requests += 1
                    read.traffic.bytes_out += size
                if (
                    size <= INLINE_RANGE_BYTES
                    and size <= inline_left
                    and is_resident(file_range.fileno(), file_range.position + size - 1)
                ):
                    _read_into(data, file_range)
                    inline_left -= size
                else:
                    data.records = file_range  # type: ignore[assignment]  # the encoder needs only its len()
                if session is not None:
                    session.move_to_end(key)
            topic = topics.get(key[:2])
            if topic is None:
                topic = topics[key[:2]] = FetchableTopicResponse(
                    topic=key.topic, topic_id=key.topic_id, partitions=[]
                )
            topic.partitions.append(data)
        self.broker.telemetry.fetched(reads.bytes)
        return FetchResponse(
            session_id=NO_SESSION if session is None else session.session_id, responses=list(topics.values())
        )

    def _partition_data(self, read: PartitionRead) -> PartitionData:
        data = PartitionData(
            partition_index=read.partition.key.partition,
            error_code=read.error,
            high_watermark=read.high_watermark,
            last_stable_offset=read.last_stable_offset,
            log_start_offset=read.log_start_offset,
            aborted_transactions=None if read.error or not self.request.isolation_level else [],
            records=b"",
        )
        if read.error in _MOVED:
            key = read.partition.key
            topic = key.topic or self.broker.metadata.topic_names.get(key.topic_id, "")
            state = self.broker.metadata.partition(topic, key.partition)
            if state is not None:
                data.current_leader = LeaderIdAndEpoch(state.leader, state.leader_epoch)
        return data


def _read_into(data: PartitionData, file_range: FileRange) -> None:
    try:
        data.records = file_range.read()
    except OSError as error:
        _log.error("records can't be read", range=repr(file_range), reason=str(error))
        data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    finally:
        file_range.release()


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
