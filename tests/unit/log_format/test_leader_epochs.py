"""Leader epochs against the simplest model: the epoch of each single offset of a log."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.log_format.directory import CorruptFileError
from tidelog.log_format.leader_epochs import EpochEndOffset, EpochEntry, LeaderEpochs

MAX_EPOCH = 12


class ModelLog:
    """The model of a log: `epochs[i]` is the epoch of the record at offset `start + i`."""

    def __init__(self) -> None:
        self.start = 0
        self.epochs: list[int] = []

    @property
    def end(self) -> int:
        return self.start + len(self.epochs)

    def epoch_of(self, offset: int) -> int:
        return self.epochs[offset - self.start]

    def end_offset_for(self, epoch: int) -> EpochEndOffset:
        """Computes the answer from its meaning: the end of the last record of an epoch not above `epoch`."""
        if not self.epochs or epoch < 0 or epoch > self.epochs[-1]:
            return EpochEndOffset(-1, -1)
        below = [offset for offset in range(self.start, self.end) if self.epoch_of(offset) <= epoch]
        if not below:
            return EpochEndOffset(epoch, self.start)
        return EpochEndOffset(self.epoch_of(below[-1]), below[-1] + 1)


@st.composite
def histories(draw: st.DrawFn) -> tuple[ModelLog, LeaderEpochs]:
    """Generates a log after appends, truncations and deletions at its start, and its entries."""
    log, entries, epoch = ModelLog(), LeaderEpochs(), 0
    for _ in range(draw(st.integers(0, 12))):
        match draw(st.sampled_from(["append", "append", "append", "truncate", "delete"])):
            case "append":
                epoch += draw(st.integers(0, 2))
                entries.assign(epoch, log.end)
                log.epochs += [epoch] * draw(st.integers(1, 4))
            case "truncate" if log.epochs:
                end = draw(st.integers(log.start + 1, log.end))
                entries.truncate_from_end(end)
                del log.epochs[end - log.start :]
            case "delete" if log.epochs:
                start = draw(st.integers(log.start, log.end - 1))
                entries.truncate_from_start(start)
                del log.epochs[: start - log.start]
                log.start = start
    return log, entries


@given(histories(), st.integers(-1, MAX_EPOCH * 2))
def test_end_offset_for_any_epoch(history: tuple[ModelLog, LeaderEpochs], epoch: int) -> None:
    log, entries = history
    assert entries.end_offset_for(epoch, log.end) == log.end_offset_for(epoch)


@given(histories())
def test_each_offset_has_its_epoch(history: tuple[ModelLog, LeaderEpochs]) -> None:
    log, entries = history
    assert [entries.epoch_for_offset(offset) for offset in range(log.start, log.end)] == log.epochs
    assert entries.latest_epoch == (log.epochs[-1] if log.epochs else -1)
    if log.epochs:
        assert entries.earliest == EpochEntry(log.epochs[0], log.start)
        assert entries.epoch_for_offset(log.start - 1) == -1


@given(histories())
def test_epochs_and_offsets_increase_strictly(history: tuple[ModelLog, LeaderEpochs]) -> None:
    entries = list(history[1])
    for earlier, later in pairwise(entries):
        assert earlier.epoch < later.epoch
        assert earlier.start_offset < later.start_offset


class Replica:
    """A log of epochs, and its entries."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.entries = LeaderEpochs()

    def append(self, epoch: int) -> None:
        self.entries.assign(epoch, len(self.epochs))
        self.epochs.append(epoch)

    def truncate_to(self, end: int) -> None:
        self.entries.truncate_from_end(end)
        del self.epochs[end:]

    def reconcile_with(self, leader: Replica) -> None:
        """A follower before it fetches (KIP-101, KIP-279): it asks, truncates, and asks again if epochs
        differ.
        """
        while self.epochs:
            answer = leader.entries.end_offset_for(self.entries.latest_epoch, len(leader.epochs))
            own = self.entries.end_offset_for(answer.epoch, len(self.epochs))
            if own.epoch == answer.epoch:
                self.truncate_to(min(answer.end_offset, own.end_offset))
                return
            self.truncate_to(max(own.end_offset, 0))


