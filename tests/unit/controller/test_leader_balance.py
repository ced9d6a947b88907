"""Leadership returns to preferred leaders when too many partitions have another leader."""

from __future__ import annotations

from clusterlab.controllers import Core, whole
from tidelog.controller.core.elections import balance_leaders
from tidelog.controller.core.reassignments import alter_partition_reassignments
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

MakeCore = type[Core]


def _leaders(cluster: Core) -> list[int]:
    return [partition.leader for partition in cluster.state.all_partitions()]


def _stray(cluster: Core, count: int) -> None:
    """Restarts broker 1. `count` of its partitions have it in the ISR again."""
    cluster.death(1)
    cluster.birth(1)
    for partition in range(count):
        cluster.leader_writes("t", (2, 1), partition)


def test_above_the_percentage_leadership_returns_to_preferred_leaders(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", *[[1, 2]] * 10)
    _stray(cluster, 7)
    assert _leaders(cluster) == [2] * 10
    cluster.write(balance_leaders(cluster.state, cluster.context()))
    assert _leaders(cluster) == [1] * 7 + [2] * 3, "the others are not in sync yet"
    assert cluster.partition("t", 0).leader_epoch == 2


def test_within_the_percentage_leaders_do_not_change(core: MakeCore) -> None:
    cluster = core([1, 2], leader_imbalance_per_broker_percentage="10")
    cluster.make("t", *[[1, 2]] * 10)
    for partition in range(10):
        assert cluster.partition("t", partition).leader == 1
    _stray(cluster, 10)
    for partition in range(1, 10):
        state = cluster.partition("t", partition)
        cluster.revision += 1
        led = state._replace(leader=1, leader_epoch=state.leader_epoch + 1)
        cluster.state.apply(led, cluster.revision, cluster.revision, cluster.changes)
    assert whole(balance_leaders(cluster.state, cluster.context())).reply == 0


def test_the_balance_can_be_disabled_and_skips_reassigned_partitions(core: MakeCore) -> None:
    off = core([1, 2], auto_leader_rebalance_enable="false")
    off.make("t", [1, 2])
    _stray(off, 1)
    assert whole(balance_leaders(off.state, off.context())).reply == 0
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2])
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic("t", [ReassignablePartition(0, [3, 2])])]
    )
    cluster.request(alter_partition_reassignments, request)
    assert whole(balance_leaders(cluster.state, cluster.context())).reply == 0
