"""The fetches of a consumer: what it asks which broker for, and what the answers mean for its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from uuid import UUID

from tidelog.client.core.consuming.assigned_partitions import ConsumerState
from tidelog.client.core.consuming.consumed_partition import (
    ConsumedPartition,
    FetchedBatches,
    PositionState,
)
from tidelog.client.core.consuming.consumer_events import (
    CheckPositions,
    Effect,
    FetchAnswered,
    FetchedPartition,
    FetchFailed,
    FetchSession,
    PositionCheck,
    RecordsReady,
    SendFetch,
)
from tidelog.client.core.consuming.positions import METADATA_ERRORS, Positions
from tidelog.client.errors import request_error
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.records.batch import iterate_headers

PREFERRED_REPLICA_MS: Final = 300_000
"""The time for which a consumer fetches from a closer replica before it asks the leader again (KIP-392)."""
_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""After these errors the consumer opens another session at once."""


class Fetcher:
    """Fetches from the leader of each partition, or from a closer replica that it names."""

    def __init__(self, state: ConsumerState, positions: Positions) -> None:
        self._backoff = state.backoff
        self._view = state.view
        self._partitions = state.partitions
        self._metadata = state.metadata
        self._positions = positions
        self._last_request_id = 0
        self._busy_nodes: set[int] = set()
        self._sessions: dict[int, FetchSession] = {}
        """The fetch session with each broker."""
        self._fetches: dict[int, tuple[int, dict[ConsumedPartition, int], int, Mapping[str, UUID]]] = {}
        """The broker of each fetch in flight, the generations of its partitions, the view's `ended_topics`
        when it was sent, and the ids of its topics."""

    def fetch(self, now_ms: int, effects: list[Effect]) -> None:
        by_node: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        checks: dict[int, dict[TopicPartition, PositionCheck]] = {}
        for place, partition in self._partitions.items():
            if not partition.can_fetch or now_ms < partition.not_before_ms:
                continue
            found = self._view.leader(place)
            node_id = found.leader
            if partition.needs_check(found.leader_epoch):
                if node_id not in self._view.nodes:
                    self._metadata.is_needed = True
                elif not partition.is_checking:
                    partition.is_checking = True
                    checks.setdefault(node_id, {})[place] = PositionCheck(
                        found.leader_epoch, partition.fetch_epoch, partition.generation
                    )
                continue
            if partition.preferred_replica in self._view.nodes:
                if now_ms < partition.preferred_until_ms:
                    node_id = partition.preferred_replica
                else:
                    partition.preferred_replica = -1
            if node_id not in self._view.nodes:
                self._metadata.is_needed = True
            elif node_id not in self._busy_nodes:
                by_node.setdefault(node_id, {})[place] = (partition.fetch_offset, found.leader_epoch)
                partition.checked_epoch = found.leader_epoch
        effects += [CheckPositions(node_id, found) for node_id, found in checks.items()]
        topics = self._view.topics
        topic_ids = {
            place.topic: topics[place.topic].topic_id
            for offsets in by_node.values()
            for place in offsets
            if place.topic in topics
        }
        for node_id, offsets in by_node.items():
            self._last_request_id += 1
            session = self._sessions.setdefault(node_id, FetchSession()).request(offsets, topic_ids)
            for place in session.read:
                self._partitions[place].is_fetching = True
            self._fetches[self._last_request_id] = (
                node_id,
                {self._partitions[place]: self._partitions[place].generation for place in session.read},
                self._view.ended_topics,
                session.topic_ids,
            )
            self._busy_nodes.add(node_id)
            effects.append(SendFetch(self._last_request_id, node_id, offsets, session))

    def answered(self, event: FetchAnswered, now_ms: int, effects: list[Effect]) -> None:
        node_id, generations, ended_topics, topic_ids = self._fetches.pop(event.request_id)
        self._busy_nodes.discard(node_id)
        if event.error_code:
            self._sessions[node_id].refused(event.error_code)
            self._metadata.is_needed |= event.error_code not in _SESSION_ERRORS - METADATA_ERRORS
        else:
            self._sessions[node_id].answered(event.session_id)
        has_news = False
        for partition, generation in generations.items():
            place = partition.place
            partition.is_fetching = False
            if self._partitions.get(place) is not partition:
                continue
            answer = event.partitions.get(place)
            if partition.generation != generation or partition.state is not PositionState.KNOWN:
                continue
            if answer is None:
                if event.error_code and event.error_code not in _SESSION_ERRORS:
                    partition.not_before_ms = now_ms + self._backoff.delay_ms(1)
                continue
            if answer.leader is not None:
                self._view.learn_leader(place, answer.leader, ended_topics)
            topic_id = topic_ids.get(place.topic)
            if place.topic in self._view.topics and self._view.topics[place.topic].topic_id != topic_id:
                continue  # the answer is about an earlier topic of the name
            if not answer.error_code and topic_id != ZERO_TOPIC_ID:
                partition.topic_id = topic_id
            has_news |= self._take_answer(partition, answer, node_id, now_ms)
        if has_news:
            effects.append(RecordsReady())

    def _take_answer(
        self, partition: ConsumedPartition, answer: FetchedPartition, node_id: int, now_ms: int
    ) -> bool:
        """Returns whether the application gets something to see."""
        code = answer.error_code
        if code == ErrorCode.NONE:
            partition.high_watermark = answer.high_watermark
            partition.last_stable_offset = answer.last_stable_offset
            partition.log_start_offset = answer.log_start_offset
            if answer.preferred_replica >= 0 and answer.preferred_replica != node_id:
                if answer.preferred_replica not in self._view.nodes:
                    self._metadata.is_needed = True
                    partition.not_before_ms = now_ms + self._backoff.delay_ms(1)
                    return False
                partition.preferred_replica = answer.preferred_replica
                partition.preferred_until_ms = now_ms + PREFERRED_REPLICA_MS
                return False
            if not len(answer.records):
                return False
            partition.fetched.append(
                FetchedBatches(partition.place, answer.records, partition.fetch_offset, answer.aborted)
            )
            partition.fetch_offset, partition.fetch_epoch = _end_of(answer.records, partition)
            self._partitions.wait_turn(partition)
            return True
        partition.not_before_ms = now_ms + self._backoff.delay_ms(1)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if partition.preferred_replica >= 0:
                partition.preferred_replica = -1  # a follower may be behind; the leader knows
                return False
            if partition.fetched:
                return False  # first deliver what was fetched
            return self._positions.reset_by_policy(partition)
        partition.preferred_replica = -1
        if code in METADATA_ERRORS:
            self._metadata.is_needed = True
            return False
        error = request_error(code, f"fetch of {partition.place}")
        if error.is_retriable:
            return False
        self._partitions.fail(partition, error)
        return True

    def failed(self, event: FetchFailed, now_ms: int) -> None:
        node_id, generations, _, _ = self._fetches.pop(event.request_id)
        self._busy_nodes.discard(node_id)
        self._sessions[node_id].failed()
        self._metadata.is_needed = True
        for partition in generations:
            partition.is_fetching = False
            partition.preferred_replica = -1
            partition.not_before_ms = now_ms + self._backoff.delay_ms(1)


def _end_of(records: memoryview, partition: ConsumedPartition) -> tuple[int, int]:
    """Returns the offset after the last whole batch, and its leader epoch."""
    end, epoch = partition.fetch_offset, partition.fetch_epoch
    with suppress(ValueError):  # the application gets the error after the records before it
        for _, header in iterate_headers(records):
            if header.last_offset >= end:
                end, epoch = header.last_offset + 1, header.partition_leader_epoch
    return end, epoch
