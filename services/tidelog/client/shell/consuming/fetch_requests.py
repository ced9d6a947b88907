"""Fetch requests of a consumer, and what their responses say."""

from __future__ import annotations

from typing import Final

from tidelog.client.core.cluster_view import PartitionLeader, partitions_by_topic
from tidelog.client.core.consuming.consumer_events import FetchedPartition, SendFetch, SessionRequest
from tidelog.client.core.settings import ConsumerSettings
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

FETCH_SINCE: Final = 7
LAST_FETCH_BY_NAME: Final = 12
_EMPTY: Final = memoryview(b"")


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
