"""Produce requests of a producer, and what their responses say."""

from __future__ import annotations

from typing import Final

from tidelog.client.core.cluster_view import PartitionLeader
from tidelog.client.core.producing.producer_batch import PartitionAnswer, ProducerBatch
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.shell.connection import AsyncConnection
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.records.compression import Compression
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

_PRODUCE_SINCE: Final = 3
_PRODUCE_OF_TRANSACTIONS_SINCE: Final = 12
_ZSTD_SINCE: Final = 7
_LAST_PRODUCE_BY_NAME: Final = 12


def produce_request(
    connection: AsyncConnection, batches: tuple[ProducerBatch, ...], settings: ProducerSettings
) -> tuple[ProduceRequest, int]:
    """Returns the request and its version. Raises ClientError."""
    is_transactional = settings.transactional_id is not None
    topics: dict[str, TopicProduceData] = {}
    has_ids = True
    for batch in batches:
        name = batch.place.topic
        topic = topics.get(name)
        if topic is None:
            has_ids = has_ids and batch.topic_id != ZERO_TOPIC_ID
            topic = topics[name] = TopicProduceData(name, batch.topic_id)
        data = batch.encode(is_transactional=is_transactional)
        topic.partition_data.append(PartitionProduceData(batch.place.partition, data))
    request = ProduceRequest(
        settings.transactional_id,
        settings.required_acks,
        settings.request_timeout_ms,
        list(topics.values()),
    )
    at_least = _ZSTD_SINCE if settings.compression is Compression.ZSTD else _PRODUCE_SINCE
    version = connection.version_for(
        request,
        at_least=_PRODUCE_OF_TRANSACTIONS_SINCE if is_transactional else at_least,
        at_most=None if has_ids else _LAST_PRODUCE_BY_NAME,
    )
    if version <= _LAST_PRODUCE_BY_NAME:  # a topic that was created again may store the batches
        for batch in batches:
            batch.topic_id = ZERO_TOPIC_ID
    return request, version


def produce_answers(
    request: ProduceRequest, response: ProduceResponse
) -> dict[TopicPartition, PartitionAnswer]:
    """Returns the answers by name. The request names the ids: metadata may have forgotten them since."""
    names = {topic.topic_id: topic.name for topic in request.topic_data}
    answers: dict[TopicPartition, PartitionAnswer] = {}
    for topic in response.responses:
        name = topic.name or names.get(topic.topic_id, "")
        for row in topic.partition_responses:
            leader = row.current_leader
            answers[TopicPartition(name, row.index)] = PartitionAnswer(
                row.error_code,
                row.base_offset,
                row.log_append_time_ms,
                _details(row),
                None
                if leader is None or leader.leader_id < 0
                else PartitionLeader(leader.leader_id, leader.leader_epoch),
            )
    return answers


def _details(row: PartitionProduceResponse) -> str | None:
    texts = [row.error_message or ""]
    texts += [f"record {error.batch_index}: {error.batch_index_error_message}" for error in row.record_errors]
    return "; ".join(text for text in texts if text) or None
