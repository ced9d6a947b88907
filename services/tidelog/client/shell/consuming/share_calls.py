"""The requests of a share consumer: to its group's coordinator, and to the leaders of its partitions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

from tidelog.client.calls import GROUP
from tidelog.client.core.cluster_view import ClusterView, PartitionLeader
from tidelog.client.core.consuming.consumer_events import AcknowledgedBatch
from tidelog.client.core.consuming.membership import Heartbeat, HeartbeatAnswered, LeaveHeartbeat
from tidelog.client.core.consuming.share_consumer import (
    SendAcknowledgements,
    SendShareFetch,
    ShareAnswered,
    SharedPartition,
)
from tidelog.client.core.settings import ShareConsumerSettings
from tidelog.client.shell.consuming.group_calls import COORDINATOR_ERRORS, Coordinator, heartbeat_answered
from tidelog.client.shell.network import Network
from tidelog.model.protocol_values import FINAL_EPOCH
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages import share_acknowledge as acknowledging
from tidelog.wire.messages import share_fetch as fetching
from tidelog.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

SHARE_LANE: Final = "share"
"""A session ends with its connection, so all its requests use one."""
_EMPTY: Final = memoryview(b"")
Batches = Mapping[TopicPartition, tuple[AcknowledgedBatch, ...]]


class ShareCalls:
    def __init__(self, network: Network, settings: ShareConsumerSettings, view: ClusterView) -> None:
        self._network = network
        self._settings = settings
        self._view = view
        self.coordinator: Coordinator = Coordinator(network, GROUP, settings.group_id)
        self.member_id: str = str(uuid.uuid4())
        self._topic_ids: dict[str, uuid.UUID] = {}
        """The id of each topic of a session, which metadata may have forgotten."""

    async def ask(self, heartbeat: Heartbeat) -> HeartbeatAnswered:
        """Raises KafkaError, ClientError."""
        settings = self._settings
        request = ShareGroupHeartbeatRequest(
            settings.group_id,
            self.member_id,
            heartbeat.member_epoch,
            settings.client_rack or None if heartbeat.topics is not None else None,
            None if heartbeat.topics is None else list(heartbeat.topics),
        )
        connection = await self.coordinator.connection()
        answer: ShareGroupHeartbeatResponse = await connection.call(request, self._network.timeout_s)
        if answer.error_code in COORDINATOR_ERRORS:
            self.coordinator.forget()
        return heartbeat_answered(heartbeat, answer)

    async def leave(self, goodbye: LeaveHeartbeat) -> None:
        """Raises KafkaError, ClientError."""
        request = ShareGroupHeartbeatRequest(self._settings.group_id, self.member_id, goodbye.epoch)
        connection = await self.coordinator.connection()
        await connection.call(request, self._network.timeout_s)

    async def fetch(self, effect: SendShareFetch) -> ShareAnswered:
        """Raises ClientError."""
        settings = self._settings
        request = fetching.ShareFetchRequest(
            settings.group_id,
            self.member_id,
            effect.epoch,
            settings.fetch_max_wait_ms,
            settings.fetch_min_bytes,
            settings.fetch_max_bytes,
            settings.max_poll_records,
            settings.max_poll_records,
            settings.acquire_mode,
        )
        topics: dict[uuid.UUID, fetching.FetchTopic] = {}
        for place in dict.fromkeys((*effect.added, *effect.acknowledgements)):
            topic_id = self._topic_id(place.topic)
            row = fetching.FetchPartition(place.partition)
            row.acknowledgement_batches = [
                fetching.AcknowledgementBatch(first, last, list(types))
                for first, last, types in effect.acknowledgements.get(place, ())
            ]
            topics.setdefault(topic_id, fetching.FetchTopic(topic_id)).partitions.append(row)
        request.topics = list(topics.values())
        forgotten: dict[uuid.UUID, fetching.ForgottenTopic] = {}
        for place in effect.forgotten:
            topic_id = self._topic_id(place.topic)
            forgotten.setdefault(topic_id, fetching.ForgottenTopic(topic_id)).partitions.append(
                place.partition
            )
        request.forgotten_topics_data = list(forgotten.values())
        connection = await self._network.broker(effect.node_id, SHARE_LANE)
        answer: fetching.ShareFetchResponse = await connection.call(
            request, self._network.timeout_s + settings.fetch_max_wait_ms / 1000
        )
        partitions: dict[TopicPartition, SharedPartition] = {}
        for topic in answer.responses:
            for data in topic.partitions:
                place = TopicPartition(self._name(topic.topic_id), data.partition_index)
                partitions[place] = SharedPartition(
                    data.error_code,
                    data.error_message,
                    data.acknowledge_error_code,
                    data.acknowledge_error_message,
                    memoryview(data.records) if data.records else _EMPTY,  # type: ignore[arg-type]  # a view
                    tuple(
                        (row.first_offset, row.last_offset, row.delivery_count)
                        for row in data.acquired_records
                    ),
                    _leader(data.current_leader),
                )
        self._learn_nodes(answer.node_endpoints)
        return ShareAnswered(
            effect.request_id,
            answer.error_code,
            answer.error_message,
            answer.acquisition_lock_timeout_ms,
            partitions,
        )

    async def acknowledge(self, effect: SendAcknowledgements) -> ShareAnswered:
        """Raises ClientError."""
        answer = await self._acknowledge(effect.node_id, effect.epoch, effect.acknowledgements)
        partitions = {
            TopicPartition(self._name(topic.topic_id), data.partition_index): SharedPartition(
                0, None, data.error_code, data.error_message, _EMPTY, (), _leader(data.current_leader)
            )
            for topic in answer.responses
            for data in topic.partitions
        }
        self._learn_nodes(answer.node_endpoints)
        return ShareAnswered(effect.request_id, answer.error_code, answer.error_message, 0, partitions)

    async def end_session(self, node_id: int, acknowledgements: Batches) -> None:
        """Sends the last acknowledgements. The broker gives the other records of the session to other
        members. Raises ClientError.
        """
        await self._acknowledge(node_id, FINAL_EPOCH, acknowledgements)

    async def _acknowledge(
        self, node_id: int, epoch: int, acknowledgements: Batches
    ) -> acknowledging.ShareAcknowledgeResponse:
        topics: dict[uuid.UUID, acknowledging.AcknowledgeTopic] = {}
        for place, batches in acknowledgements.items():
            topic_id = self._topic_id(place.topic)
            topic = topics.setdefault(topic_id, acknowledging.AcknowledgeTopic(topic_id))
            topic.partitions.append(
                acknowledging.AcknowledgePartition(
                    place.partition,
                    [
                        acknowledging.AcknowledgementBatch(first, last, list(types))
                        for first, last, types in batches
                    ],
                )
            )
        request = acknowledging.ShareAcknowledgeRequest(
            self._settings.group_id, self.member_id, epoch, topics=list(topics.values())
        )
        connection = await self._network.broker(node_id, SHARE_LANE)
        answer: acknowledging.ShareAcknowledgeResponse = await connection.call(
            request, self._network.timeout_s
        )
        return answer

    def _topic_id(self, name: str) -> uuid.UUID:
        known = self._view.topics.get(name)
        if known is not None:
            self._topic_ids[name] = known.topic_id
        return self._topic_ids[name]

    def _name(self, topic_id: uuid.UUID) -> str:
        return next((name for name, known in self._topic_ids.items() if known == topic_id), "")

    def _learn_nodes(self, endpoints: list[fetching.NodeEndpoint] | list[acknowledging.NodeEndpoint]) -> None:
        for endpoint in endpoints:
            self._network.learn_node(endpoint.node_id, endpoint.host, endpoint.port)


def _leader(
    row: fetching.LeaderIdAndEpoch | acknowledging.LeaderIdAndEpoch | None,
) -> PartitionLeader | None:
    """Returns None if the broker names no leader: then the epoch is 0 or -1 and the broker 0 or -1."""
    if row is None or row.leader_id < 0 or (row.leader_id == 0 and row.leader_epoch == 0):
        return None
    return PartitionLeader(row.leader_id, row.leader_epoch)
