"""The log of a shard: what it appends, what waits until that is replicated, its claim, and the replay.

The partition is compacted, so only the last record of a key counts. Records that belong to no transaction are
therefore collected, and of each key only the last collected record is replayed. This makes the load of a
shard several times faster if the cleaner has not run for long and the shard has a million commits of few
positions.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

import structlog

from tidelog.group_coordinator.shard_core import (
    CoordinatorRecord,
    EndMarker,
    Producer,
    ReplayedRecord,
    ShardCore,
    UnknownRecordError,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTIONAL_BIT,
    BatchHeader,
    EndTransactionMarker,
    iterate_headers,
    wrap_records,
)
from tidelog.records.builder import build_end_transaction_batch
from tidelog.records.record import end_transaction_marker, records_of, scan_records
from tidelog.records.varint import append_varint
from tidelog.rpc.coordinator_session import AnswerRequest, AppendToShard, DetachShard, Hold, SessionLine
from tidelog.wire.codec import Encoder

MAX_BATCH_BYTES: Final = 256 * 1024
"""The size at which a batch ends. One larger record is a batch of its own. The brokers do not compare such a
batch with max.message.bytes: its limits are segment.bytes and MAX_DECISION_BYTES.
"""
MAX_APPEND_BYTES: Final = 4 * 1024 * 1024
"""The size of one append, unless a single batch is larger. The decisions of a turn are sent at this size."""
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


def claim_record(claim: ShardClaim) -> CoordinatorRecord:
    value = _CLAIM_VALUE.pack(_CLAIM_VERSION, claim.shard_epoch, claim.coordinator_id)
    return CoordinatorRecord(CLAIM_KEY, value)


def decode_claim(value: bytes | None) -> ShardClaim | None:
    """Returns None if the value is not a claim. A later version's value may be longer."""
    if value is None or len(value) < _CLAIM_VALUE.size:
        return None
    _, shard_epoch, coordinator_id = _CLAIM_VALUE.unpack_from(value)
    return ShardClaim(shard_epoch, coordinator_id)


def _varint(number: int) -> bytes:
    output = bytearray()
    append_varint(output, number)
    return bytes(output)


_SMALL: Final = tuple(_varint(number) for number in range(4096))
_NULL: Final = _varint(-1)


