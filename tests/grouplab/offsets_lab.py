"""A group shard's core with a log in memory, and requests about offsets."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple  # Any: generated messages have no common base
from uuid import UUID

from grouplab.shards import completed
from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    CoordinatorRecord,
    EndMarker,
    Producer,
    ReplayedRecord,
    ShardDecision,
    ShardRequest,
    TopicImage,
)
from tidelog.settings.coordinator_settings import CoordinatorSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import request_decoder, request_encoder, response_decoder, response_encoder
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidelog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

TOPIC_IDS = {name: UUID(int=number) for number, name in enumerate(("a", "b"), 1)}


def image_of(topic_ids: dict[str, UUID], version: int = 1) -> ClusterImage:
    return ClusterImage(
        version,
        {name: TopicImage(topic_id, name, 4) for name, topic_id in topic_ids.items()},
        {topic_id: name for name, topic_id in topic_ids.items()},
    )


class Logged(NamedTuple):
    record: CoordinatorRecord | None
    producer: Producer | None
    marker: EndMarker | None
    timestamp_ms: int


class OffsetsLab:
    def __init__(self, settings: CoordinatorSettings | None = None) -> None:
        self.settings = settings or CoordinatorSettings()
        self.log: list[Logged] = []
        self.now_ms = 1_000_000
        self.topic_ids = dict(TOPIC_IDS)
        self.core: GroupCore
        self._numbers = itertools.count(1)
        self.load()

    def load(self, entries: int | None = None) -> None:
        """Lets a new owner load the first `entries` of the log. The other entries are lost."""
        if entries is not None:
            del self.log[entries:]
        self.core = GroupCore(self.settings, lambda: f"uuid-{next(self._numbers)}")
        for offset, (record, producer, marker, timestamp_ms) in enumerate(self.log):
            if record is not None:
                self.core.replay(ReplayedRecord(*record, timestamp_ms, producer), offset)
            if marker is not None:
                self.core.replay_marker(marker.producer, marker.is_commit)
        self.take(self.core.activate(image_of(self.topic_ids), self.now_ms))

    def take(self, decision: ShardDecision) -> dict[Any, Any]:
        for record in decision.records:
            self.log.append(Logged(record, decision.transaction, None, self.now_ms))
        if decision.marker is not None:
            self.log.append(Logged(None, None, decision.marker, self.now_ms))
        return {reply.reply_to: completed(reply.message) for reply in decision.replies}

    def ask(self, api_key: ApiKey, version: int, message: Any) -> Any:
        """Returns the response as the client decodes it, or None if there is none yet."""
        body = b"".join(request_encoder(api_key, version)(message))
        decoded = request_decoder(api_key, version)(body, 0)[0]
        number = next(self._numbers)
        request = ShardRequest(number, api_key, version, decoded)
        replies = self.take(self.core.handle(request, self.now_ms))
        if number not in replies:
            return None
        encoded = b"".join(response_encoder(api_key, version)(replies[number]))
        return response_decoder(api_key, version)(encoded, 0)[0]

    # -- requests of clients

    def commit(
        self,
        offset: int,
        *,
        group: str = "g",
        topic: str = "a",
        partition: int = 0,
        version: int = 9,
        metadata: str | None = "",
        member: tuple[str, int] = ("", -1),
        retention_ms: int = -1,
    ) -> int:
        topic_id = self.topic_ids.get(topic, UUID(int=99))
        partitions = [OffsetCommitRequestPartition(partition, offset, 3, metadata)]
        topics = [OffsetCommitRequestTopic(topic, topic_id, partitions)]
        request = OffsetCommitRequest(group, member[1], member[0], None, retention_ms, topics)
        (answered,) = self.ask(ApiKey.OFFSET_COMMIT, version, request).topics
        error: int = answered.partitions[0].error_code
        return error

    def fetch(
        self,
        *,
        group: str = "g",
        topic: str = "a",
        partition: int = 0,
        version: int = 9,
        stable: bool = False,
    ) -> tuple[int, int]:
        """Returns the offset and the error code."""
        if version < 8:
            request = OffsetFetchRequest(group, [OffsetFetchRequestTopic(topic, [partition])], [], stable)
            (found,) = self.ask(ApiKey.OFFSET_FETCH, version, request).topics[0].partitions
        else:
            topic_id = self.topic_ids.get(topic, UUID(int=99))
            asked = OffsetFetchRequestGroup(
                group, topics=[OffsetFetchRequestTopics(topic, topic_id, [partition])]
            )
            request = OffsetFetchRequest(groups=[asked], require_stable=stable)
            (found,) = self.ask(ApiKey.OFFSET_FETCH, version, request).groups[0].topics[0].partitions
        return found.committed_offset, found.error_code

    def fetch_all(self, group: str = "g", version: int = 9) -> dict[tuple[str, int], int]:
        if version < 8:
            topics = self.ask(ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(group, None)).topics
        else:
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None)])
            topics = self.ask(ApiKey.OFFSET_FETCH, version, request).groups[0].topics
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        return {
            (topic.name or names[topic.topic_id], partition.partition_index): partition.committed_offset
            for topic in topics
            for partition in topic.partitions
        }

    def commit_in_transaction(
        self,
        offset: int,
        producer: tuple[int, int] = (7, 0),
        *,
        group: str = "g",
        topic: str = "a",
        partition: int = 0,
        member: tuple[str, int] = ("", -1),
        version: int = 5,
    ) -> int:
        partitions = [TxnOffsetCommitRequestPartition(partition, offset, -1, None)]
        topic_id = self.topic_ids.get(topic, UUID(int=99))
        topics = [TxnOffsetCommitRequestTopic(topic, topic_id, partitions)]
        request = TxnOffsetCommitRequest("t", group, *producer, member[1], member[0], None, topics)
        (answered,) = self.ask(ApiKey.TXN_OFFSET_COMMIT, version, request).topics
        error: int = answered.partitions[0].error_code
        return error

    def end(
        self,
        commit: bool,
        producer: tuple[int, int] = (7, 0),
        *,
        bumps: bool = False,
        coordinator_epoch: int = 1,
    ) -> int:
        topics = [WritableTxnMarkerTopic("__consumer_offsets", [0])]
        marker = WritableTxnMarker(*producer, commit, topics, coordinator_epoch, 2 if bumps else 0)
        answer = self.ask(ApiKey.WRITE_TXN_MARKERS, 2, WriteTxnMarkersRequest([marker]))
        error: int = answer.markers[0].topics[0].partitions[0].error_code
        return error
