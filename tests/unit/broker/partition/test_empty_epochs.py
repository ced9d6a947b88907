"""A leader epoch without batches must not outlive the role, neither in memory nor on disk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import (
    AskEpochEnd,
    EpochEndReceived,
    LeaderAndIsrReceived,
    Truncated,
    TruncateTo,
)
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.log_format.leader_epochs import EpochEntry, LeaderEpochs


def test_a_follower_has_its_own_empty_epoch_removed_from_the_disk_too() -> None:
    epochs = LeaderEpochs([EpochEntry(1, 0), EpochEntry(4, 33)])
    core = PartitionCore(2, ProducerState(), epochs, log_start_offset=0, log_end_offset=33, high_watermark=31)
    assert core.step(LeaderAndIsrReceived(3, 6, 34, (3,), (2, 3), 33, 0)) == [AskEpochEnd(6, 4)]
    assert core.step(EpochEndReceived(6, 4, 1, 42)) == [TruncateTo(33)]
    core.step(Truncated(0, 33))
    assert list(core.leader_epochs) == [EpochEntry(1, 0)]


@given(
    epochs_of_batches=st.lists(st.integers(0, 5), min_size=1, max_size=20).map(sorted),
    wrong=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 25)), max_size=6),
)
def test_recovery_trusts_batches_more_than_the_checkpoint(
    epochs_of_batches: list[int], wrong: list[tuple[int, int]]
) -> None:
    """After recovery has read all batches, each offset has its batch's epoch, whatever the checkpoint
    contains.
    """
    epochs = LeaderEpochs([EpochEntry(*entry) for entry in wrong])
    for offset, epoch in enumerate(epochs_of_batches):
        epochs.note_batch(epoch, offset)
    epochs.truncate_from_end(len(epochs_of_batches))
    assert [epochs.epoch_for_offset(o) for o in range(len(epochs_of_batches))] == epochs_of_batches
    entries = list(epochs)
    assert entries == sorted(entries)
