"""Loads a shard: replays its log, batch by batch, into a new core.

The partition is compacted, so only the last record of a key counts. Records that belong to no transaction are
therefore collected, and of each key only the last collected record is replayed. This makes the load of a
shard several times faster if the cleaner has not run for long and the shard has a million commits of few
positions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import structlog

from tidelog.group_coordinator.shard_core import Producer, ReplayedRecord, ShardCore, UnknownRecordError
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.instants import WallMs
from tidelog.records.batch import BatchHeader, iterate_headers
from tidelog.records.record import end_transaction_marker, records_of, scan_records

MAX_COLLECTED_KEYS: Final = 10_000

CLAIM_KEY: Final = struct.pack(">h", 29801) + b"claim"
"""The key of claim records: `29801 int16, "claim"`.

Kafka's tools skip keys of unknown types. All claims have the same key, so compaction keeps the last one.
"""
_CLAIM_VALUE: Final = struct.Struct(">hii")
_CLAIM_VERSION: Final = 0

_log = structlog.get_logger(__name__)


class ShardClaim(NamedTuple):
    """The record that a new owner appends to the shard's partition before it serves.

    Its value is `0 int16, shard_epoch int32, coordinator_id int32`.
    """

    shard_epoch: int
    coordinator_id: int


def encode_claim(claim: ShardClaim) -> bytes:
    """Returns the value of a claim record."""
    return _CLAIM_VALUE.pack(_CLAIM_VERSION, claim.shard_epoch, claim.coordinator_id)


def decode_claim(value: bytes | None) -> ShardClaim | None:
    """Returns None if the value is not a claim. A later version's value may be longer."""
    if value is None or len(value) < _CLAIM_VALUE.size:
        return None
    _, shard_epoch, coordinator_id = _CLAIM_VALUE.unpack_from(value)
    return ShardClaim(shard_epoch, coordinator_id)


class Replay:
    """The replay of one shard's log.

    Run `read` for each piece of the log and then `finish`. Both yield after each record, so that the caller
    can interrupt them. `newest_claim` is the claim with the highest shard epoch that was read.
    """

    __slots__ = (
        "_collected",
        "_core",
        "_first_skipped",
        "_needs_every_record",
        "_shard",
        "newest_claim",
        "record_count",
        "skipped_count",
    )

    def __init__(self, shard: ShardId, core: ShardCore) -> None:
        self._shard = shard
        self._needs_every_record = shard.kind is ShardKind.SHARE
        """Whether a record may change what an earlier record of the same key says."""
        self._core = core
        self._collected: dict[bytes, tuple[bytes | None, int, int]] = {}
        """Key -> value, timestamp, offset; in the order of the offsets."""
        self.newest_claim: ShardClaim | None = None
        self.record_count = 0
        """The number of records in the log, including replaced records and without claims."""
        self.skipped_count = 0
        self._first_skipped: tuple[int, str] | None = None
        """Offset and reason."""

    def read(self, batches: bytes, from_offset: int) -> Iterator[None]:
        """Reads whole batches and ignores records below `from_offset`.

        Raises ValueError if the bytes are not batches.
        """
        for position, header in iterate_headers(batches):
            if header.is_control:
                yield from self._marker(batches, position, header)
            else:
                yield from self._records(batches, position, header, from_offset)

    def finish(self) -> Iterator[None]:
        """Replays what is left, and logs how many records of the whole log were skipped.

        The log of a shard of share states normally begins with updates whose snapshot was trimmed, possibly
        with many of them, so a load logs only the first one.
        """
        yield from self._replay_collected()
        if self._first_skipped is not None:
            offset, reason = self._first_skipped
            _log.warning(
                "records of a shard are skipped",
                shard=str(self._shard),
                records=self.skipped_count,
                first_offset=offset,
                first_reason=reason,
            )

    def _replay_collected(self) -> Iterator[None]:
        collected, self._collected = self._collected, {}
        for key, (value, timestamp_ms, offset) in collected.items():
            self._replay(ReplayedRecord(key, value, WallMs(timestamp_ms), None), offset)
            yield

    def _marker(self, batches: bytes, position: int, header: BatchHeader) -> Iterator[None]:
        yield from self._replay_collected()
        marker = end_transaction_marker(batches, position)
        if marker is not None:
            self._core.replay_marker(Producer(header.producer_id, header.producer_epoch), marker.is_commit)

    def _records(
        self, batches: bytes, position: int, header: BatchHeader, from_offset: int
    ) -> Iterator[None]:
        producer = None
        if header.is_transactional:
            yield from self._replay_collected()
            producer = Producer(header.producer_id, header.producer_epoch)
        collected = self._collected
        body = records_of(batches, header, position)
        base_offset, base_timestamp = header.base_offset, header.base_timestamp
        for span in scan_records(body, header.record_count):
            yield
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
            if producer is not None or self._needs_every_record:
                timestamp_ms = WallMs(base_timestamp + span.timestamp_delta)
                record = ReplayedRecord(key, value, timestamp_ms, producer)
                self._replay(record, offset)
                continue
            collected.pop(key, None)
            collected[key] = value, base_timestamp + span.timestamp_delta, offset
        if len(collected) > MAX_COLLECTED_KEYS:
            yield from self._replay_collected()

    def _replay(self, record: ReplayedRecord, offset: int) -> None:
        try:
            self._core.replay(record, offset)
        except UnknownRecordError as error:
            self.skipped_count += 1
            if self._first_skipped is None:
                self._first_skipped = offset, str(error)

    def _claim(self, claim: ShardClaim | None) -> None:
        newest = self.newest_claim
        if claim is not None and (newest is None or claim.shard_epoch >= newest.shard_epoch):
            self.newest_claim = claim
