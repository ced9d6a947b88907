"""Reads the batches of one partition as the leader sends them, including markers and aborted batches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from tidelog.client.cluster import RETRY_BACKOFF_S, Cluster, Topic, raise_on_error
from tidelog.client.errors import ConnectionLostError, UnreachableError, request_error
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import CONSUMER_REPLICA_ID, READ_COMMITTED
from tidelog.model.topics import ZERO_TOPIC_ID
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

DEFAULT_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_WAIT_MS: Final = 500
_FETCH_SINCE: Final = 4  # magic 2 and isolation levels
_LAST_BY_NAME: Final = 12
_SESSIONLESS_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class RawBatches:
    """Batches, of which the last may be incomplete. `aborted` holds sorted (first offset, producer id)."""

    data: memoryview
    aborted: tuple[tuple[int, int], ...]


def fetch_batches(
    cluster: Cluster,
    topic: Topic,
    partition: int,
    offset: int,
    *,
    isolation_level: int = READ_COMMITTED,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> RawBatches:
    """Returns the batches from that of `offset` to the end that consumers may read.

    The result is empty if no record arrives within half a second. Temporary failures are retried until the
    cluster's timeout. Raises KafkaError, ClientError.
    """
    deadline_s = time.monotonic() + cluster.timeout_s
    while True:
        try:
            return _fetch(cluster, topic, partition, offset, isolation_level, max_bytes)
        except (ConnectionLostError, UnreachableError, KafkaError) as error:
            if isinstance(error, KafkaError) and not error.is_retriable:
                raise
            if time.monotonic() > deadline_s:
                raise
            time.sleep(RETRY_BACKOFF_S)
            topic = cluster.topic(topic.name)


def _fetch(
    cluster: Cluster, topic: Topic, partition: int, offset: int, isolation_level: int, max_bytes: int
) -> RawBatches:
    leader = next((each.leader for each in topic.partitions if each.index == partition), -1)
    row = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        replica_id=CONSUMER_REPLICA_ID,
        max_wait_ms=_MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=_SESSIONLESS_EPOCH,
        topics=[FetchTopic(topic.name, topic.topic_id, [row])],
    )
    at_most = None if topic.topic_id != ZERO_TOPIC_ID else _LAST_BY_NAME
    answer = cluster.broker(leader).call(
        request, FetchResponse, at_least=_FETCH_SINCE, at_most=at_most, wait_ms=_MAX_WAIT_MS
    )
    raise_on_error(answer.error_code, f"topic '{topic.name}'")
    data = answer.responses[0].partitions[0]
    if data.error_code:
        raise request_error(data.error_code, f"topic '{topic.name}' partition {partition} at offset {offset}")
    raw = memoryview(data.records or b"")  # type: ignore[arg-type]  # decoded answers hold views
    return RawBatches(raw, _aborted(data))


def _aborted(data: PartitionData) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((row.first_offset, row.producer_id) for row in data.aborted_transactions or ()))
