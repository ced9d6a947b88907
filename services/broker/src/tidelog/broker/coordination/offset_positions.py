"""How far partitions that this broker leads are ahead of committed offsets: what lag is made of (SPEC E8)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BATCH_HEADER_BYTES, parse_header
from tidelog.rpc.coordinator_session import PartitionOffsets

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.log.file_range import FileRange

POSITIONS_AT_A_TIME: Final = 200
"""Looked up in one turn of the loop."""
NOT_LED_HERE: Final = PartitionOffsets(-1, -1, -1, -1)
UNKNOWN: Final = -1


class OffsetPositions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def positions(
        self, committed: Sequence[tuple[TopicPartition, int]]
    ) -> tuple[PartitionOffsets, ...]:
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
        """And where the first unread batch lies, if there is one."""
        try:
            replica = self._broker.leader_replica(*partition)
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
    """Of the first record of each batch, from its header; in a thread, as the disk may be needed. A marker
    with nothing readable behind it is no unread record, though consumers stop before it.
    """
    timestamps = []
    for place, last_stable_offset in places:
        try:
            header = parse_header(os.pread(place.fileno(), BATCH_HEADER_BYTES, place.position))
            if header.is_control and header.last_offset + 1 >= last_stable_offset:
                timestamps.append(UNKNOWN)
                continue
            timestamps.append(header.max_timestamp if header.is_log_append_time else header.base_timestamp)
        except (OSError, ValueError):
            timestamps.append(UNKNOWN)
    return timestamps
