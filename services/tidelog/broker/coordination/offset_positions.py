"""The offsets of the partitions that this broker leads, from which coordinators compute consumer lag."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final

from tidelog.broker.hosting.hosted_partitions import HostedPartitions
from tidelog.broker.log.segment import FileRange
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BATCH_HEADER_BYTES, parse_header
from tidelog.rpc.coordinator_session import PartitionOffsets

POSITIONS_AT_A_TIME: Final = 200
"""The number of positions that are looked up in one turn of the event loop."""
NOT_LED_HERE: Final = PartitionOffsets(-1, -1, -1, -1)
UNKNOWN: Final = -1


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
