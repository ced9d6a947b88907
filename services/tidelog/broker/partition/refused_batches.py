"""Remembers batches of idempotent producers that were refused for a temporary reason.

A client has several batches in flight. The first can arrive while this broker does not lead yet, and the
second when it leads. Then the second follows a gap. On OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka takes a new
producer epoch and sends batches again that may be stored already, which makes duplicates. This broker caused
the gap, so it refuses the second batch with the error of the first, and the client sends both again in order
(docs/adr/0013). This refuses more batches than Kafka does, and accepts no others.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import BatchHeader

MAX_PRODUCERS: Final = 1_000
MEMORY_MS: Final = 5_000
"""Within this time, all batches arrive that were in flight when the refusal was sent."""
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_HALF_OF_ALL_SEQUENCES: Final = 1 << 30


class _Refusal(NamedTuple):
    producer_epoch: int
    base_sequence: int
    error: ErrorCode
    until_ms: int


class RefusedBatches:
    """The refusals of one partition.

    Each producer has at most one, that of the earliest batch that it has to send again.
    """

    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals: OrderedDict[int, _Refusal] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refusals)

    def refused(self, header: BatchHeader, error: ErrorCode, now_ms: WallMs) -> None:
        """Records the refusal of a batch that the client will send again."""
        if self._refusal_before(header, now_ms) is None:
            refusal = _Refusal(header.producer_epoch, header.base_sequence, error, now_ms + MEMORY_MS)
            self._refusals[header.producer_id] = refusal
            self._refusals.move_to_end(header.producer_id)
            if len(self._refusals) > MAX_PRODUCERS:
                self._refusals.popitem(last=False)

    def reason_to_refuse(self, header: BatchHeader, now_ms: WallMs) -> ErrorCode | None:
        """Returns the error of an earlier batch of this producer that has not been sent again yet."""
        refusal = self._refusals.get(header.producer_id)
        if refusal is None:
            return None
        earlier = self._refusal_before(header, now_ms)
        if earlier is not None:
            return earlier.error
        if header.base_sequence == refusal.base_sequence or header.producer_epoch != refusal.producer_epoch:
            # The batch has been sent again, or the producer has a new epoch. (`_refusal_before` may have
            # removed the refusal already.)
            self._refusals.pop(header.producer_id, None)
        return None

    def _refusal_before(self, header: BatchHeader, now_ms: WallMs) -> _Refusal | None:
        """Returns the producer's refusal if `header` is of a batch after the refused one."""
        refusal = self._refusals.get(header.producer_id)
        if refusal is None or refusal.producer_epoch != header.producer_epoch:
            return None
        if not 0 <= refusal.until_ms - now_ms <= MEMORY_MS:  # it is over, or the clock was set back
            del self._refusals[header.producer_id]
            return None
        ahead = (header.base_sequence - refusal.base_sequence) & _SEQUENCE_MASK
        return refusal if 0 < ahead < _HALF_OF_ALL_SEQUENCES else None
