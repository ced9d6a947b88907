"""The work of a bystander whose limits an attack fills: each job uses something that clients share."""

from __future__ import annotations

import os
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from brokerlab.batches import build_batch
from brokerlab.raw_client import PayloadClient
from tidelog.client.address import parse_bootstrap
from tidelog.client.cluster import BrokerConnection, PendingAnswer
from tidelog.metrics.generated.metrics_pb2 import MetricsData
from tidelog.wire.messages import fetch, metadata, share_fetch
from tidelog.wire.messages import get_telemetry_subscriptions as subscribing
from tidelog.wire.messages import push_telemetry as pushing
from tidelog.wire.messages import share_group_heartbeat as beating

PARTITIONS: Final = 6
"""The partitions of the bystander's topic."""
PRODUCED, CONSUMED, SHARED = 0, 1, 2
"""The partition of the 300 kB, and those in which the consumer and the member of a share group wait for
records. Both also fetch the partitions behind these, which stay empty.
"""
IDLE: Final = range(SHARED + 1, PARTITIONS)
CLIENT_ID: Final = "bystander"
SHARE_GROUP: Final = "sharers"
WORK_BYTES: Final = 300_000
MAX_WAIT_MS: Final = 5_000
FIRST_WAIT_MS: Final = 500
TIMEOUT_S: Final = 90.0
"""A request that waits longer counts as this long."""
JOBS_OF_A_CONNECTION: Final = 50
"""The jobs after which a consumer connects again, so that it also has to find room for a new session."""
MAX_FETCH_BYTES: Final = 1 << 16
ACCEPT: Final = 1
METADATA_V1_NO_TOPICS: Final = struct.pack(">hhih3si", 3, 1, 1, 3, b"ok1", 0)

Job = Callable[[], bool]
"""Does one piece of work, and returns whether the broker refused nothing. Raises OSError or ClientError if
the broker closes the connection. The next call opens another one.
"""


def produce_request(topic: str, value: bytes = b"bystander", partition: int = PRODUCED) -> bytes:
    """Returns the payload of a Produce v3 request with acks=1."""
    name = topic.encode()
    batch = build_batch([value])
    return (
        struct.pack(">hhih3s", 0, 3, 2, 3, b"ok1")
        + struct.pack(">hhii", -1, 1, 30_000, 1)
        + struct.pack(f">h{len(name)}sii", len(name), name, 1, partition)
        + struct.pack(">i", len(batch))
        + batch
    )


def commit_request(topic: str) -> bytes:
    """Returns the payload of an OffsetCommit v2 of a group without members."""
    name = topic.encode()
    return (
        struct.pack(">hhih3s", 8, 2, 4, 3, b"ok1")
        + struct.pack(">h9sih", 9, b"bystander", -1, 0)
        + struct.pack(">qi", -1, 1)
        + struct.pack(f">h{len(name)}sii", len(name), name, 1, 0)
        + struct.pack(">qh", 1, -1)
    )


def fetch_request(topic: str) -> bytes:
    """Returns the payload of a Fetch v4 of the first records."""
    name = topic.encode()
    return (
        struct.pack(">hhih3s", 1, 4, 5, 3, b"ok1")
        + struct.pack(">iiiibi", -1, 500, 1, 1 << 16, 0, 1)
        + struct.pack(f">h{len(name)}sii", len(name), name, 1, 0)
        + struct.pack(">qi", 0, 1 << 16)
    )


