"""Ends of a leader's role: it learns of a newer leader from the store instead of the controller, and an epoch
without batches outlives the role neither in memory nor on disk.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import (
    AskEpochEnd,
    EpochEndReceived,
    FollowerFetched,
    IsrRefused,
    IsrState,
    LeaderAndIsrReceived,
    ProposeIsr,
    StepDown,
    Truncated,
    TruncateTo,
)
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.log_format.leader_epochs import EpochEntry, LeaderEpochs
from tidelog.model.protocol_values import NO_LEADER

REPLICAS = (1, 2, 3)


def deposed() -> PartitionCore:
    """Broker 1 led in epoch 8 and read, at partition epoch 58, that broker 2 leads in epoch 10."""
    core = PartitionCore(
        1, ProducerState(), LeaderEpochs(), log_start_offset=0, log_end_offset=0, high_watermark=0
    )
    core.step(LeaderAndIsrReceived(1, 8, 50, (1,), REPLICAS, 0))
    (proposal,) = core.step(FollowerFetched(3, 7, 0, 0, 0))[:1]
    assert isinstance(proposal, ProposeIsr)
    assert core.step(IsrRefused(proposal, IsrState(2, 10, (2, 3)), 58, 0)) == [StepDown()]
    assert core.leader == NO_LEADER
    return core


def test_a_command_of_a_newer_leader_epoch_with_an_older_partition_epoch_is_accepted() -> None:
    core = deposed()
    core.step(LeaderAndIsrReceived(2, 10, 56, (2,), REPLICAS, 0))
    assert (core.leader, core.leader_epoch) == (2, 10)
    assert core.is_follower


def test_a_late_command_of_its_epoch_does_not_make_it_leader_again() -> None:
    core = deposed()
    core.step(LeaderAndIsrReceived(1, 8, 55, (1, 3), REPLICAS, 0))
    assert not core.is_leader


def test_a_follower_has_its_own_empty_epoch_removed_from_the_disk_too() -> None:
    epochs = LeaderEpochs([EpochEntry(1, 0), EpochEntry(4, 33)])
    core = PartitionCore(2, ProducerState(), epochs, log_start_offset=0, log_end_offset=33, high_watermark=31)
    assert core.step(LeaderAndIsrReceived(3, 6, 34, (3,), (2, 3), 0)) == [AskEpochEnd(6, 4)]
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
