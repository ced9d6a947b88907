"""A controller fails between any two of its transactions, and the next one completes its work.

Decisions are written into a key space in many small transactions. The controller fails after some of them. Of
the transactions that may be written in parallel, any may be missing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterlab.controllers import whole
from tidelog.controller import office as record_writer_module
from tidelog.controller.core.broker_requests import controlled_shutdown
from tidelog.controller.core.decision import (
    Chance,
    Context,
    ControllerDecision,
    DecisionSteps,
    NoteShutdown,
    rules_from,
)
from tidelog.controller.core.elections import balance_leaders, settle_partitions
from tidelog.controller.core.reassignments import advance_reassignments, alter_partition_reassignments
from tidelog.controller.core.state import ChangeSet, ClusterState, written
from tidelog.controller.core.topics import create_partitions, create_topics, delete_topics, finish_half_done
from tidelog.controller.office import Batch, pack_records
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import BrokerEntry, broker_key, decode_entry
from tidelog.metadata.store import Delete, KeySpace, Put
from tidelog.model.brokers import Endpoint
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidelog.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

Decide = Callable[[ClusterState, Context], ControllerDecision[object] | DecisionSteps[object]]
PARTITIONS = 12


class EndOfLifeError(Exception):
    """The controller is killed at this point."""


class World:
    """A store and a sequence of controllers."""

    def __init__(self) -> None:
        self.space = KeySpace()
        self.epoch = 0
        self.left: list[bool] | None = None
        self.next_term()

    def next_term(self) -> None:
        self.epoch += 1
        self.state = ClusterState()
        items = ((i.key, i.value, i.create_revision, i.mod_revision) for i in self.space.items())
        all_at_once(self.state.load(items))

    def context(self) -> Context:
        rules = rules_from(BrokerSettings.parse({"min.insync.replicas": "2"}), {})
        return Context(self.epoch, Chance(random.Random(4).getrandbits), rules)

    def do(self, decide: Decide) -> None:
        decision = whole(decide(self.state, self.context()))
        for record in decision.records:
            if isinstance(record, NoteShutdown):
                self.state.note_shutdown(record.broker_id, record.broker_epoch, ChangeSet())
        for group in all_at_once(pack_records(decision.records, self.state)):
            fates = [self._is_written() for _ in group]
            for batch, is_written in zip(group, fates, strict=True):
                if is_written:
                    self._write(batch)
            if not all(fates):
                raise EndOfLifeError

    def _is_written(self) -> bool:
        return self.left.pop(0) if self.left else self.left is None

    def _write(self, batch: Batch) -> None:
        outcome = self.space.transact(list(batch.compares.values()), batch.operations, (), bool)
        assert outcome.result.succeeded
        self._refresh(batch.keys)

    def _refresh(self, changed: Iterable[str]) -> None:
        for key in changed:
            item = self.space.get(key)
            entry = decode_entry(key, item.value) if item is not None else None
            if item is None:
                self.state.apply_removal(key, self.space.revision, ChangeSet())
            elif entry is not None:
                self.state.apply(entry, item.create_revision, item.mod_revision, ChangeSet())

    def put(self, key: str, value: bytes) -> None:
        self.space.transact((), (Put(key, value),), (), bool)
        self._refresh((key,))

    def live(self, *broker_ids: int, **said: Any) -> None:
        for broker_id in broker_ids:
            entry = BrokerEntry(broker_id, (Endpoint("PLAINTEXT", "h", 9092),), **said)
            self.put(entry.key, entry.encode())

    def die(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.space.transact((), (Delete(broker_key(broker_id)),), (), bool)
            self._refresh((broker_key(broker_id),))

    def join(self, broker_id: int) -> None:
        """Lets every leader add the broker to its ISR."""
        for partition in list(self.state.all_partitions()):
            if broker_id in partition.replicas and broker_id not in partition.isr:
                after = written(partition._replace(isr=(*partition.isr, broker_id), elr=())).entry
                self.put(after.key, after.encode())

    def resume(self) -> None:
        self.left = None
        self.next_term()
        self.do(finish_half_done)
        self.do(settle_partitions)
        self.do(advance_reassignments)

    def view(self) -> dict[str, object]:
        """Returns everything that is stored, except epochs."""
        found: dict[str, object] = {
            f"{topic.name}-{index}": (replicas, topic.adding.get(index), topic.removing.get(index))
            for topic in self.state.topics.values()
            for index, replicas in enumerate(topic.assignments)
        }
        for name, stored in self.state.partitions.items():
            for index, state in stored.items():
                found[f"{name}-{index}-state"] = (state.leader, set(state.isr), set(state.elr))
        found["configs"] = {name: dict(configs) for name, configs in self.state.topic_configs.items()}
        return found


def _request(decide: Callable[..., ControllerDecision[object]], message: object) -> Decide:
    return partial(_decide_request, decide, message)


def _decide_request(
    decide: Callable[..., ControllerDecision[object]], message: object, state: ClusterState, context: Context
) -> ControllerDecision[object]:
    return decide(state, context, message, 99)


def _creation(*names: str) -> Decide:
    configs = [CreatableTopicConfig("retention.ms", "5000")]
    return _request(
        create_topics,
        CreateTopicsRequest([CreatableTopic(name, PARTITIONS, 3, configs=configs) for name in names]),
    )


def _moving(replicas: list[int] | None) -> Decide:
    targets = [ReassignablePartition(index, replicas) for index in range(PARTITIONS)]
    return _request(
        alter_partition_reassignments,
        AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", targets)]),
    )


def _stopping(broker_id: int, world: World) -> Decide:
    epoch = world.state.brokers[broker_id].broker_epoch
    return partial(controlled_shutdown, broker_id=broker_id, broker_epoch=epoch)


def _prepared() -> World:
    world = World()
    world.live(1, 2, 3, 4)
    world.do(_creation("t"))
    return world


def _deaths(world: World) -> Decide:
    world.die(1, 2)
    return settle_partitions


def _suspects(world: World) -> Decide:
    world.die(1, 2)
    world.live(1, 2, is_log_suspect=True)
    return settle_partitions


def _strayed(world: World) -> Decide:
    world.die(1)
    world.do(settle_partitions)
    world.live(1)
    world.join(1)
    return balance_leaders


def _move_ends(world: World) -> Decide:
    world.do(_moving([4, 1]))
    world.join(4)
    return advance_reassignments


def _move_cancelled(world: World) -> Decide:
    world.do(_moving([4, 1]))
    world.do(advance_reassignments)  # the partitions that already exist
    return _moving(None)


# The work during which the controller fails, and whether it is requested again (a client or broker without
# a response repeats its request) or completed by the next controller alone.
_WORK: dict[str, tuple[Callable[[World], Decide], bool]] = {
    "create topics": (lambda world: _creation("u", "v"), True),
    "delete a topic": (
        lambda world: _request(delete_topics, DeleteTopicsRequest(topics=[DeleteTopicState("t")])),
        True,
    ),
    "add partitions": (
        lambda world: _request(
            create_partitions, CreatePartitionsRequest([CreatePartitionsTopic("t", 30, None)])
        ),
        True,
    ),
    "elect leaders after a failure": (_deaths, False),
    "remove suspect logs": (_suspects, False),
    "shut down a broker": (lambda world: _stopping(2, world), True),
    "balance leaders": (_strayed, True),
    "start a reassignment": (lambda world: _moving([4, 1]), True),
    "cancel a reassignment": (_move_cancelled, True),
    "complete a reassignment": (_move_ends, False),
}


def _is_sound(world: World) -> None:
    state = world.state
    for topic in state.topics.values():
        assert state.partitions[topic.name].keys() == set(range(len(topic.assignments)))
        assert state.configs_of(topic.name) == {"retention.ms": "5000"}
    assert state.partitions.keys() == state.topics.keys()
    assert state.topic_configs.keys() == state.topics.keys()
    for partition in state.all_partitions():
        topic = state.topics[partition.topic]
        assert partition.topic_id == topic.topic_id
        assert partition.replicas == topic.assignments[partition.partition]
        assert set(partition.isr) <= set(partition.replicas)
        assert partition.leader in partition.isr
        assert partition.leader in state.brokers
    for decide in (finish_half_done, settle_partitions, advance_reassignments):
        assert not whole(decide(state, world.context())).records, "there is nothing left to do"


def _members(world: World) -> dict[tuple[str, int], tuple[set[int], int]]:
    """Returns the replicas of each partition and its leader epoch."""
    return {
        (each.topic, each.partition): (set(each.replicas), each.leader_epoch)
        for each in world.state.all_partitions()
    }


@pytest.mark.parametrize("work", _WORK)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.data())
def test_the_next_controller_completes_the_work(
    work: str, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(record_writer_module, "MAX_KEYS", data.draw(st.sampled_from([5, 8, 30])))
    begin, is_asked_again = _WORK[work]
    uncut = _prepared()
    uncut.do(begin(uncut))
    uncut.resume()

    world = _prepared()
    decide = begin(world)
    before = _members(world)
    world.left = data.draw(st.lists(st.booleans(), max_size=12))
    try:
        world.do(decide)
    except EndOfLifeError:
        for partition, (replicas, leader_epoch) in _members(world).items():
            known, epoch_before = before.get(partition, (replicas, -1))
            assert replicas == known or leader_epoch > epoch_before, "its leader would not receive a command"
        world.resume()
        _is_sound(world)
        if is_asked_again and world.view() != uncut.view():
            world.do(decide)
    world.resume()
    _is_sound(world)
    assert world.view() == uncut.view()