class RawConnection(PayloadClient):
    """A connection that sends payloads. It is opened again if the broker closes it."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, TIMEOUT_S)

    def produce(self, topic: str, partition: int) -> int | None:
        """Produces one record. Returns its offset, None if it is refused."""
        answer = self.ask(produce_request(topic, partition=partition))
        code, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
        return None if code else int(offset)


def small_requests(bootstrap: str, topic: str) -> tuple[Job, ...]:
    """Returns jobs that send a small request each, and take any answer."""
    raw, produce = RawConnection(bootstrap), produce_request(topic)
    return lambda: bool(raw.ask(METADATA_V1_NO_TOPICS)), lambda: bool(raw.ask(produce))


def work(bootstrap: str, topic: str, *, pushes: bool) -> tuple[Job, ...]:
    """Returns jobs that produce, commit, fetch and wait for records, and with `pushes` push metrics."""
    raw = RawConnection(bootstrap)
    large, commit = produce_request(topic, os.urandom(WORK_BYTES)), commit_request(topic)
    jobs: tuple[Job, ...] = (
        lambda: bool(raw.ask(large)),
        lambda: raw.ask(commit)[-2:] == b"\0\0",
        lambda: bool(raw.ask(fetch_request(topic))),
        Consumer(bootstrap, topic, raw).work,
        Sharer(bootstrap, topic, raw).work,
    )
    return (*jobs, Pusher(bootstrap).work) if pushes else jobs


def open_connection(bootstrap: str) -> BrokerConnection:
    return BrokerConnection.open(parse_bootstrap(bootstrap)[0], client_id=CLIENT_ID, timeout_s=TIMEOUT_S)


def topic_id(connection: BrokerConnection, topic: str) -> uuid.UUID:
    asked = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=topic)], False)
    (found,) = connection.call(asked, metadata.MetadataResponse).topics
    return found.topic_id


class SessionConnection:
    """A connection for fetches with a session, which is opened again after some jobs or if it is lost."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._connection: BrokerConnection | None = None
        self._jobs = 0
        self.waiting: PendingAnswer | None = None
        """The fetch that waits, None if a session has to be opened."""

    def current(self) -> BrokerConnection:
        connection = self._connection
        self._jobs += 1
        if connection is not None and self._jobs % JOBS_OF_A_CONNECTION == 0:
            connection.close()
        if connection is None or connection.is_closed:
            connection = self._connection = open_connection(self._bootstrap)
            self.waiting = None
        return connection


class Consumer:
    """A consumer with a fetch session. Its fetch waits all the time, and a job gives it a record."""

    def __init__(self, bootstrap: str, topic: str, raw: RawConnection) -> None:
        self._session, self._topic, self._raw = SessionConnection(bootstrap), topic, raw
        self._session_id = self._epoch = 0
        self._offset = 0

    def work(self) -> bool:
        connection = self._session.current()
        if self._session.waiting is None:
            self._session_id = self._epoch = 0
            produced = self._raw.produce(self._topic, CONSUMED)
            if produced is None:
                return False
            self._offset = produced + 1
            self._fetch(connection)
        produced = self._raw.produce(self._topic, CONSUMED)
        is_served = produced is not None
        while produced is not None and self._offset <= produced:
            assert self._session.waiting is not None
            answer = connection.receive(self._session.waiting, fetch.FetchResponse)
            is_kept = not answer.error_code and answer.session_id != 0
            is_served = is_served and is_kept
            self._session_id, self._epoch = (answer.session_id, self._epoch + 1) if is_kept else (0, 0)
            for part in (part for topic in answer.responses for part in topic.partitions):
                is_served = is_served and not part.error_code
                if part.partition_index == CONSUMED and part.records:
                    self._offset = produced + 1
            self._fetch(connection)
        return is_served

    def _fetch(self, connection: BrokerConnection) -> None:
        wanted = [(CONSUMED, self._offset), *([] if self._epoch else [(number, 0) for number in IDLE])]
        partitions = [
            fetch.FetchPartition(number, fetch_offset=offset, partition_max_bytes=MAX_FETCH_BYTES)
            for number, offset in wanted
        ]
        request = fetch.FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=[fetch.FetchTopic(self._topic, partitions=partitions)],
        )
        self._session.waiting = connection.send(request, at_most=12, wait_ms=MAX_WAIT_MS)


