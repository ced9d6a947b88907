"""Batches of idempotent producers that were refused for a reason that passes, and those sent after them.

A client has several batches under way. The first can come while this broker does not lead yet, the second a
moment later when it does. The second then follows a gap; told OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka takes
a new producer epoch and sends again what may be stored already: a duplicate. The gap is of our own making, so
the second is refused for the same reason as the first, and both come again in order.

Nothing is accepted here that would be refused otherwise. Kafka does not do this.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.model.instants import WallMs
from tidelog.records.batch import BatchHeader

MAX_PRODUCERS: Final = 1_000
MEMORY_MS: Final = 5_000
"""What was under way when the refusal was sent has come by then."""
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_HALF_OF_ALL_SEQUENCES: Final = 1 << 30


class _Refusal(NamedTuple):
    producer_epoch: int
    base_sequence: int
    error: ErrorCode
    until_ms: int


class RefusedBatches:
    """Of one partition; one refusal a producer, the earliest of those that it has to send again."""

    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals: OrderedDict[int, _Refusal] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refusals)

    def refused(self, header: BatchHeader, error: ErrorCode, now_ms: WallMs) -> None:
        """This batch was refused and will come again."""
        if self._standing(header, now_ms) is None:
            refusal = _Refusal(header.producer_epoch, header.base_sequence, error, now_ms + MEMORY_MS)
            self._refusals[header.producer_id] = refusal
            self._refusals.move_to_end(header.producer_id)
            if len(self._refusals) > MAX_PRODUCERS:
                self._refusals.popitem(last=False)

    def reason_to_refuse(self, header: BatchHeader, now_ms: WallMs) -> ErrorCode | None:
        """That of an earlier batch of this producer, if that one has not come again yet."""
        refusal = self._refusals.get(header.producer_id)
        if refusal is None:
            return None
        standing = self._standing(header, now_ms)
        if standing is not None:
            return standing.error
        if header.base_sequence == refusal.base_sequence or header.producer_epoch != refusal.producer_epoch:
            # Here it is again, or the producer has begun anew. (It may have been forgotten just now.)
            self._refusals.pop(header.producer_id, None)
        return None

    def _standing(self, header: BatchHeader, now_ms: WallMs) -> _Refusal | None:
        """The producer's refusal, if `header` is of a later batch than that."""
        refusal = self._refusals.get(header.producer_id)
        if refusal is None or refusal.producer_epoch != header.producer_epoch:
            return None
        if now_ms > refusal.until_ms:
            del self._refusals[header.producer_id]
            return None
        ahead = (header.base_sequence - refusal.base_sequence) & _SEQUENCE_MASK
        return refusal if 0 < ahead < _HALF_OF_ALL_SEQUENCES else None
