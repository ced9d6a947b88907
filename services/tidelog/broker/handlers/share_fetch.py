"""ShareFetch v1 and v2: acquires records for a member of a share group, and takes acknowledgements with the
same request (KIP-932, KIP-1206, KIP-1222).

Acknowledgements are stored first. Then the fetch waits until `min_bytes` can be acquired or `max_wait_ms`
has passed, in the purgatory of Fetch: whatever wakes a consumer's fetch also wakes it, and so do records that
come back to their share partition. Source: Kafka's `SharePartitionManager` and `DelayedShareFetch`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable
from typing import Final
from uuid import UUID

import structlog

from tidelog.broker.handlers.fetch import InlineRecords
from tidelog.broker.handlers.share_requests import (
    MOVED,
    PARTITIONS_AT_ONCE,
    UNKNOWN_LEADER,
    Acknowledgements,
    ShareRequestParts,
    session_key,
)
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.net.socket_io import release_files
from tidelog.broker.requests.request import PARKED, Answer, Reply, RequestContext
from tidelog.broker.requests.waiting import DelayedRequest
from tidelog.broker.share import log_reader
from tidelog.broker.share.deliveries import AcquireMode, Wanted
from tidelog.broker.share.log_reader import AcquiredRead
from tidelog.broker.share.share_partition import SharePartition
from tidelog.broker.share.share_sessions import (
    SessionKey,
    ShareSession,
    TopicIdPartition,
    is_final,
    is_initial,
)
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.slices import finish, run_in_slices
from tidelog.kernel.steps import Steps, all_at_once
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import SharePartitionKey
from tidelog.wire.messages.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)

MAX_RECORDS: Final = 10_000
"""The most records that one fetch acquires, whatever the client asks for."""

_log = structlog.get_logger(__name__)


class ShareFetchHandler:
    """Answers ShareFetch."""

    def __init__(self, parts: ShareRequestParts) -> None:
        self.parts = parts

    def handle(self, request: ShareFetchRequest, context: RequestContext) -> Answer:
        try:
            key = session_key(request.group_id, request.member_id)
            if request.share_acquire_mode not in set(AcquireMode):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the acquire mode is unknown")
            session = self._session(key, request, context)
        except KafkaError as error:
            return ShareFetchResponse(error_code=error.code, error_message=error.client_message)
        may_renew = (
            request.is_renew_ack and self.parts.group_settings(key.group_id).share_renew_acknowledge_enable
        )
        acknowledgements = Acknowledgements(self.parts, context, key, may_renew=may_renew)
        for topic in request.topics:
            for partition in topic.partitions:
                if partition.acknowledgement_batches:
                    acknowledgements.add(
                        topic.topic_id, partition.partition_index, partition.acknowledgement_batches
                    )
        request.topics, request.forgotten_topics_data = [], []  # the fetch may wait, and the session has them
        fetch = ShareFetch(self.parts, request, context, session, acknowledgements)
        if acknowledgements.is_long:
            return fetch.acknowledge_in_slices()
        all_at_once(acknowledgements.begin())
        return fetch.begin()

    def _session(self, key: SessionKey, request: ShareFetchRequest, context: RequestContext) -> ShareSession:
        """Returns the session of a request, with the partitions that the request adds and removes."""
        sessions, epoch = self.parts.partitions.sessions, request.share_session_epoch
        if is_final(epoch):
            return sessions.find(key)
        named = [
            TopicIdPartition(topic.topic_id, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
        if is_initial(epoch):
            if any(part.acknowledgement_batches for topic in request.topics for part in topic.partitions):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "a request that opens a session acknowledges nothing"
                )
            self.parts.partitions.end_sessions([key])
            session = sessions.open(key, context.connection, context.connection.budget_key, named)
            self.parts.watch_connection(context.connection)
            return session
        session = sessions.continue_(key, epoch)
        forgotten = [
            TopicIdPartition(topic.topic_id, partition)
            for topic in request.forgotten_topics_data
            for partition in topic.partitions
        ]
        sessions.change(session, named, forgotten)
        return session


class PartitionFetch:
    """The result for one partition: records, or an error."""

    __slots__ = ("error", "message", "read", "where")

    def __init__(self, where: TopicIdPartition) -> None:
        self.where = where
        self.read: AcquiredRead | None = None
        self.error = ErrorCode.NONE
        self.message: str | None = None


class ShareFetch:
    """One ShareFetch request."""

    __slots__ = (
        "_acknowledgements",
        "_available",
        "_available_bytes",
        "_context",
        "_found",
        "_is_looking",
        "_operation",
        "_parts",
        "_request",
        "_session",
        "_used",
    )

    def __init__(
        self,
        parts: ShareRequestParts,
        request: ShareFetchRequest,
        context: RequestContext,
        session: ShareSession,
        acknowledgements: Acknowledgements,
    ) -> None:
        self._parts = parts
        self._request = request
        self._context = context
        self._session = session
        self._acknowledgements = acknowledgements
        self._used: dict[TopicIdPartition, SharePartition] = {}
        self._available: dict[TopicIdPartition, int] = {}
        """The bytes that the last look found at each partition, if the fetch waits for more than one byte."""
        self._available_bytes = 0
        self._found: TopicIdPartition | None = None
        """The partition that ended the wait, which is read first."""
        self._operation: DelayedShareFetch | None = None
        self._is_looking = False
        """Whether a look at all partitions in slices is in progress."""

    async def acknowledge_in_slices(self) -> Reply:
        """Takes many acknowledgements, then waits. The request is parked already."""
        await run_in_slices(self._acknowledgements.begin())
        self._end_final()
        if self._acknowledgements.is_done():
            self._fetch_parked()
        else:
            self._acknowledgements.wait(self._fetch_parked)
        return PARKED

    def _end_final(self) -> None:
        if is_final(self._request.share_session_epoch):
            self._parts.partitions.end_session(self._session)

    def begin(self) -> Answer:
        """Answers at once, or parks the request. The acknowledgements have begun."""
        self._end_final()
        if not self._acknowledgements.is_done():
            self._context.park()
            self._acknowledgements.wait(self._fetch_parked)
            return PARKED
        if not self._is_long and self.is_complete():
            return self.response()
        self._context.park()
        self._wait()
        return PARKED

    def _fetch_parked(self) -> None:
        if not self._is_long and self.is_complete():
            self._context.reply(self.response())
        else:
            self._wait()

    def _wait(self) -> None:
        if self._is_long:
            self._spawn(self._wait_in_slices())
        else:
            self._watch(all_at_once(self._keys()))

    async def _wait_in_slices(self) -> None:
        keys = await finish(self._keys())
        if not self._context.connection.is_closed:
            self._watch(keys)

    def _keys(self) -> Steps[list[SharePartitionKey]]:
        """Returns what the request waits for."""
        keys = []
        for where in self._wanted_partitions():
            keys.append(self._key(where))
            yield
        return keys

    def _watch(self, keys: list[SharePartitionKey]) -> None:
        waiting, operation = self._parts.waiting, DelayedShareFetch(self, self._context)
        self._context.on_abandoned = lambda: waiting.fetch.cancel(operation)
        self._operation = operation
        deadline_ms = MonotonicMs(waiting.timer.monotonic_ms() + self._request.max_wait_ms)
        waiting.fetch.watch(operation, keys, deadline_ms)

    @property
    def _is_long(self) -> bool:
        """Whether the request has too many partitions to look at all of them in one turn."""
        return len(self._session.partitions) > PARTITIONS_AT_ONCE and self._fetches_any

    def _look_in_slices(self) -> None:
        """Begins to look at all partitions, unless such a look is in progress. The request waits meanwhile,
        so that it does not miss a change of a partition that was looked at.
        """
        if not self._is_looking:
            self._is_looking = True
            self._spawn(self._look())

    async def _look(self) -> None:
        try:
            is_complete = await finish(self._looks())
        finally:
            self._is_looking = False
        if is_complete and self._operation is not None:
            self._parts.waiting.fetch.complete(self._operation)

    def _spawn(self, work: Coroutine[object, None, None]) -> None:
        self._parts.partitions.parts.spawn(self._guarded(work))

    async def _guarded(self, work: Coroutine[object, None, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - a bug: only this connection is hurt
            _log.error("a share fetch failed", exc_info=error)
            self._context.connection.close()

    def _wanted_partitions(self) -> list[TopicIdPartition]:
        """Returns the partitions to fetch."""
        if not self._fetches_any:
            return []
        return list(self._session.partitions)

    @property
    def _fetches_any(self) -> bool:
        """Whether the request fetches the partitions of its session. A request that closes the session or
        renews locks fetches none. Neither does a request that waited until its session ended.
        """
        request = self._request
        return (
            self._parts.partitions.sessions.is_open(self._session)
            and not is_final(request.share_session_epoch)
            and not request.is_renew_ack
            and request.max_records > 0
        )

    def is_complete(self) -> bool:
        """Returns whether the response need not wait. For a long request, begins to look at its partitions in
        slices, which completes it later.
        """
        if not self._fetches_any or self._request.max_wait_ms <= 0:
            return True
        if self._is_long:
            self._look_in_slices()
            return False
        return all_at_once(self._looks())

    def _looks(self) -> Steps[bool]:
        """Looks at all partitions. Returns whether the response need not wait."""
        session, sessions = self._session, self._parts.partitions.sessions
        self._available, self._available_bytes = {}, 0
        wanted = self._wanted_partitions()
        for where in wanted:
            if not sessions.is_open(session) or (self._is_looking and self._operation is None):
                return True  # the session has ended, or the request was answered meanwhile
            if where in session.partitions and self._completes(where):
                self._found = where
                return True
            yield
        # Changes during the look may have added to what it found.
        return not wanted or 1 < self._request.min_bytes <= self._available_bytes

    def is_complete_after(self, changed: Hashable) -> bool:
        """Returns whether the response need not wait any longer after a change of one share partition."""
        partitions = self._session.partitions
        if not isinstance(changed, SharePartitionKey) or not partitions or not self._fetches_any:
            return self.is_complete()
        where = TopicIdPartition(changed.topic_id, changed.partition)
        if where not in partitions:
            return False  # a later request has removed it from the session
        if not self._completes(where):
            return False
        self._found = where
        # Other members may have taken what was available in the other partitions.
        return self._available_bytes < self._request.min_bytes or self.is_complete()

    def _completes(self, where: TopicIdPartition) -> bool:
        """Looks at one partition. Returns whether the response need not wait any longer, because of its
        records, together with what the last looks have found in the other partitions, or of an error.
        """
        min_bytes = self._request.min_bytes
        if min_bytes > 1:
            self._available_bytes -= self._available.pop(where, 0)
        try:
            partition = self._known(where)
            core = partition.core
            if core is None:
                return False
            if not partition.has_records():
                return partition.look_failure is not None
            if min_bytes <= 1:
                return True
            size = log_reader.available_bytes(
                partition.replica, core, partition.isolation_level, min_bytes - self._available_bytes
            )
        except KafkaError:
            return True
        self._available[where] = size
        self._available_bytes += size
        return self._available_bytes >= min_bytes

    def _key(self, where: TopicIdPartition) -> SharePartitionKey:
        return SharePartitionKey(self._session.key.group_id, *where)

    def _known(self, where: TopicIdPartition) -> SharePartition:
        """Returns the share partition without the checks of `_use` if it has not changed since: this is asked
        at every change of a partition, for each fetch that waits. The response repeats the checks.
        """
        used = self._used.get(where)
        if used is not None and used.core is not None and used.is_current:
            return used
        return self._use(where)[1]

    def _use(self, where: TopicIdPartition) -> tuple[Replica, SharePartition]:
        replica = self._parts.replica(self._context, *where)
        used = self._used.get(where)
        if used is not None and used.failure is not None:
            raise used.failure
        used = self._used[where] = self._parts.partitions.use(self._key(where), replica, self._session.key)
        return replica, used

    def answer(self) -> None:
        """Sends the response of a request that waited."""
        self._operation = None
        if not self._is_long:
            self._context.reply(self.response())
            return
        steps = self._response()
        next(steps)  # acquires what ended the wait, so that other fetches go on waiting if nothing is left
        self._spawn(self._answer_in_slices(steps))

    async def _answer_in_slices(self, steps: Steps[ShareFetchResponse]) -> None:
        response = await finish(steps)
        body = await self._context.route.encode_in_slices(self._context, response)
        if body is not None and self._context.connection.is_closed:
            release_files(body.chunks)
        self._context.reply(response, body)

    def response(self) -> ShareFetchResponse:
        """Acquires records and returns the response."""
        return all_at_once(self._response())

    def _response(self) -> Steps[ShareFetchResponse]:
        parts, group_id = self._parts, self._session.key.group_id
        topics = _ResponseTopics(parts, self._context)
        found = yield from self._read()
        yield
        for key, result in self._acknowledgements.results:
            topics.acknowledged(key, result.error or ErrorCode.NONE, result.message)
            yield
        size_bytes = 0
        for fetched in found:
            if fetched.read is not None:
                size_bytes += len(fetched.read.range)
            topics.fetched(fetched)
            yield
        parts.telemetry.fetched(size_bytes)
        if self._context.charge is not None:
            self._context.charge.fetched(size_bytes)
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=parts.group_settings(group_id).share_record_lock_duration_ms,
            responses=topics.responses,
            node_endpoints=topics.node_endpoints(),
        )

    def _read(self) -> Steps[list[PartitionFetch]]:
        """Returns the partitions with records or with an error."""
        request, charge = self._request, self._context.charge
        results: list[PartitionFetch] = []
        if charge is not None and charge.is_above_fetch_quota:
            # Its connection is held back. It must not get more over another one.
            return results
        left_bytes = min(request.max_bytes, self._parts.settings.broker.fetch_max_bytes)
        if charge is not None and charge.max_fetch_bytes is not None:
            left_bytes = min(left_bytes, charge.max_fetch_bytes)
        left_records = min(request.max_records, MAX_RECORDS)
        has_read = False
        session, sessions = self._session, self._parts.partitions.sessions
        wanted = self._wanted_partitions()
        if self._found is not None and wanted:
            wanted.insert(0, self._found)
        for at, where in enumerate(wanted):
            if left_records <= 0 or (left_bytes <= 0 and has_read) or not sessions.is_open(session):
                break
            if where not in session.partitions or (at and where == self._found):
                continue  # a later request has removed it, or it was read already
            fetched = PartitionFetch(where)
            try:
                fetched.read = self._acquire(where, left_bytes, left_records, at_least_one_batch=not has_read)
            except KafkaError as error:
                fetched.error, fetched.message = error.code, error.client_message
                self._parts.telemetry.fetch_failed(None, error.code)
                results.append(fetched)
            if fetched.read is not None:
                has_read = True
                left_bytes -= len(fetched.read.range)
                left_records -= sum(found.last - found.first + 1 for found in fetched.read.acquired)
                session.move_to_end(where)
                results.append(fetched)
            yield
        return results

    def _acquire(
        self, where: TopicIdPartition, max_bytes: int, max_records: int, *, at_least_one_batch: bool
    ) -> AcquiredRead | None:
        replica, partition = self._use(where)
        core = partition.core
        if core is None or self._context.connection.is_closed:
            return None
        partition.look_ahead()
        request = self._request
        wanted = Wanted(
            self._session.key.member_id,
            max_records,
            max(request.batch_size, 1),
            AcquireMode(request.share_acquire_mode),
        )
        try:
            read = log_reader.acquire(
                replica,
                core,
                wanted,
                max(max_bytes, 0),
                partition.isolation_level,
                self._parts.waiting.timer.monotonic_ms(),
                partition.limits,
                at_least_one_batch=at_least_one_batch,
            )
        finally:
            partition.core_changed()  # starts the timer of the locks, also if the log could not be read
        if read is None and partition.look_failure is not None:
            raise partition.look_failure.with_traceback(None)
        if read is not None:
            replica.traffic.fetch_requests += 1
            replica.traffic.bytes_out += len(read.range)
        return read


class DelayedShareFetch(DelayedRequest):
    """A share fetch that waits for records."""

    __slots__ = ("_fetch",)

    def __init__(self, fetch: ShareFetch, context: RequestContext) -> None:
        super().__init__(context)
        self._fetch = fetch

    def on_change(self, key: Hashable | None) -> bool:
        return self._fetch.is_complete() if key is None else self._fetch.is_complete_after(key)

    def on_complete(self) -> None:
        self._fetch.answer()


class _ResponseTopics:
    """The partitions of a response by topic. A partition has at most one entry, with both of its results."""

    __slots__ = ("_context", "_data", "_leaders", "_parts", "_records", "_topics")

    def __init__(self, parts: ShareRequestParts, context: RequestContext) -> None:
        self._parts = parts
        self._context = context
        self._topics: dict[UUID, ShareFetchableTopicResponse] = {}
        self._data: dict[tuple[UUID, int], PartitionData] = {}
        self._leaders: set[int] = set()
        self._records = InlineRecords()

    @property
    def responses(self) -> list[ShareFetchableTopicResponse]:
        return list(self._topics.values())

    def acknowledged(self, key: SharePartitionKey, error: ErrorCode, message: str | None) -> None:
        data = self._entry(key.topic_id, key.partition, error)
        data.acknowledge_error_code = error
        data.acknowledge_error_message = message if error else None

    def fetched(self, fetched: PartitionFetch) -> None:
        data = self._entry(*fetched.where, fetched.error)
        data.error_code, data.error_message = fetched.error, fetched.message if fetched.error else None
        if fetched.read is None:
            return
        records = self._records.take(fetched.read.range)
        if records is None:  # the locks of its records end later
            data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return
        data.records = records
        data.acquired_records = [AcquiredRecords(*found) for found in fetched.read.acquired]

    def _entry(self, topic_id: UUID, partition: int, error: ErrorCode) -> PartitionData:
        data = self._data.get((topic_id, partition))
        if data is None:
            data = PartitionData(partition, records=b"", current_leader=LeaderIdAndEpoch(*UNKNOWN_LEADER))
            self._data[topic_id, partition] = data
            topic = self._topics.get(topic_id)
            if topic is None:
                topic = self._topics[topic_id] = ShareFetchableTopicResponse(topic_id, [])
            topic.partitions.append(data)
        if error in MOVED:
            leader = self._parts.current_leader(topic_id, partition)
            data.current_leader = LeaderIdAndEpoch(*leader)
            self._leaders.add(leader[0])
        return data

    def node_endpoints(self) -> list[NodeEndpoint]:
        found = self._parts.endpoints(self._leaders, self._context.listener_name)
        return [NodeEndpoint(*endpoint) for endpoint in found]
