"""Fetch by a follower (replica id >= 0): the leader's side of replication. `handlers/fetch.py` passes these
requests on.

A follower reads up to the log end. The offsets that it requests tell the leader which records it has; the
high watermark and the ISR follow from that. Before the leader reads or believes anything, it compares the
leader epochs and checks whether the follower's log is a prefix of its own. If not, the response says where
the logs diverge (KIP-595).

As in Kafka, the leader refuses a replica that is not assigned here, or not yet (UNKNOWN_LEADER_EPOCH), and
one from an earlier registration of its broker (NOT_LEADER_OR_FOLLOWER, KIP-903). With a replica selector, an
advance of the high watermark is answered at once, otherwise with the next response (KAFKA-9731). Unlike
Kafka, the leader looks only at the partitions of a session that have news, and at all of them only
periodically (`follower_fetch_sessions.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.broker.cluster.view import is_rack_aware
from tidelog.broker.handlers.fetch import (
    FIRST_VERSION_WITH_LEADERS,
    MOVED,
    InlineRecords,
    ResponseTopics,
    current_leader,
)
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.segment import FileRange
from tidelog.broker.partition.events import FollowerFetched
from tidelog.broker.replication.fetch_wire import (
    FETCH_VERSION,
    FollowerRequest,
    PartitionNews,
    encode_answer,
)
from tidelog.broker.replication.follower_fetch_sessions import (
    FollowerFetchPosition,
    FollowerFetchSession,
)
from tidelog.broker.requests.request import PARKED, Answer, EncodedBody, RequestContext, Route
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import FIRST_INCREMENTAL_EPOCH, UNKNOWN_EPOCH, UNKNOWN_OFFSET
from tidelog.wire.messages.fetch import EpochEndOffset as DivergingEpoch
from tidelog.wire.messages.fetch import FetchResponse, PartitionData

if TYPE_CHECKING:
    from tidelog.broker.parts import BrokerParts
    from tidelog.kernel.timer import Callback, TimerEntry

SWEEPS_PER_LAG_TIME: Final = 20
"""The number of times that the leader looks at a whole session in `replica.lag.time.max.ms`. A dead follower
may count as a lagging one earlier by at most that fraction of the time.
"""


class FollowerFetches:
    """Handles the fetches of followers, with the parts of the broker that they use."""

    __slots__ = (
        "_routes",
        "clock",
        "hosted",
        "metadata",
        "sessions",
        "settings",
        "telemetry",
        "throttle",
        "timer",
    )

    def __init__(self, parts: BrokerParts) -> None:
        self.hosted = parts.hosted
        self.metadata = parts.metadata
        self.sessions = parts.follower_fetch_sessions
        self.throttle = parts.leader_throttle
        self.settings = parts.current_settings
        self.telemetry = parts.telemetry
        self.clock = parts.clock
        self.timer = parts.timer
        self._routes: dict[int, Route] = {}

    def handle(self, request: FollowerRequest, context: RequestContext) -> Answer:
        """Returns the response, or PARKED until there is news for the follower."""
        registered = self.metadata.brokers.get(request.replica_id)
        newest_epoch = UNKNOWN_EPOCH if registered is None else registered.broker_epoch
        broker_epoch = request.broker_epoch
        if broker_epoch == UNKNOWN_EPOCH:
            broker_epoch = newest_epoch  # before v15, a follower does not send its broker epoch
        is_stale = broker_epoch < newest_epoch
        self._count_apart(context)
        now_ms = self.clock.monotonic_ms()
        sweep_interval_ms = self.settings.broker.replica_lag_time_max_ms // SWEEPS_PER_LAG_TIME
        try:
            session = self.sessions.open(
                request,
                context.api_version,
                UNKNOWN_EPOCH if registered is None or is_stale else broker_epoch,
                now_ms,
                sweep_interval_ms,
            )
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        return FollowerFetch(self, request, context, session, broker_epoch, is_stale=is_stale).start(now_ms)

    def _count_apart(self, context: RequestContext) -> None:
        """Counts followers' fetches under a name of their own in the metrics, as Kafka does."""
        route = self._routes.get(context.api_version)
        if route is None:
            route = self._routes[context.api_version] = context.route.counted_as(
                "FetchFollower", self.telemetry
            )
        context.route = route


class _News(PartitionNews):
    """The news of one partition: an error, the point where the logs diverge, records, or only offsets."""

    __slots__ = ("file_range", "partition", "replica")

    def __init__(self, partition: FollowerFetchPosition) -> None:
        super().__init__(partition.topic_id_bytes, partition.index)
        self.partition = partition
        self.replica: Replica | None = None
        self.file_range: FileRange | None = None


