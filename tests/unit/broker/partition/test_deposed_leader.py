"""A leader that learns of a newer leader from the store instead of the controller."""

from __future__ import annotations

from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import (
    FollowerFetched,
    IsrRefused,
    IsrState,
    LeaderAndIsrReceived,
    ProposeIsr,
    StepDown,
)
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.log_format.leader_epochs import LeaderEpochs
from tidelog.model.protocol_values import NO_LEADER

REPLICAS = (1, 2, 3)


def deposed() -> PartitionCore:
    """Broker 1 led in epoch 8 and read, at partition epoch 58, that broker 2 leads in epoch 10."""
    core = PartitionCore(
        1, ProducerState(), LeaderEpochs(), log_start_offset=0, log_end_offset=0, high_watermark=0
    )
    core.step(LeaderAndIsrReceived(1, 8, 50, (1,), REPLICAS, 0, 0))
    (proposal,) = core.step(FollowerFetched(3, 7, 0, 0, 0))[:1]
    assert isinstance(proposal, ProposeIsr)
    assert core.step(IsrRefused(proposal, IsrState(2, 10, (2, 3)), 58, 0)) == [StepDown()]
    assert core.leader == NO_LEADER
    return core


def test_a_command_of_a_newer_leader_epoch_with_an_older_partition_epoch_is_accepted() -> None:
    core = deposed()
    core.step(LeaderAndIsrReceived(2, 10, 56, (2,), REPLICAS, 0, 0))
    assert (core.leader, core.leader_epoch) == (2, 10)
    assert core.is_follower


def test_a_late_command_of_its_epoch_does_not_make_it_leader_again() -> None:
    core = deposed()
    core.step(LeaderAndIsrReceived(1, 8, 55, (1, 3), REPLICAS, 0, 0))
    assert not core.is_leader
