"""Answers what coordinators ask about the partitions that this broker leads: writes transaction markers, and
tells the offsets from which they compute consumer lag.

Markers (WriteTxnMarkers, KIP-98, KIP-890) for `__consumer_offsets` are passed on to the owners of the shards,
because only an owner writes to its shard's partition.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeAlias

import structlog

from tidelog.broker.coordination.attachment import ShardCall
from tidelog.broker.hosting.hosted_partitions import HostedPartitions
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.segment import FileRange
from tidelog.broker.requests.waiting import Purgatory, Waiter
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.kernel.timer import Timer
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import GROUP_METADATA_TOPIC, TopicPartition
from tidelog.records.batch import BATCH_HEADER_BYTES, EndTransactionMarker, parse_header
from tidelog.rpc.coordinator_session import Marker, PartitionOffsets
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_VERSION: Final = 2
_AWAY: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)

POSITIONS_AT_A_TIME: Final = 200
"""The number of positions that are looked up in one turn of the event loop."""
NOT_LED_HERE: Final = PartitionOffsets(-1, -1, -1, -1)
UNKNOWN: Final = -1

Errors: TypeAlias = tuple[tuple[ErrorCode, ...], ...]
Place: TypeAlias = tuple[int, int]
"""The index of a marker, and the index of one of its partitions."""

_log = structlog.get_logger(__name__)


class MarkerWriter:
    """Writes markers for the coordinators' sessions and for the WriteTxnMarkers API."""

    def __init__(
        self,
        hosted: HostedPartitions,
        waiting_produce: Purgatory,
        clock: Clock,
        timer: Timer,
        pass_on: Callable[[ShardId, ShardCall], ErrorCode],
        timeout_ms: int,
    ) -> None:
        """Markers wait for their replication for `timeout_ms` (request.timeout.ms). After that, the
        coordinator sends them again.
        """
        self._timeout_ms = timeout_ms
        self._hosted = hosted
        self._waiting_produce = waiting_produce
        self._clock = clock
        self._timer = timer
        self._pass_on = pass_on

    def write(self, markers: Sequence[Marker], on_written: Callable[[Errors], None]) -> None:
        """Writes `markers`. Calls `on_written` with an error code for each partition of each marker when all
        of them are replicated or have failed. This may happen before `write` returns.
        """
        write = _MarkerWrite(markers, on_written)
        now_ms = self._clock.wall_ms()
        for at, marker in enumerate(markers):
            for part, topic_partition in enumerate(marker.partitions):
                if topic_partition.topic == GROUP_METADATA_TOPIC:
                    shard = ShardId(ShardKind.GROUP, topic_partition.partition)
                    self._ask_owner(write, (at, part), marker, shard)
                else:
                    self._append(write, (at, part), marker, topic_partition, now_ms)
        waits_for = [waiting[0].topic_partition for waiting in write.unreplicated.values()]
        write.is_watched = True
        deadline_ms = MonotonicMs(self._timer.monotonic_ms() + self._timeout_ms)
        self._waiting_produce.watch(write, waits_for, deadline_ms)

    def _append(
        self, write: _MarkerWrite, place: Place, marker: Marker, partition: TopicPartition, now_ms: WallMs
    ) -> None:
        try:
            replica = self._hosted.leader_replica(*partition)
            appended = replica.append_marker(
                marker.producer_id,
                marker.producer_epoch,
                EndTransactionMarker(marker.is_commit, marker.coordinator_epoch),
                marker.transaction_version,
                now_ms,
            )
        except KafkaError as error:
            _log.info("a transaction marker is refused", partition=str(partition), reason=str(error))
            write.errors[place[0]][place[1]] = error.code
            return
        write.unreplicated[place] = replica, replica.core.leader_epoch, appended.required_offset

    def _ask_owner(self, write: _MarkerWrite, place: Place, marker: Marker, shard: ShardId) -> None:
        """Passes one marker on to the shard's owner, because one decision of an owner writes one marker."""
        at, part = place

        def on_answered(body: bytes | None, error: ErrorCode) -> None:
            write.unanswered.discard(place)
            if write.is_done:
                return  # The write has timed out.
            code = error if body is None else _code_in(body)
            # As in Kafka, coordinators that send markers expect errors of partitions only.
            write.errors[at][part] = ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _AWAY else code
            if write.is_watched and write.is_written:
                self._waiting_produce.complete(write)

        body = b"".join(
            codec.request_encoder(ApiKey.WRITE_TXN_MARKERS, _VERSION)(
                WriteTxnMarkersRequest([_for_shard(marker, shard)])
            )
        )
        write.unanswered.add(place)
        call = ShardCall(ApiKey.WRITE_TXN_MARKERS, _VERSION, body, on_answered)
        refused = self._pass_on(shard, call)
        if refused:
            call.answered(None, refused)


def _code_in(body: bytes) -> ErrorCode:
    answer: WriteTxnMarkersResponse = codec.response_decoder(ApiKey.WRITE_TXN_MARKERS, _VERSION)(body, 0)[0]
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


def _for_shard(marker: Marker, shard: ShardId) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.is_commit,
        topics=[WritableTxnMarkerTopic(GROUP_METADATA_TOPIC, [shard.partition])],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )


