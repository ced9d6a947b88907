"""Producers about to write the first batch of a transaction here, while its coordinator is being asked.

A batch that comes late, after its transaction was ended, would open one that nobody ends. So the coordinator
is asked before the first batch, and the batch goes in only if nothing has happened to its producer here since
the question was put: the *guard* taken then has to be the one that still stands. Any transactional batch of
the producer, and the marker of its transaction, takes it away. Source: KIP-890; Kafka's
`VerificationStateEntry`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tidelog.model.instants import WallMs

NO_GUARD: Final = 0
"""Nothing was asked."""
UNGUARDED: Final = -1
"""Verification is switched off (`transaction.partition.verification.enable`)."""
NOT_IN_ONE: Final = -2
"""The request names no transactional id, so that it can't hold a transaction's batches."""
MAX_VERIFICATIONS: Final = 10_000


class Verification:
    """`lowest_sequence`: a batch after it has to wait until it has come again. `bumps_epoch`: the producer
    takes a new epoch with each transaction, so one that is unknown here begins with sequence 0.
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


class Verifications:
    """Of one partition, by producer id."""

    __slots__ = ("_last_guard", "_standing")

    def __init__(self) -> None:
        self._standing: OrderedDict[int, Verification] = OrderedDict()
        self._last_guard = NO_GUARD

    def __len__(self) -> int:
        return len(self._standing)

    def get(self, producer_id: int) -> Verification | None:
        return self._standing.get(producer_id)

    def begin(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ms: WallMs, *, bumps_epoch: bool
    ) -> int:
        """The guard to come back with; that of an earlier question if it still stands."""
        standing = self._standing.get(producer_id)
        if standing is None:
            self._last_guard += 1
            standing = Verification(
                self._last_guard, producer_epoch, sequence, bumps_epoch=bumps_epoch, begun_ms=now_ms
            )
            self._standing[producer_id] = standing
            if len(self._standing) > MAX_VERIFICATIONS:
                self._standing.popitem(last=False)
            return standing.guard
        if producer_epoch > standing.producer_epoch:
            standing.producer_epoch, standing.lowest_sequence = producer_epoch, sequence
        elif producer_epoch == standing.producer_epoch:
            standing.lowest_sequence = min(standing.lowest_sequence, sequence)
        standing.bumps_epoch |= bumps_epoch
        return standing.guard

    def end(self, producer_id: int) -> None:
        """A batch came: whatever was asked before says nothing any more."""
        self._standing.pop(producer_id, None)

    def end_by_marker(self, producer_id: int, marker_epoch: int) -> None:
        """A marker came: what was asked of the transaction that it ends says nothing any more.

        With an epoch for each transaction a marker has the epoch after that of its transaction. One that is
        not above the epoch which was asked about ends the transaction before: its producer was told that this
        is decided, and goes on while the markers are still being written.
        """
        standing = self._standing.get(producer_id)
        if standing is None or (standing.bumps_epoch and marker_epoch <= standing.producer_epoch):
            return
        del self._standing[producer_id]

    def expire(self, begun_before_ms: int) -> None:
        for producer_id in [pid for pid, v in self._standing.items() if v.begun_ms <= begun_before_ms]:
            del self._standing[producer_id]

    def clear(self) -> None:
        self._standing.clear()
