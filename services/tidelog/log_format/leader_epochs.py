"""The leader epochs of a log and the offsets at which they begin.

Followers truncate by them, and the leader checks fetches against them. Sources: KIP-101, KIP-279, KIP-320;
Kafka's `LeaderEpochFileCache` and `leader-epoch-checkpoint` file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.log_format.directory import CorruptFileError

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1

_CHECKPOINT_VERSION = 0


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


class EpochEndOffset(NamedTuple):
    """The answer to OffsetsForLeaderEpoch: (-1, -1) if the epoch is unknown."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """Entries (epoch, start offset), both strictly increasing: one per epoch with batches in this log."""

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
        """Returns an independent copy."""
        return LeaderEpochs(list(self))

    @property
    def latest_epoch(self) -> int:
        """The epoch of the newest batches, -1 for an empty log."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    @property
    def latest(self) -> EpochEntry | None:
        return EpochEntry(self._epochs[-1], self._start_offsets[-1]) if self._epochs else None

    @property
    def earliest(self) -> EpochEntry | None:
        return EpochEntry(self._epochs[0], self._start_offsets[0]) if self._epochs else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Adds an epoch whose batches begin at `start_offset`. Returns True if the checkpoint has to be
        written.

        Removes entries that contradict it (of the same or a later epoch, or at the same or a later offset),
        as Kafka does: from `start_offset` on, the log will have batches of the new epoch.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} and offset {start_offset} must not be negative")
        epochs, start_offsets = self._epochs, self._start_offsets
        if epochs and epochs[-1] == epoch and start_offset >= start_offsets[-1]:
            return False
        kept = min(bisect_left(epochs, epoch), bisect_left(start_offsets, start_offset))
        del epochs[kept:], start_offsets[kept:]
        epochs.append(epoch)
        start_offsets.append(start_offset)
        return True

    def note_batch(self, epoch: int, offset: int) -> None:
        """Takes a batch into account that recovery found at `offset`.

        If an entry contradicts the batch, the batch is right: the entry is of a leader whose epoch has no
        batches in this log, and a later checkpoint was lost. A batch that lies before an entry contradicts
        nothing: a deletion of records has left it in its segment, without the entry of its epoch.
        """
        if epoch < 0 or self.epoch_for_offset(offset) == epoch:
            return
        epochs, start_offsets = self._epochs, self._start_offsets
        after = bisect_right(start_offsets, offset)
        if after < len(epochs) and epochs[after] >= epoch and (not after or epochs[after - 1] < epoch):
            if epochs[after] == epoch:
                start_offsets[after] = offset
            else:
                epochs.insert(after, epoch)
                start_offsets.insert(after, offset)
            return
        kept = bisect_right(epochs, epoch)
        del epochs[kept:], start_offsets[kept:]
        if self.epoch_for_offset(offset) != epoch:
            self.assign(epoch, offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Returns where the largest epoch not above `epoch` ends; the newest epoch ends at `log_end_offset`.

        The result is (-1, -1) for an epoch above all known ones, because the requesting log may have more
        batches than this one. An epoch below all known ones ends where the earliest begins, and the result
        contains the requested epoch (KIP-279).
        """
        epochs = self._epochs
        if not epochs or epoch < 0 or epoch > epochs[-1]:
            return EpochEndOffset(UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET)
        if epoch == epochs[-1]:
            return EpochEndOffset(epoch, log_end_offset)
        higher = bisect_right(epochs, epoch)
        return EpochEndOffset(epochs[higher - 1] if higher else epoch, self._start_offsets[higher])

    def epoch_for_offset(self, offset: int) -> int:
        """Returns the epoch of the batch at `offset`, -1 if `offset` is below the first entry."""
        found = bisect_right(self._start_offsets, offset)
        return self._epochs[found - 1] if found else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """Removes the epochs that begin at `end_offset` or later. Returns True if there were any."""
        kept = bisect_left(self._start_offsets, end_offset)
        changed = kept < len(self._epochs)
        del self._epochs[kept:], self._start_offsets[kept:]
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Lets the log begin at `start_offset`: removes earlier epochs, and the one in effect there begins
        there.

        Returns True if an entry changed.
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
        """Returns the text of Kafka's `leader-epoch-checkpoint`: version, number of entries, `epoch offset`
        lines.
        """
        lines = [str(_CHECKPOINT_VERSION), str(len(self._epochs))]
        lines += [
            f"{epoch} {offset}" for epoch, offset in zip(self._epochs, self._start_offsets, strict=True)
        ]
        return ("\n".join(lines) + "\n").encode("ascii")

    @classmethod
    def decode(cls, text: bytes) -> LeaderEpochs:
        """Returns the epochs of a checkpoint. Raises CorruptFileError for text that Kafka would not
        accept.
        """
        lines = text.decode("ascii", errors="replace").split("\n")
        while lines and not lines[-1].strip():
            lines.pop()
        try:
            version, count = (int(line) for line in lines[:2])
            pairs = [tuple(map(int, line.split())) for line in lines[2:]]
            entries = [EpochEntry(epoch, offset) for epoch, offset in pairs]
        except ValueError as error:
            raise CorruptFileError(f"leader epochs: {error}") from error
        if version != _CHECKPOINT_VERSION:
            raise CorruptFileError(f"leader epochs: unknown version {version}")
        if count != len(entries):
            raise CorruptFileError(f"leader epochs: {count} entries announced, {len(entries)} found")
        if any(epoch < 0 or offset < 0 for epoch, offset in entries):
            raise CorruptFileError("leader epochs: an entry has a negative number")
        return cls(entries)