class FollowerFetch:
    """One request: records the follower's positions, then responds or waits. While it waits, it is the
    session's `ParkedFetch`.
    """

    __slots__ = (
        "_broker_epoch",
        "_bytes",
        "_context",
        "_deadline",
        "_is_incremental",
        "_is_stale",
        "_is_urgent",
        "_is_woken",
        "_news",
        "_request",
        "_services",
        "_session",
    )

    def __init__(
        self,
        services: FollowerFetches,
        request: FollowerRequest,
        context: RequestContext,
        session: FollowerFetchSession,
        broker_epoch: int,
        *,
        is_stale: bool,
    ) -> None:
        self._services = services
        self._request = request
        self._context = context
        self._session = session
        self._is_incremental = request.session_epoch >= FIRST_INCREMENTAL_EPOCH
        self._broker_epoch = broker_epoch
        self._is_stale = is_stale
        self._news: list[_News] = []
        self._bytes = 0
        self._is_urgent = False
        self._is_woken = False
        self._deadline: TimerEntry[Callback] | None = None

    def start(self, now_ms: MonotonicMs) -> Answer:
        """Returns the response, or PARKED if there is no news yet."""
        self._look(now_ms, takes_in_positions=True)
        if self._is_answerable() or self._request.max_wait_ms <= 0 or not self._session.partitions:
            return self._answer()
        self._release()
        self._park()
        return PARKED

    def _park(self) -> None:
        timer = self._services.timer
        self._session.parked = self
        self._context.park(on_abandoned=self._abandon)
        self._deadline = timer.add(self.end, MonotonicMs(timer.monotonic_ms() + self._request.max_wait_ms))

    def wake_soon(self) -> None:
        """Looks for news once, after all appends of this iteration of the event loop."""
        if not self._is_woken:
            self._is_woken = True
            self._context.connection.at_end_of_turn(self._wake)

    def _wake(self) -> None:
        self._is_woken = False
        if self._session.parked is not self:
            return  # the response has left in the meantime
        self._look(self._services.clock.monotonic_ms(), takes_in_positions=False)
        if self._is_answerable():
            self._unpark()
            self._reply()
        else:
            self._release()

    def end(self) -> None:
        """Responds with the available news."""
        if self._session.parked is self:
            self._unpark()
            self._look(self._services.clock.monotonic_ms(), takes_in_positions=False)
            self._reply()

    def _unpark(self) -> None:
        self._session.parked = None
        if self._deadline is not None:
            self._deadline.cancel()

    def _abandon(self) -> None:
        """Ends the wait, because the connection is closed."""
        if self._session.parked is self:
            self._unpark()
            if not self._session.session_id:
                self._services.sessions.release(self._session)

    def _reply(self) -> None:
        try:
            self._context.reply(self._answer())
        except BaseException:
            self._release()
            raise
        self._news = []

    def _look(self, now_ms: MonotonicMs, *, takes_in_positions: bool) -> None:
        """Collects the news of the dirty partitions. A partition without news is no longer dirty."""
        self._news, self._bytes, self._is_urgent = [], 0, False
        session = self._session
        partitions = tuple(session.dirty) if self._is_incremental else tuple(session.partitions.values())
        tells_high_watermark_at_once = is_rack_aware(self._services.settings.broker.replica_selector_class)
        for partition in partitions:
            news = _News(partition)
            try:
                replica = self._replica(partition)
                self._look_at(replica, news, now_ms if takes_in_positions else None)
            except KafkaError as error:
                news.error_code = error.code
            has_nothing = (
                news.file_range is None
                and not news.error_code
                and news.diverging is None
                and news.high_watermark == partition.sent_high_watermark
                and news.log_start_offset == partition.sent_log_start_offset
            )
            if has_nothing and self._is_incremental:
                if not partition.is_throttled and partition.fetch_offset == replica.core.log_end_offset:
                    session.dirty.pop(partition, None)
                continue
            self._news.append(news)
            if (
                news.error_code
                or news.diverging is not None
                or 0 <= partition.log_start_offset < news.log_start_offset != partition.sent_log_start_offset
                or (
                    tells_high_watermark_at_once
                    and news.high_watermark > max(0, partition.sent_high_watermark)
                )
            ):
                self._is_urgent = True

    def _replica(self, partition: FollowerFetchPosition) -> Replica:
        topic_partition = partition.topic_partition
        replica = None if topic_partition is None else self._services.hosted.replicas.get(topic_partition)
        if replica is not partition.replica or replica is None:
            if replica is None or (self._session.uses_topic_ids and replica.topic_id != partition.topic_id):
                raise self._no_replica(partition)
            partition.replica = replica
        return replica

    def _look_at(self, replica: Replica, news: _News, taken_in_ms: MonotonicMs | None) -> None:
        """Raises KafkaError."""
        core, partition, session = replica.core, news.partition, self._session
        error = core.leadership_error(partition.current_leader_epoch)
        if error:
            raise KafkaError(error)
        if session.replica_id not in core.replicas:
            has_epoch = partition.current_leader_epoch != UNKNOWN_EPOCH
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        if self._is_stale:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the follower's broker has registered again since"
            )
        offset, last_epoch = partition.fetch_offset, partition.last_fetched_epoch
        if last_epoch != core.leader_epochs.latest_epoch or offset > core.log_end_offset:
            news.diverging = core.diverging_epoch(last_epoch, offset)
        if news.diverging is None:
            if not core.log_start_offset <= offset <= core.log_end_offset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if taken_in_ms is not None:
                replica.step(
                    FollowerFetched(
                        session.replica_id,
                        self._broker_epoch,
                        offset,
                        partition.log_start_offset,
                        taken_in_ms,
                    )
                )
            if offset < core.log_end_offset:
                self._read(replica, news)
        news.high_watermark = core.high_watermark
        news.log_start_offset = core.log_start_offset

    def _read(self, replica: Replica, news: _News) -> None:
        partition = news.partition
        left = self._request.max_bytes - self._bytes
        if self._bytes and left <= 0:
            return
        partition.is_throttled = self._services.throttle.must_wait(replica, self._session.replica_id)
        if partition.is_throttled:
            return
        news.file_range = file_range = replica.read_for_follower(
            partition.fetch_offset,
            max(0, min(left, partition.max_bytes)),
            at_least_one_batch=not self._bytes,
        )
        if file_range is not None:
            news.replica = replica
            self._bytes += file_range.length

    def _no_replica(self, partition: FollowerFetchPosition) -> KafkaError:
        services = self._services
        if partition.topic_partition is None:
            services.sessions.resolve(partition)
        topic_partition = partition.topic_partition
        if topic_partition is None or (
            self._session.uses_topic_ids and partition.topic_id not in services.metadata.topic_names
        ):
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return services.hosted.no_replica_error(*topic_partition)

    def _is_answerable(self) -> bool:
        return self._is_urgent or self._bytes >= self._request.min_bytes

    def _answer(self) -> FetchResponse | EncodedBody:
        session, records = self._session, InlineRecords()
        is_usual = self._context.api_version == FETCH_VERSION
        for news in self._news:
            partition, file_range = news.partition, news.file_range
            partition.sent_high_watermark = news.high_watermark
            partition.sent_log_start_offset = news.log_start_offset
            if file_range is not None and news.replica is not None:
                self._sent(news.replica, file_range.length)
                # Records may be lost on the way, and the follower then asks again: the partition stays dirty,
                # at the end.
                session.dirty.pop(partition, None)
                session.dirty[partition] = None
                taken = records.take(file_range)
                if taken is None:
                    news.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                else:
                    news.records = taken
            if news.diverging is not None or news.error_code in MOVED:
                is_usual = False
        if not session.session_id:
            self._services.sessions.release(session)
        if is_usual:
            return EncodedBody(encode_answer(session.session_id, self._news))
        return self._message()

    def _message(self) -> FetchResponse:
        """Returns the response for the codec: of any version, and with the rare fields."""
        topics = ResponseTopics()
        names_leaders = self._context.api_version >= FIRST_VERSION_WITH_LEADERS
        for news in self._news:
            partition = news.partition
            data = PartitionData(
                partition.index,
                news.error_code,
                news.high_watermark,
                UNKNOWN_OFFSET,
                news.log_start_offset,
                aborted_transactions=None,
                records=news.records,
            )
            if news.diverging is not None:
                data.diverging_epoch = DivergingEpoch(*news.diverging)
            if names_leaders and news.error_code in MOVED and partition.topic_partition is not None:
                data.current_leader = current_leader(self._services.hosted, *partition.topic_partition)
            topics.add(partition.topic, partition.topic_id, data, None)
        return FetchResponse(session_id=self._session.session_id, responses=topics.topics)

    def _sent(self, replica: Replica, size_bytes: int) -> None:
        self._services.telemetry.broker_traffic.replication_bytes_out += size_bytes
        self._services.throttle.sent(replica, size_bytes)

    def _release(self) -> None:
        """Releases the files of the collected ranges."""
        for news in self._news:
            if news.file_range is not None:
                news.file_range.release()
        self._news = []