def _small_varint(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < 4096 else _varint(number)


def size_of_records(records: Iterable[CoordinatorRecord]) -> int:
    """Returns the bytes of the keys and values of records."""
    return sum(len(key) + len(value or b"") for key, value in records)


class BatchWriter:
    """Packs the records of decisions into batches.

    One turn of the loop can bring hundreds of decisions, so their records share a batch. Transactional
    records and markers get batches of their own. All records of a batch have the timestamp of the first one.
    Base offsets start at 0; the partition's leader assigns the real ones.
    """

    __slots__ = (
        "_batches",
        "_count",
        "_ended_bytes",
        "_payload",
        "_producer",
        "_timestamp_ms",
        "count",
    )

    def __init__(self) -> None:
        self.count = 0
        """The number of records and markers since the last `take`; each needs one offset."""
        self._batches: list[tuple[int, bytearray]] = []
        """The ended batches with the numbers of their records."""
        self._ended_bytes = 0
        self._payload = bytearray()
        self._count = 0
        self._timestamp_ms = WallMs(-1)
        self._producer: Producer | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes since the last `take`, without the header of the last batch."""
        return self._ended_bytes + len(self._payload)

    def add(self, records: list[CoordinatorRecord], producer: Producer | None, now_ms: WallMs) -> None:
        """Adds records in this order. `producer` is the producer of a transaction, if they belong to one."""
        if producer is not None or self._producer is not None or len(self._payload) > MAX_BATCH_BYTES:
            self._end_batch()
            self._producer = producer
        if not self._count:
            self._timestamp_ms = now_ms
        count, payload = self._count, self._payload
        for key, value in records:
            if len(payload) > MAX_BATCH_BYTES:
                self._count = count
                self._end_batch()
                self._producer, self._timestamp_ms = producer, now_ms
                count, payload = 0, self._payload
            # attributes, timestamp delta (always 0), offset delta, key, value, no headers
            head = b"\0\0" + _small_varint(count) + _small_varint(len(key)) + key
            if value is None:
                body = head + _NULL + b"\0"
            else:
                body = head + _small_varint(len(value)) + value + b"\0"
            payload += _small_varint(len(body))
            payload += body
            count += 1
        self._count = count
        self.count += len(records)

    def add_marker(self, marker: EndMarker, now_ms: WallMs) -> None:
        self._end_batch()
        self._keep(
            1,
            build_end_transaction_batch(
                EndTransactionMarker(marker.is_commit, marker.coordinator_epoch),
                base_offset=0,
                timestamp_ms=now_ms,
                producer_id=marker.producer.producer_id,
                producer_epoch=marker.producer.producer_epoch,
            ),
        )
        self.count += 1

    def take(self) -> list[tuple[int, bytes]]:
        """Returns the batches of everything that was added since the last call, in appends of at most
        MAX_APPEND_BYTES, with the number of the records of each. A larger batch is an append of its own.
        """
        self._end_batch()
        batches, self._batches, self._ended_bytes, self.count = self._batches, [], 0, 0
        if len(batches) == 1:
            count, only = batches[0]
            return [(count, bytes(only))]
        appends: list[tuple[int, bytes]] = []
        count, size_bytes, parts = 0, 0, list[bytearray]()
        for record_count, batch in batches:
            if parts and size_bytes + len(batch) > MAX_APPEND_BYTES:
                appends.append((count, b"".join(parts)))
                count, size_bytes, parts = 0, 0, []
            parts.append(batch)
            count += record_count
            size_bytes += len(batch)
        if parts:
            appends.append((count, b"".join(parts)))
        return appends

    def _keep(self, count: int, batch: bytearray) -> None:
        self._batches.append((count, batch))
        self._ended_bytes += len(batch)

    def _end_batch(self) -> None:
        if self._count:
            producer = self._producer
            batch = wrap_records(
                (self._payload,),
                self._count,
                base_timestamp=self._timestamp_ms,
                max_timestamp=self._timestamp_ms,
                attributes=0 if producer is None else TRANSACTIONAL_BIT,
                producer_id=NO_PRODUCER_ID if producer is None else producer.producer_id,
                producer_epoch=NO_PRODUCER_EPOCH if producer is None else producer.producer_epoch,
            )
            self._keep(self._count, batch)
            self._payload = bytearray()
            self._count = 0
        self._producer = None


class ReplyTo:
    """The `reply_to` of a request: the session of the request, and the encoder and API of its response."""

    __slots__ = ("api_key", "api_version", "encoder", "line", "request_id")

    def __init__(
        self, line: SessionLine, request_id: int, encoder: Encoder, api_key: int, api_version: int
    ) -> None:
        self.line = line
        self.request_id = request_id
        self.encoder = encoder
        self.api_key = api_key
        self.api_version = api_version

    def refuse(self, error: ErrorCode) -> None:
        self.line.send(AnswerRequest(self.request_id, None, error))


def _nothing() -> None:
    return


class _Held(NamedTuple):
    """An answer or effect that the shard itself holds until the high watermark reaches `offset`."""

    offset: int
    release: Callable[[], None]
    refuse: Callable[[], None] = _nothing


class ShardLog:
    """The end of the log of an attached shard: the records that it appends, and the answers and effects that
    wait until these are replicated. `line` is None, and `attachment` is -1, while the shard is not attached.
    """

    def __init__(self) -> None:
        self.line: SessionLine | None = None
        self.attachment = -1
        self.leader_epoch = -1
        self.end_offset = -1
        """The log end with the records that are not sent yet."""
        self.high_watermark = -1
        self._writer = BatchWriter()
        self._answers: list[tuple[SessionLine, AnswerRequest]] = []
        self._held: deque[_Held] = deque()

    @property
    def is_replicated(self) -> bool:
        """Whether everything that the shard has appended is replicated."""
        return self.high_watermark >= self.end_offset

    def attach(self, line: SessionLine, attachment: int) -> None:
        self.line, self.attachment, self.leader_epoch = line, attachment, -1

    def detach(self, *, broker_knows: bool) -> None:
        """Refuses what waits, and gives up what is not sent."""
        line, self.line = self.line, None
        for to, answer in self._answers:  # decided but never appended
            to.send(AnswerRequest(answer.request_id, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        self._answers.clear()
        held, self._held = self._held, deque()
        for waiting in held:
            waiting.refuse()
        self._writer = BatchWriter()
        if line is not None and not broker_knows:
            line.send(DetachShard(self.attachment))
        self.attachment = -1

    def append(
        self,
        records: list[CoordinatorRecord],
        now_ms: WallMs,
        producer: Producer | None = None,
        marker: EndMarker | None = None,
    ) -> bool:
        """Appends records, of a transaction if there is a producer, and then a marker if there is one.

        Returns whether these are the first since the last `flush`.
        """
        writer = self._writer
        before = writer.count
        if records:
            writer.add(records, producer, now_ms)
        if marker is not None:
            writer.add_marker(marker, now_ms)
        self.end_offset += writer.count - before
        if writer.size_bytes > MAX_APPEND_BYTES:
            self.flush()
        return not before

    def flush(self) -> None:
        """Sends what is appended: usually one append, then the answers that wait for it."""
        line = self.line
        writer = self._writer
        if writer.count and line is not None:
            offset = self.end_offset - writer.count
            for count, batches in writer.take():
                line.send(AppendToShard(self.attachment, self.leader_epoch, offset, batches))
                offset += count
        if self._answers:
            answers, self._answers = self._answers, []
            for to, answer in answers:
                to.send(answer)

    def answer(self, asker: ReplyTo, body: bytes) -> None:
        """Sends an answer that depends on everything that the shard has appended so far."""
        line, request_id, offset = asker.line, asker.request_id, self.end_offset
        if self.high_watermark >= offset:
            line.send(AnswerRequest(request_id, body))
        elif line is not self.line:  # a broker that does not know this partition's high watermark
            answer = AnswerRequest(request_id, body)
            refuse = partial(asker.refuse, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            self._held.append(_Held(offset, partial(line.send, answer), refuse))
        else:
            answer = AnswerRequest(request_id, body, ErrorCode.NONE, Hold(self.attachment, offset))
            if self._writer.count:
                self._answers.append((line, answer))
            else:
                line.send(answer)

    def when_replicated(self, begin: Callable[[], None]) -> None:
        """Calls `begin` when everything that the shard has appended so far is replicated."""
        if self.is_replicated:
            begin()
        else:
            self._held.append(_Held(self.end_offset, begin))

    def release_replicated(self) -> None:
        """Sends the answers and begins the effects that have waited for the present high watermark."""
        held = self._held
        while held and held[0].offset <= self.high_watermark:
            held.popleft().release()


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