class Sharer:
    """A member of a share group. Its fetch waits all the time, and a job gives it a record, which the next
    fetch acknowledges.
    """

    def __init__(self, bootstrap: str, topic: str, raw: RawConnection) -> None:
        self._session, self._topic, self._raw = SessionConnection(bootstrap), topic, raw
        self._member_id = str(uuid.uuid4())
        self._topic_id = uuid.UUID(int=0)
        self._epoch = 0
        self._has_group = False
        self._acquired: list[share_fetch.AcquiredRecords] = []

    def work(self) -> bool:
        connection = self._session.current()
        if self._session.waiting is None:
            if not self._join(connection):
                return False
            self._epoch, self._acquired = 0, []
            self._topic_id = topic_id(connection, self._topic)
            self._fetch(connection, MAX_WAIT_MS if self._has_group else FIRST_WAIT_MS)
        produced = self._raw.produce(self._topic, SHARED)
        while produced is not None:
            assert self._session.waiting is not None
            answer = connection.receive(self._session.waiting, share_fetch.ShareFetchResponse)
            parts = [part for topic in answer.responses for part in topic.partitions]
            if answer.error_code or any(part.error_code or part.acknowledge_error_code for part in parts):
                self._session.waiting = None
                return False
            self._epoch, self._has_group = self._epoch + 1, True
            self._acquired = [records for part in parts for records in part.acquired_records]
            self._fetch(connection)
            if any(records.last_offset >= produced for records in self._acquired):
                return True
            if not parts:  # the group began behind this record, or the fetch waited for MAX_WAIT_MS
                produced = self._raw.produce(self._topic, SHARED)
        return False

    def _join(self, connection: BrokerConnection) -> bool:
        """Returns whether the member has its partitions. It need not stay in the group to fetch them."""
        request = beating.ShareGroupHeartbeatRequest(SHARE_GROUP, self._member_id, 0, None, [self._topic])
        answer = connection.call(request, beating.ShareGroupHeartbeatResponse)
        return not answer.error_code and bool(answer.assignment and answer.assignment.topic_partitions)

    def _fetch(self, connection: BrokerConnection, wait_ms: int = MAX_WAIT_MS) -> None:
        acknowledged = [
            share_fetch.AcknowledgementBatch(records.first_offset, records.last_offset, [ACCEPT])
            for records in self._acquired
        ]
        wanted = [share_fetch.FetchPartition(SHARED, acknowledged)]
        if not self._epoch:
            wanted += [share_fetch.FetchPartition(number) for number in IDLE]
        request = share_fetch.ShareFetchRequest(
            SHARE_GROUP,
            self._member_id,
            self._epoch,
            wait_ms,
            min_bytes=1,
            max_bytes=MAX_FETCH_BYTES,
            max_records=100,
            batch_size=100,
            topics=[share_fetch.FetchTopic(self._topic_id, wanted)],
        )
        self._session.waiting = connection.send(request, wait_ms=MAX_WAIT_MS)


class Pusher:
    """A client that pushes one metric. Each job is another instance of it, which need not wait."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._connection: BrokerConnection | None = None

    def work(self) -> bool:
        connection = self._connection
        if connection is None or connection.is_closed:
            connection = self._connection = open_connection(self._bootstrap)
        asked = connection.call(
            subscribing.GetTelemetrySubscriptionsRequest(), subscribing.GetTelemetrySubscriptionsResponse
        )
        push = pushing.PushTelemetryRequest(
            asked.client_instance_id, asked.subscription_id, metrics=metrics_of(["bystander"])
        )
        answer = connection.call(push, pushing.PushTelemetryResponse)
        return not asked.error_code and not answer.error_code


def metrics_of(names: Iterable[str], labels: Mapping[str, str] = {}) -> bytes:
    """Returns metrics of OpenTelemetry with one number each, and these labels."""
    data = MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    for name in names:
        point = scope.metrics.add(name=name).gauge.data_points.add(as_double=1.0)
        for label, value in labels.items():
            point.attributes.add(key=label).value.string_value = value
    return data.SerializeToString()