class _MarkerWrite(Waiter):
    """Markers that are not replicated yet, or that the shards' owners have not answered yet."""

    __slots__ = (
        "_by_partition",
        "_on_written",
        "errors",
        "is_watched",
        "markers",
        "unanswered",
        "unreplicated",
    )

    def __init__(self, markers: Sequence[Marker], on_written: Callable[[Errors], None]) -> None:
        super().__init__()
        self.markers = markers
        self.errors = [[ErrorCode.NONE] * len(marker.partitions) for marker in markers]
        self.unreplicated: dict[Place, tuple[Replica, int, int]] = {}
        """For each place, the replica, its leader epoch and the high watermark at which the marker counts."""
        self.unanswered: set[Place] = set()
        self.is_watched = False
        self._by_partition: dict[Hashable, list[Place]] | None = None  # of several, since the first change
        self._on_written = on_written

    @property
    def is_written(self) -> bool:
        return not self.unreplicated and not self.unanswered

    def on_change(self, key: Hashable | None) -> bool:
        """Settles the places that no longer wait for their replication."""
        if key is None:
            self._look_at(tuple(self.unreplicated))
            return self.is_written
        by_partition = self._by_partition
        if by_partition is None:
            by_partition = self._by_partition = {}
            for place, (replica, _, _) in self.unreplicated.items():
                by_partition.setdefault(replica.topic_partition, []).append(place)
        places = by_partition.pop(key, [])
        self._look_at(places)
        still = [place for place in places if place in self.unreplicated]
        if still:
            by_partition[key] = still
        return self.is_written

    def _look_at(self, places: Iterable[Place]) -> None:
        """Settles the places that no longer wait for their replication."""
        for place in places:
            replica, leader_epoch, required_offset = self.unreplicated[place]
            core = replica.core
            if not core.is_leader or core.leader_epoch != leader_epoch:
                self._settle(place, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif core.is_acknowledged(required_offset):
                under_min_isr = core.is_under_min_isr
                self._settle(
                    place, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if under_min_isr else ErrorCode.NONE
                )

    def _settle(self, place: Place, error: ErrorCode) -> None:
        del self.unreplicated[place]
        self.errors[place[0]][place[1]] = error

    def on_expire(self) -> None:
        for place in tuple(self.unreplicated):
            self._settle(place, ErrorCode.REQUEST_TIMED_OUT)
        for at, part in self.unanswered:
            self.errors[at][part] = ErrorCode.REQUEST_TIMED_OUT

    def on_complete(self) -> None:
        self._on_written(tuple(map(tuple, self.errors)))


class OffsetPositions:
    """Answers coordinators' AskOffsets."""

    def __init__(self, hosted: HostedPartitions) -> None:
        self._hosted = hosted

    async def positions(
        self, committed: Sequence[tuple[TopicPartition, int]]
    ) -> tuple[PartitionOffsets, ...]:
        """Returns the offsets of each partition, in the order of `committed`."""
        told: list[PartitionOffsets] = []
        for start in range(0, len(committed), POSITIONS_AT_A_TIME):
            found = [self._find(*one) for one in committed[start : start + POSITIONS_AT_A_TIME]]
            unread = [(place, offsets.last_stable_offset) for offsets, place in found if place is not None]
            if unread:
                try:
                    timestamps = iter(await asyncio.to_thread(_timestamps, unread))
                finally:
                    for place, _ in unread:
                        place.release()
                told += [
                    offsets if place is None else offsets._replace(first_unread_timestamp_ms=next(timestamps))
                    for offsets, place in found
                ]
            else:
                told += [offsets for offsets, _ in found]
                await asyncio.sleep(0)
        return tuple(told)

    def _find(
        self, partition: TopicPartition, committed_offset: int
    ) -> tuple[PartitionOffsets, FileRange | None]:
        """Returns the partition's offsets, and the place of the first unread batch if there is one."""
        try:
            replica = self._hosted.leader_replica(*partition)
        except KafkaError:
            return NOT_LED_HERE, None
        core = replica.core
        retention_ms = replica.settings.retention_ms if replica.settings.is_deleted else UNKNOWN
        offsets = PartitionOffsets(
            core.log_start_offset, core.high_watermark, core.last_stable_offset, UNKNOWN, retention_ms
        )
        first_unread = max(committed_offset, core.log_start_offset)
        if committed_offset < 0 or first_unread >= core.high_watermark:
            return offsets, None
        try:
            return offsets, replica.log.read(first_unread, 1, core.high_watermark, at_least_one_batch=True)
        except KafkaError:
            return offsets, None


def _timestamps(places: list[tuple[FileRange, int]]) -> list[int]:
    """Returns the timestamp of the first record of each batch, from its header. Runs in a thread, because it
    may wait for the disk. A marker without readable records behind it does not count as an unread record,
    although consumers stop before it.
    """
    timestamps = []
    for place, last_stable_offset in places:
        try:
            header = parse_header(os.pread(place.fileno(), BATCH_HEADER_BYTES, place.position))
            if header.is_control and header.last_offset + 1 >= last_stable_offset:
                timestamps.append(UNKNOWN)
                continue
            first_ms = header.max_timestamp if header.is_log_append_time else header.base_timestamp
            timestamps.append(first_ms if first_ms > 0 else UNKNOWN)
        except (OSError, ValueError):
            timestamps.append(UNKNOWN)
    return timestamps
