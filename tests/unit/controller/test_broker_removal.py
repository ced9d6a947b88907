"""UnregisterBroker: a dead broker leaves the cluster's state unless acknowledged records would be lost."""

from __future__ import annotations

import pytest

from clusterlab.controllers import Core
from tidelog.controller.core.broker_requests import unregister_broker, without_broker
from tidelog.controller.core.decision import ControllerDecision, Write
from tidelog.metadata.entries import BrokerConfigEntry
from tidelog.model.errors import ErrorCode, KafkaError
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
