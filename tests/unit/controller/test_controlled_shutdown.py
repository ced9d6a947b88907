"""A controlled shutdown moves leadership away from the broker before it stops."""

from __future__ import annotations

import pytest

from clusterlab.controllers import Core
from tidelog.controller.core.broker_requests import controlled_shutdown
from tidelog.controller.core.commands import commands_for
from tidelog.controller.core.state import ChangeSet
from tidelog.kernel.steps import all_at_once
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import LeaderAndIsr, StopReplica, UpdateMetadata

MakeCore = type[Core]


def _shut_down(cluster: Core, broker_id: int) -> tuple[TopicPartition, ...]:
    epoch = cluster.state.brokers[broker_id].broker_epoch
    decision = all_at_once(controlled_shutdown(cluster.state, cluster.context(), broker_id, epoch))
    cluster.write(decision)
    return decision.reply


def test_leadership_moves_and_the_broker_leaves_every_isr(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2, 3], [2, 1, 3])
    cluster.make("u", [1])
    assert _shut_down(cluster, 1) == (TopicPartition("u", 0),)
    led, followed, alone = cluster.partition("t", 0), cluster.partition("t", 1), cluster.partition("u")
    assert (led.leader, led.isr, led.leader_epoch) == (2, (2, 3), 1)
    assert (followed.leader, followed.isr, followed.leader_epoch) == (2, (2, 3), 1)
    assert (alone.leader, alone.isr, alone.leader_epoch) == (1, (1,), 0)
    assert _shut_down(cluster, 1) == (TopicPartition("u", 0),), "the broker may ask again"
    assert cluster.partition("t", 0).leader_epoch == 1


def test_the_broker_receives_a_stop_and_no_role_as_follower(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2, 3], [2, 1, 3])
    cluster.changes = ChangeSet()
    _shut_down(cluster, 1)
    commands = all_at_once(commands_for(cluster.state, cluster.changes, 7, 5))
    stop, update = commands[1]
    assert isinstance(stop, StopReplica)
    assert not stop.delete
    assert stop.partitions == (TopicPartition("t", 0), TopicPartition("t", 1))
    assert isinstance(update, UpdateMetadata)
    for broker_id in (2, 3):
        lead, update = commands[broker_id]
        assert isinstance(lead, LeaderAndIsr)
        assert [p.leader for p in lead.partitions] == [2, 2]
        assert isinstance(update, UpdateMetadata)


def test_a_stopping_broker_is_not_elected_before_it_registers_again(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2])
    _shut_down(cluster, 2)
    cluster.leader_writes("t", (1, 2))
    cluster.death(1)
    assert cluster.partition("t").leader == -1
    cluster.make("u", [2, 3], [3, 2])
    assert [cluster.partition("u", index).leader for index in (0, 1)] == [3, 3]
    cluster.birth(2)
    assert cluster.partition("t").leader == 2


def test_a_controlled_shutdown_updates_the_elr(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2], min_insync_replicas="2")
    _shut_down(cluster, 1)
    state = cluster.partition("t")
    assert (state.leader, state.isr, state.elr) == (2, (2,), (1,))


def test_a_stale_broker_epoch_is_refused(core: MakeCore) -> None:
    cluster = core([1])
    for broker_id, epoch, code in (
        (1, 99, ErrorCode.STALE_BROKER_EPOCH),
        (5, 99, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        with pytest.raises(KafkaError) as raised:
            all_at_once(controlled_shutdown(cluster.state, cluster.context(), broker_id, epoch))
        assert raised.value.code is code


def test_a_shutdown_is_decided_in_a_step_for_each_partition(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", *([1, 2] for _ in range(200)))
    epoch = cluster.state.brokers[1].broker_epoch
    assert sum(1 for _ in controlled_shutdown(cluster.state, cluster.context(), 1, epoch)) == 200
