"""A shard's log, batch by batch, into a new core.

The partition is compacted, so what a later record of the same key replaces may as well be missing: plain
records wait until some have gathered, and of those of one key only the last is replayed. A shard that was not
cleaned for long, with a million commits of the same positions, loads several times faster so.
"""

from __future__ import annotations

from typing import Final

import structlog

from tidelog.group_coordinator.shard_core import Producer, ReplayedRecord, ShardCore, UnknownRecordError
from tidelog.group_coordinator.shards.claim_record import CLAIM_KEY, ShardClaim, decode_claim
from tidelog.model.coordinator_shards import ShardId
from tidelog.model.instants import WallMs
from tidelog.records.batch import BatchHeader, iterate_headers
from tidelog.records.record import end_transaction_marker, records_of, scan_records

MAX_GATHERED: Final = 10_000
"""Keys; as many are replayed at a time without the loop standing still for long."""

_log = structlog.get_logger(__name__)


class Replay:
    """`read` for each piece of the log, `finish`; then `newest_claim` has the highest shard epoch of all."""

    __slots__ = ("_core", "_gathered", "_shard", "newest_claim", "record_count", "skipped_count")

    def __init__(self, shard: ShardId, core: ShardCore) -> None:
        self._shard = shard
        self._core = core
        self._gathered: dict[bytes, tuple[bytes | None, int, int]] = {}
        """Key -> value, timestamp, offset; in the order of the offsets."""
        self.newest_claim: ShardClaim | None = None
        self.record_count = 0
        """Of the log, replaced ones too."""
        self.skipped_count = 0

    def read(self, batches: bytes, from_offset: int) -> None:
        """Whole batches; what lies before `from_offset` of the first is left out. Raises ValueError for
        bytes that are none.
        """
        for position, header in iterate_headers(batches):
            if header.is_control:
                self._marker(batches, position, header)
            else:
                self._records(batches, position, header, from_offset)

    def finish(self) -> None:
        """Replay what has gathered."""
        gathered, self._gathered = self._gathered, {}
        for key, (value, timestamp_ms, offset) in gathered.items():
            self._replay(ReplayedRecord(key, value, WallMs(timestamp_ms), None), offset)

    def _marker(self, batches: bytes, position: int, header: BatchHeader) -> None:
        self.finish()
        marker = end_transaction_marker(batches, position)
        if marker is not None:
            self._core.replay_marker(Producer(header.producer_id, header.producer_epoch), marker.is_commit)

    def _records(self, batches: bytes, position: int, header: BatchHeader, from_offset: int) -> None:
        producer = None
        if header.is_transactional:
            self.finish()
            producer = Producer(header.producer_id, header.producer_epoch)
        gathered = self._gathered
        body = records_of(batches, header, position)
        base_offset, base_timestamp = header.base_offset, header.base_timestamp
        for span in scan_records(body, header.record_count):
            offset = base_offset + span.offset_delta
            if offset < from_offset or span.key_length < 0:
                continue
            key = bytes(body[span.key_start : span.key_start + span.key_length])
            value = None
            if span.value_length >= 0:
                value = bytes(body[span.value_start : span.value_start + span.value_length])
            if key == CLAIM_KEY:
                self._claim(decode_claim(value))
                continue
            self.record_count += 1
            if producer is not None:
                timestamp_ms = WallMs(base_timestamp + span.timestamp_delta)
                record = ReplayedRecord(key, value, timestamp_ms, producer)
                self._replay(record, offset)
                continue
            gathered.pop(key, None)
            gathered[key] = value, base_timestamp + span.timestamp_delta, offset
        if len(gathered) > MAX_GATHERED:
            self.finish()

    def _replay(self, record: ReplayedRecord, offset: int) -> None:
        try:
            self._core.replay(record, offset)
        except UnknownRecordError as error:
            self.skipped_count += 1
            _log.warning(
                "a record of a shard is skipped", shard=str(self._shard), offset=offset, reason=str(error)
            )

    def _claim(self, claim: ShardClaim | None) -> None:
        newest = self.newest_claim
        if claim is not None and (newest is None or claim.shard_epoch >= newest.shard_epoch):
            self.newest_claim = claim
