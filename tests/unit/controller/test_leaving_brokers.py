"""Brokers that leave: a controlled shutdown moves leadership away first, and UnregisterBroker removes a dead
broker unless acknowledged records would be lost.
"""

from __future__ import annotations

import pytest

from clusterlab.controllers import Core
from tidelog.controller.core.broker_requests import controlled_shutdown, unregister_broker, without_broker
from tidelog.controller.core.commands import commands_for
from tidelog.controller.core.decision import ControllerDecision, Write
from tidelog.controller.core.state import ChangeSet
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import BrokerConfigEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import LeaderAndIsr, StopReplica, UpdateMetadata
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest

MakeCore = type[Core]


def _unregister(cluster: Core, broker_id: int) -> int:
    reply = cluster.request(unregister_broker, UnregisterBrokerRequest(broker_id), 0)
    assert (reply.error_message is None) is (reply.error_code == ErrorCode.NONE)
    code: int = reply.error_code
    return code


def test_a_live_or_unknown_broker_is_refused(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2])
    assert _unregister(cluster, 1) == ErrorCode.INVALID_REQUEST
    assert _unregister(cluster, 7) == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_dead_broker_loses_its_settings_and_keeps_its_replicas(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2])
    for broker_id in (2, 3):
        entry = BrokerConfigEntry(str(broker_id), {"log.cleaner.threads": "2"})
        cluster.write(ControllerDecision((Write(entry),), None))
    cluster.death(2, 3)
    assert _unregister(cluster, 2) == ErrorCode.NONE
    assert _unregister(cluster, 3) == ErrorCode.NONE
    assert not cluster.state.broker_configs
    assert cluster.state.topics["t"].assignments == ((1, 2),)
    assert _unregister(cluster, 3) == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_place_among_the_eligible_leaders_is_given_up_but_not_the_last_one(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2], min_insync_replicas="2")
    cluster.death(2)
    cluster.death(1)
    cluster.birth(3)
    before = cluster.partition("t")
    assert (set(before.isr) | set(before.elr), before.leader) == ({1, 2}, -1)
    assert _unregister(cluster, 2) == ErrorCode.NONE
    after = cluster.partition("t")
    assert (after.isr, after.elr, after.leader_epoch) == ((1,), (), before.leader_epoch)
    assert _unregister(cluster, 1) == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert cluster.partition("t") == after


def test_the_last_eligible_leader_stays_although_another_broker_led_last(core: MakeCore) -> None:
    """The last known leader may have lost records, so only an unclean election may choose it."""
    cluster = core([1, 2, 3])
    cluster.make("t", [2, 3], min_insync_replicas="2")
    cluster.death(2)
    cluster.death(3)
    cluster.birth(1)
    partition = cluster.state.partitions["t"][0]
    left = without_broker(partition._replace(isr=(), elr=(3,), last_known_elr=(2,)), 2)
    assert left is not None
    with pytest.raises(KafkaError) as refused:
        without_broker(partition._replace(isr=(), elr=(2,), last_known_elr=(3,)), 2)
    assert refused.value.code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


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
