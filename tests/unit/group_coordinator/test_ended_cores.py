"""A core that has ended is freed at once: the garbage collector visits frozen objects rarely (ADR 0066)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from grouplab.consumer_lab import ConsumerLab, ModelConsumer
from grouplab.shard_lab import ShardLab
from grouplab.share_lab import SHARERS, ShareLab
from grouplab.streams_lab import SOURCE, ModelThread, StreamsLab
from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.shard_core import ShardCore
from tidelog.group_coordinator.share_state_core import ShareStateCore
from tidelog.group_coordinator.transactions.transaction_core import TransactionCore
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.coordinator_settings import CoordinatorSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidelog.wire.messages.streams_group_heartbeat import Subtopology, Topology


def core_of(lab: ShardLab) -> ShardCore:
    """Returns the core, which the lab then has no more: the core calls the lab for new ids."""
    core = lab.core
    del lab.core
    return core


def classic() -> ShardCore:
    lab = ShardLab()
    lab.stable_group(3)
    lab.join_with_id(group="waiting")
    return core_of(lab)


def consumer() -> ShardCore:
    lab = ConsumerLab()
    lab.set_topic("orders", 4)
    members = [
        ModelConsumer(lab, "a", ["orders"]),
        ModelConsumer(lab, "b", regex="ord.*"),
    ]
    lab.beat_all(members)
    return core_of(lab)


def share() -> ShardCore:
    lab = ShareLab()
    lab.set_topic("orders", 4)
    lab.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, ShareGroupHeartbeatRequest(SHARERS, "a", 0, None, ["orders"]))
    lab.states.deactivate()
    return core_of(lab)


def streams() -> ShardCore:
    lab = StreamsLab()
    lab.set_topic(SOURCE, 4)
    lab.beat_threads([ModelThread(lab, "a", "process")])
    return core_of(lab)


def streams_in_the_middle_of_an_assignment() -> ShardCore:
    lab = StreamsLab()
    lab.set_topic("large", 3_000)
    ModelThread(lab, "a", "process", Topology(0, [Subtopology("0", ["large"])])).step()
    assert lab.streams_group().unfinished_assignment is not None
    return core_of(lab)


def transactions() -> ShardCore:
    return TransactionCore(1, CoordinatorSettings())


def share_states() -> ShardCore:
    return ShareStateCore(BrokerSettings())


GROUPS = [classic, consumer, share, streams, streams_in_the_middle_of_an_assignment]


@pytest.mark.parametrize("make_core", [*GROUPS, transactions, share_states])
def test_an_ended_core_is_no_garbage(make_core: Callable[[], ShardCore]) -> None:
    core = make_core()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        core.deactivate()
        del core
        gc.collect()
        kinds = {type(found).__name__ for found in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert kinds == set()


@pytest.mark.parametrize("make_core", GROUPS)
def test_the_groups_of_an_ended_core_are_freed_without_a_collection(
    make_core: Callable[[], ShardCore],
) -> None:
    core = make_core()
    assert isinstance(core, GroupCore)
    groups = [weakref.ref(group) for group in core.groups.by_id.values()]
    assert groups
    gc.collect()
    gc.disable()
    try:
        core.deactivate()
        del core
        assert [group() for group in groups if group() is not None] == []
    finally:
        gc.enable()
