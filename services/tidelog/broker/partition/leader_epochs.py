"""Which leader epoch began at which offset: what a follower truncates by and a fetch is checked against.

Source: Kafka's `LeaderEpochFileCache` and `leader-epoch-checkpoint` file; KIP-101, KIP-279, KIP-320.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1

_CHECKPOINT_VERSION = 0


class CorruptLeaderEpochsError(ValueError):
    """A leader-epoch-checkpoint that can't be read; the message says why."""


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


class EpochEndOffset(NamedTuple):
    """Answer to OffsetsForLeaderEpoch: (-1, -1) where nothing is known of the epoch asked for."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """Entries (epoch, start offset), both strictly rising. One entry an epoch that wrote something here."""

    __slots__ = ("_epochs", "_start_offsets")

    def __init__(self, entries: list[EpochEntry] | None = None) -> None:
        self._epochs: list[int] = []
        self._start_offsets: list[int] = []
        for epoch, start_offset in entries or ():
            self.assign(epoch, start_offset)

    def __len__(self) -> int:
        return len(self._epochs)

    def __iter__(self) -> Iterator[EpochEntry]:
        return map(EpochEntry, self._epochs, self._start_offsets)

    def copy(self) -> LeaderEpochs:
        """Returns a copy that changes independently."""
        return LeaderEpochs(list(self))

    @property
    def latest_epoch(self) -> int:
        """The epoch of the newest batches, -1 if there is none."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    @property
    def latest(self) -> EpochEntry | None:
        return EpochEntry(self._epochs[-1], self._start_offsets[-1]) if self._epochs else None

    @property
    def earliest(self) -> EpochEntry | None:
        return EpochEntry(self._epochs[0], self._start_offsets[0]) if self._epochs else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Batches from `start_offset` on carry `epoch`; True if that has to be written to the checkpoint.

        Entries that the new one contradicts (same or later epoch, same or later offset) are dropped, as Kafka
        does: the log is about to hold, from `start_offset` on, what the new epoch says.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} at offset {start_offset}: neither can be negative")
        epochs, start_offsets = self._epochs, self._start_offsets
        if epochs and epochs[-1] == epoch and start_offset >= start_offsets[-1]:
            return False
        kept = min(bisect_left(epochs, epoch), bisect_left(start_offsets, start_offset))
        del epochs[kept:], start_offsets[kept:]
        epochs.append(epoch)
        start_offsets.append(start_offset)
        return True

    def note_batch(self, epoch: int, offset: int) -> None:
        """Recovery found a batch of `epoch` at `offset`. It is right where an entry says otherwise: that was
        written by a leader of an epoch which left nothing in this log, and a later checkpoint was lost.
        """
        if epoch < 0 or self.epoch_for_offset(offset) == epoch:
            return
        kept = bisect_right(self._epochs, epoch)
        del self._epochs[kept:], self._start_offsets[kept:]
        if self.epoch_for_offset(offset) != epoch:
            self.assign(epoch, offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Where the largest epoch not above `epoch` ends; the newest ends at `log_end_offset`.

        An epoch above all that are known is undefined (-1, -1): the asker may know more than this log. An
        epoch below all that are known ends where the earliest begins, under its own number (KIP-279).
        """
        epochs = self._epochs
        if not epochs or epoch < 0 or epoch > epochs[-1]:
            return EpochEndOffset(UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET)
        if epoch == epochs[-1]:
            return EpochEndOffset(epoch, log_end_offset)
        higher = bisect_right(epochs, epoch)
        return EpochEndOffset(epochs[higher - 1] if higher else epoch, self._start_offsets[higher])

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch of the batch that holds `offset`; -1 if `offset` is before the first entry."""
        found = bisect_right(self._start_offsets, offset)
        return self._epochs[found - 1] if found else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """The log now ends at `end_offset`: epochs that begin there or later are gone. True if any was."""
        kept = bisect_left(self._start_offsets, end_offset)
        changed = kept < len(self._epochs)
        del self._epochs[kept:], self._start_offsets[kept:]
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """The log now starts at `start_offset`: the epoch in force there starts there, earlier ones are gone.

        True if an entry changed.
        """
        epochs, start_offsets = self._epochs, self._start_offsets
        dropped = bisect_right(start_offsets, start_offset) - 1
        if dropped < 0 or (dropped == 0 and start_offsets[0] == start_offset):
            return False
        del epochs[:dropped], start_offsets[:dropped]
        start_offsets[0] = start_offset
        return True

    def clear(self) -> None:
        self._epochs.clear()
        self._start_offsets.clear()

    def encode(self) -> bytes:
        """The text of Kafka's `leader-epoch-checkpoint`: version, number of entries, `epoch offset` lines."""
        lines = [str(_CHECKPOINT_VERSION), str(len(self._epochs))]
        lines += [
            f"{epoch} {offset}" for epoch, offset in zip(self._epochs, self._start_offsets, strict=True)
        ]
        return ("\n".join(lines) + "\n").encode("ascii")

    @classmethod
    def decode(cls, text: bytes) -> LeaderEpochs:
        """Read `encode`'s text. Raises CorruptLeaderEpochsError for anything Kafka would not take either."""
        lines = text.decode("ascii", errors="replace").split("\n")
        while lines and not lines[-1].strip():
            lines.pop()
        try:
            version, count = (int(line) for line in lines[:2])
            pairs = [tuple(map(int, line.split())) for line in lines[2:]]
            entries = [EpochEntry(epoch, offset) for epoch, offset in pairs]
        except ValueError as error:
            raise CorruptLeaderEpochsError(f"leader epochs: {error}") from error
        if version != _CHECKPOINT_VERSION:
            raise CorruptLeaderEpochsError(f"leader epochs: unknown version {version}")
        if count != len(entries):
            raise CorruptLeaderEpochsError(f"leader epochs: {count} entries announced, {len(entries)} found")
        if any(epoch < 0 or offset < 0 for epoch, offset in entries):
            raise CorruptLeaderEpochsError("leader epochs: an entry has a negative number")
        return cls(entries)