@given(st.data())
def test_a_follower_that_truncates_by_epochs_agrees_with_its_leader(draw: st.DataObject) -> None:
    """Leadership changes, cleanly or not. Equal epochs at equal offsets are equal records."""
    leader, follower, epoch = Replica(), Replica(), 0
    leader.entries.assign(epoch, 0)
    for _ in range(draw.draw(st.integers(1, 12))):
        for _ in range(draw.draw(st.integers(0, 4))):
            leader.append(epoch)
        for _ in range(draw.draw(st.integers(0, 5))):
            if len(follower.epochs) < len(leader.epochs):
                follower.append(leader.epochs[len(follower.epochs)])
        if draw.draw(st.booleans()):
            leader, follower = follower, leader
        epoch += 1
        leader.entries.assign(epoch, len(leader.epochs))
        follower.reconcile_with(leader)
        assert follower.epochs == leader.epochs[: len(follower.epochs)]


@given(histories(), st.integers(0, MAX_EPOCH * 2), st.integers(0, 60))
def test_an_assigned_epoch_applies_from_its_offset(
    history: tuple[ModelLog, LeaderEpochs], epoch: int, start_offset: int
) -> None:
    _, entries = history
    before = list(entries)
    changed = entries.assign(epoch, start_offset)
    assert changed == (list(entries) != before)
    latest = entries.latest
    assert latest is not None
    assert latest.epoch == epoch
    assert latest.start_offset <= start_offset
    assert list(entries)[:-1] == [
        e for e in before if e.epoch < epoch and e.start_offset < latest.start_offset
    ]


@given(histories())
def test_the_checkpoint_is_read_back(history: tuple[ModelLog, LeaderEpochs]) -> None:
    entries = history[1]
    assert list(LeaderEpochs.decode(entries.encode())) == list(entries)


def test_the_checkpoint_has_kafkas_format() -> None:
    assert LeaderEpochs([EpochEntry(0, 0), EpochEntry(3, 17)]).encode() == b"0\n2\n0 0\n3 17\n"
    assert LeaderEpochs().encode() == b"0\n0\n"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n1\n",
        b"0\n1\n0 0\n1 5\n",
        b"0\n1\n0\n",
        b"0\n1\n0 0 0\n",
        b"0\n1\nx 0\n",
        b"0\n1\n-1 0\n",
        b"0\n1\n0 -4\n",
        b"\xff\xfe\n1\n0 0\n",
    ],
)
def test_damaged_checkpoints_are_refused(text: bytes) -> None:
    with pytest.raises(CorruptFileError):
        LeaderEpochs.decode(text)


@given(st.binary(max_size=40))
def test_random_bytes_are_refused_or_read(text: bytes) -> None:
    try:
        LeaderEpochs.decode(text)
    except CorruptFileError:
        return


def test_negative_numbers_are_refused() -> None:
    for epoch, offset in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="must not be negative"):
            LeaderEpochs().assign(epoch, offset)


def test_changes_are_reported_so_that_the_checkpoint_is_written_only_then() -> None:
    entries = LeaderEpochs()
    assert entries.assign(1, 0)
    assert not entries.assign(1, 10)
    assert entries.assign(2, 10)
    assert not entries.truncate_from_end(11)
    assert entries.truncate_from_end(10)
    assert not entries.truncate_from_start(0)
    assert entries.truncate_from_start(4)
    assert list(entries) == [EpochEntry(1, 4)]
    entries.clear()
    assert len(entries) == 0
    assert entries.latest is None


def test_batches_below_the_log_start_take_no_later_epoch_away() -> None:
    """A deletion of records leaves batches before the log start in their segment. Recovery reads them if the
    segment has lost an index, and does not read the segments behind it.
    """
    for batches, found in (
        ([(3, 0)], [(3, 0), (4, 9)]),
        ([(2, 0)], [(2, 0), (3, 5), (4, 9)]),
        ([(2, 0), (3, 3), (3, 5)], [(2, 0), (3, 3), (4, 9)]),
        ([(1, 0), (2, 2), (3, 4), (3, 7)], [(1, 0), (2, 2), (3, 4), (4, 9)]),
    ):
        epochs = LeaderEpochs([EpochEntry(3, 5), EpochEntry(4, 9)])
        for epoch, offset in batches:
            epochs.note_batch(epoch, offset)
        assert list(epochs) == found
