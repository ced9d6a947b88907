"""The guards of transactional batches: what the coordinator has confirmed about them.

A late batch, which arrives after its transaction has ended, would open a transaction that nothing ends. So
the broker asks the coordinator before the first batch of a transaction. The batch is appended only if its
*guard*, which identifies the question, is still valid. Each transactional batch of the producer and the
marker of its transaction make the guard invalid. Sources: KIP-890; Kafka's `VerificationStateEntry`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import BatchHeader

NO_GUARD: Final = 0
"""The coordinator was not asked."""
UNGUARDED: Final = -1
"""Verification is switched off (`transaction.partition.verification.enable`)."""
NO_TRANSACTIONAL_ID: Final = -2
"""The request names no transactional id, so it cannot contain a transaction's batches."""
MAX_QUESTIONS: Final = 10_000


class _Question:
    """A question to the coordinator whether a producer's transaction is open.

    A batch after `lowest_sequence` has to wait until the batch with that sequence has been sent again. With
    `bumps_epoch`, the producer takes a new epoch with each transaction, so a producer that is unknown here
    must begin with sequence 0.
    """

    __slots__ = ("begun_ms", "bumps_epoch", "guard", "lowest_sequence", "producer_epoch")

    def __init__(
        self, guard: int, producer_epoch: int, sequence: int, *, bumps_epoch: bool, begun_ms: int
    ) -> None:
        self.guard = guard
        self.producer_epoch = producer_epoch
        self.lowest_sequence = sequence
        self.bumps_epoch = bumps_epoch
        self.begun_ms = begun_ms


class Guards:
    """The questions about one partition that are open or answered, each identified by its guard."""

    __slots__ = ("_last_guard", "_open")

    def __init__(self) -> None:
        self._open: OrderedDict[int, _Question] = OrderedDict()
        self._last_guard = NO_GUARD

    def begin(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ms: WallMs, *, bumps_epoch: bool
    ) -> int:
        """Returns the guard of a new question, or of an earlier question that is still valid."""
        question = self._open.get(producer_id)
        if question is None:
            self._last_guard += 1
            question = _Question(
                self._last_guard, producer_epoch, sequence, bumps_epoch=bumps_epoch, begun_ms=now_ms
            )
            self._open[producer_id] = question
            if len(self._open) > MAX_QUESTIONS:
                self._open.popitem(last=False)
            return question.guard
        if producer_epoch > question.producer_epoch:
            question.producer_epoch, question.lowest_sequence = producer_epoch, sequence
        elif producer_epoch == question.producer_epoch:
            question.lowest_sequence = min(question.lowest_sequence, sequence)
        question.bumps_epoch |= bumps_epoch
        return question.guard

    def end(self, producer_id: int) -> None:
        """Makes the producer's guard invalid, because the log has a batch of its transaction."""
        self._open.pop(producer_id, None)

    def end_by_marker(self, producer_id: int, marker_epoch: int) -> None:
        """Makes the guard of the transaction that the marker ends invalid.

        If each transaction has its own epoch, the marker's epoch is one above that of its transaction. A
        marker whose epoch is not above the epoch of the question ends the previous transaction: the
        producer can begin the next transaction while the markers are still being written.
        """
        question = self._open.get(producer_id)
        if question is None or (question.bumps_epoch and marker_epoch <= question.producer_epoch):
            return
        del self._open[producer_id]

    def expire(self, begun_before_ms: int) -> None:
        for producer_id in [pid for pid, v in self._open.items() if v.begun_ms <= begun_before_ms]:
            del self._open[producer_id]

    def clear(self) -> None:
        """Makes all guards invalid, because another broker leads the partition. Producers must ask again."""
        self._open.clear()

    def check(self, header: BatchHeader, guard: int, *, is_open: bool, is_known: bool) -> None:
        """Checks a transactional batch whose sequence and epoch are valid. `is_open` states whether its
        transaction is open in this partition, and `is_known` whether the partition knows its producer.

        Raises KafkaError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED (the request has no transactional id),
        INVALID_TXN_STATE (the coordinator has not confirmed the transaction, or it has ended since then),
        OUT_OF_ORDER_SEQUENCE_NUMBER (an earlier batch must come first).
        """
        if guard == NO_TRANSACTIONAL_ID:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "The request has a transactional batch, but no transactional id",
            )
        question = self._open.get(header.producer_id)
        is_vouched_for = guard == UNGUARDED or (question is not None and guard == question.guard)
        if not is_vouched_for and not is_open:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "The batch does not belong to an open transaction")
        if question is None:
            return
        sequence = header.base_sequence
        is_first_ever = question.bumps_epoch and not is_known
        if sequence > question.lowest_sequence or (is_first_ever and sequence != 0):
            earliest = 0 if is_first_ever else question.lowest_sequence
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {header.producer_id} sent sequence {sequence} before sequence {earliest}",
            )
