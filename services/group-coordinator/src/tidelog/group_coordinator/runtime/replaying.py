"""A shard's log, batch by batch, into a new core."""

from __future__ import annotations

import structlog
from tidelog.group_coordinator.runtime.claim_record import CLAIM_KEY, ShardClaim, decode_claim
from tidelog.group_coordinator.shard_core import Producer, ReplayedRecord, ShardCore, UnknownRecordError
from tidelog.model.coordinator_shards import ShardId
from tidelog.records.batch import BatchHeader, iterate_headers
from tidelog.records.record import end_transaction_marker, iterate_records

_log = structlog.get_logger(__name__)


class Replay:
    """`read` for each piece of the log; then `newest_claim` is the one with the highest shard epoch."""

    __slots__ = ("_core", "_shard", "newest_claim", "record_count", "skipped_count")

    def __init__(self, shard: ShardId, core: ShardCore) -> None:
        self._shard = shard
        self._core = core
        self.newest_claim: ShardClaim | None = None
        self.record_count = 0
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

    def _marker(self, batches: bytes, position: int, header: BatchHeader) -> None:
        marker = end_transaction_marker(batches, position)
        if marker is not None:
            self._core.replay_marker(Producer(header.producer_id, header.producer_epoch), marker.is_commit)

    def _records(self, batches: bytes, position: int, header: BatchHeader, from_offset: int) -> None:
        producer = Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None
        core = self._core
        for record in iterate_records(batches, position):
            offset, timestamp_ms, key, value, _ = record
            if offset < from_offset or key is None:
                continue
            if key == CLAIM_KEY:
                self._claim(decode_claim(value))
                continue
            self.record_count += 1
            try:
                core.replay(ReplayedRecord(key, value, timestamp_ms, producer), offset)
            except UnknownRecordError as error:
                self.skipped_count += 1
                _log.warning(
                    "a record of a shard is skipped", shard=str(self._shard), offset=offset, reason=str(error)
                )

    def _claim(self, claim: ShardClaim | None) -> None:
        newest = self.newest_claim
        if claim is not None and (newest is None or claim.shard_epoch >= newest.shard_epoch):
            self.newest_claim = claim
