"""Reads one topic for commands, which end with an error if brokers do not answer.

The client's consumer waits for brokers for ever, as Kafka's does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Final

from tidelog.client.admin.offsets import list_offsets
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.core.connection_settings import Properties
from tidelog.client.core.consuming.consumer_batch import ConsumerBatch
from tidelog.client.core.consuming.records import ConsumerRecord
from tidelog.client.errors import ClientError, ConnectionLostError, CorruptFetchError, UnreachableError
from tidelog.client.threads.consumer import Consumer
from tidelog.client.threads.producer import Producer
from tidelog.model.protocol_values import LATEST_TIMESTAMP
from tidelog.model.topics import TopicPartition
from tidelog.records.record import Record
from tidelog.settings.setting import INT_MAX

DEFAULT_BATCH_BYTES: Final = 16_384
MAX_REQUEST_BYTES: Final = 65 * 1024 * 1024
"""The largest request, and the most bytes that wait. Brokers accept requests of 100 MiB by default."""
_EVERY_REPLICA: Final = ("all", "-1")


def consumer_of(cluster: Cluster, settings: Properties) -> Consumer[bytes, bytes]:
    """Returns a consumer that is not started. Starting it raises SettingsError, ClientError."""
    return Consumer(
        cluster.bootstrap, {**_connection_settings(cluster), **settings}, security=cluster.security
    )


def batch_producer_of(
    cluster: Cluster,
    *,
    acks: str = "all",
    compression: str = "none",
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    is_idempotent: bool | None = None,
) -> Producer[bytes, bytes]:
    """Returns a producer, not started, whose batches do not wait for more records.

    It retries until the cluster's timeout. `is_idempotent` None means that it is with acks=all. Starting it
    raises ClientError.
    """
    connection = _connection_settings(cluster)
    return Producer(
        cluster.bootstrap,
        {
            **connection,
            "acks": acks,
            "enable.idempotence": acks in _EVERY_REPLICA if is_idempotent is None else is_idempotent,
            "compression.type": compression,
            "batch.size": min(batch_bytes, INT_MAX),
            "linger.ms": 0,
            "max.request.size": MAX_REQUEST_BYTES,
            "buffer.memory": MAX_REQUEST_BYTES,
            "max.block.ms": connection["request.timeout.ms"],
            "delivery.timeout.ms": connection["request.timeout.ms"],
        },
        security=cluster.security,
    )


def _connection_settings(cluster: Cluster) -> Properties:
    timeout_ms = min(INT_MAX, max(1, int(cluster.timeout_s * 1000)))
    return {
        "client.id": cluster.client_id,
        "request.timeout.ms": timeout_ms,
        "socket.connection.setup.timeout.ms": timeout_ms,
    }


POLL_S: Final = 0.5
QUIET_CHECK_S: Final = 5.0
"""The time without records after which the reader asks the leaders whether they answer, again and again."""


class TopicReader:
    """Reads the partitions of a topic with a consumer that was given them, or that is in a group.

    It is not thread-safe.
    """

    def __init__(
        self,
        consumer: Consumer[bytes, bytes],
        cluster: Cluster,
        topic: str,
        partitions: list[int] | None = None,
    ) -> None:
        """`partitions` are those whose leaders must answer, None for all."""
        self._consumer = consumer
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._described: Topic | None = None
        self._quiet_since_s = time.monotonic()
        self._failing_since_s: float | None = None

    def poll(self, wait_s: float = POLL_S) -> ConsumerBatch[bytes, bytes] | None:
        """Returns the records of one fetch, and waits up to `wait_s` for them.

        While there are none, temporary failures (a leader has moved, a broker restarts) are raised if they
        last for the cluster's timeout. Raises KafkaError, ClientError.
        """
        batch = self._consumer.poll_batch(wait_s)
        now_s = time.monotonic()
        if batch is not None:
            self._quiet_since_s, self._failing_since_s = now_s, None
        elif now_s - self._quiet_since_s >= min(QUIET_CHECK_S, self._cluster.timeout_s):
            self._quiet_since_s = now_s
            self._ask_leaders(now_s)
        return batch

    @property
    def is_failing(self) -> bool:
        """Whether a leader did not answer when it was asked last, so that there may be more records."""
        return self._failing_since_s is not None

    def positions(self) -> dict[int, int]:
        """Returns the next offset of each partition, if it is known."""
        return {place.partition: offset for place, offset in self._consumer.positions().items()}

    def finish(self, partition: int) -> None:
        """Reads no more of a partition."""
        self._consumer.pause([TopicPartition(self._topic, partition)])

    def _ask_leaders(self, now_s: float) -> None:
        self._cluster.note_reached(self._consumer.reached_addresses())
        try:
            known = self._described or self._cluster.topic(self._topic)
            list_offsets(self._cluster, known, LATEST_TIMESTAMP, partitions=self._partitions)
        except (ConnectionLostError, UnreachableError) as error:
            self._tolerate(error, now_s)
            return
        self._described, self._failing_since_s = known, None

    def _tolerate(self, error: ClientError, now_s: float) -> None:
        """Raises `error` if it has lasted too long. Otherwise looks up the leaders again."""
        self._failing_since_s = self._failing_since_s or now_s
        if now_s - self._failing_since_s > self._cluster.timeout_s:
            raise error
        with contextlib.suppress(ConnectionLostError, UnreachableError):  # the next check reports it
            self._described = self._cluster.topic(self._topic)


@contextlib.contextmanager
def reading(
    cluster: Cluster, topic: str, positions: Mapping[int, int], settings: Properties | None = None
) -> Iterator[TopicReader]:
    """Reads partitions from these offsets on. An offset that does not exist is an error."""
    own: Properties = {
        "auto.offset.reset": "none",
        "enable.auto.commit": False,
        "allow.auto.create.topics": False,  # a topic that was deleted stays deleted
    }
    with consumer_of(cluster, {**own, **(settings or {})}) as consumer:
        consumer.assign(TopicPartition(topic, index) for index in positions)
        for index, offset in positions.items():
            consumer.seek(TopicPartition(topic, index), offset)
        yield TopicReader(consumer, cluster, topic, sorted(positions))


def sound_records(
    batch: ConsumerBatch[bytes, bytes], *, max_headers: int | None = None
) -> Iterator[ConsumerRecord[bytes, bytes]]:
    """Yields the records of a batch with at most `max_headers` headers each, None for all.

    Raises CorruptFetchError for records that their producer damaged.
    """
    following = batch.start_offset
    try:
        for record in batch.iterate(max_headers=max_headers):
            following = record.offset + 1
            yield record
    except ValueError as error:
        raise CorruptFetchError(
            f"topic '{batch.topic}' partition {batch.partition} near offset {following}: {error}"
        ) from error


def plain_record(found: ConsumerRecord[bytes, bytes]) -> Record:
    """Returns a record without its place."""
    return Record(found.offset, found.timestamp, found.key_bytes, found.value_bytes, found.headers)
