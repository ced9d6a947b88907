"""ISR changes are written to the store once, whatever the store does; the replica receives the outcome."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerlab.in_memory_store import InMemoryStore
from tidelog.broker.partition.events import Event, IsrRefused, IsrState, IsrWritten, ProposeIsr
from tidelog.broker.replication import isr
from tidelog.broker.replication.isr import IsrWriter
from tidelog.kernel.clock import ManualClock
from tidelog.kernel.instants import Backoff
from tidelog.kernel.slices import STEPS_BETWEEN_READINGS
from tidelog.metadata.entries import PartitionStateEntry, broker_key, partition_state_key
from tidelog.metadata.store import MAX_TXN_OPERATIONS
from tidelog.model.topics import TopicPartition

LEADER = 1
EPOCH = 4


class StubReplica:
    """A replica that records the outcomes it receives."""

    def __init__(self, partition: int) -> None:
        self.topic_partition = TopicPartition("t", partition)
        self.core = SimpleNamespace(is_leader=True, leader_epoch=EPOCH, broker_id=LEADER)
        self.told: list[Event] = []

    def step(self, event: Event) -> None:
        self.told.append(event)


class WriterLab:
    def __init__(self) -> None:
        self.store = InMemoryStore()
        self.refused = 0
        self.writer = IsrWriter(self.store, ManualClock(), self._count)

    def _count(self) -> None:
        self.refused += 1

    def stand(self, partition: int, isr: tuple[int, ...], *, leader_epoch: int = EPOCH) -> int:
        """Writes a state key and returns its revision."""
        entry = PartitionStateEntry("t", partition, LEADER, leader_epoch, isr, 9, (), 7)
        return self.store.put(entry.key, entry.encode())

    def register(self, broker_id: int) -> int:
        """Returns the broker epoch of a new registration."""
        self.store.delete(broker_key(broker_id))
        return self.store.put(broker_key(broker_id), b"{}")

    def propose(self, replica: StubReplica, proposal: ProposeIsr) -> None:
        self.writer.propose(cast(Any, replica), proposal)

    async def isr_of(self, partition: int) -> tuple[list[int], int]:
        item = await self.store.get(partition_state_key("t", partition))
        assert item is not None
        return json.loads(item.value)["isr"], item.mod_revision


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr, "BACKOFF", Backoff(0, 0))


def run(scenario: Callable[[WriterLab], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(10):
            await scenario(WriterLab())

    asyncio.run(body())


def proposal(
    partition_epoch: int, isr: tuple[int, ...], added: tuple[tuple[int, int], ...] = ()
) -> ProposeIsr:
    return ProposeIsr(EPOCH, partition_epoch, isr, (), added)


def test_a_shrink_is_written_and_the_rest_of_the_state_stays() -> None:
    async def scenario(lab: WriterLab) -> None:
        replica, wanted = StubReplica(0), proposal(lab.stand(0, (1, 2, 3)), (1, 2))
        lab.propose(replica, wanted)
        await lab.writer.until_idle()
        isr, revision = await lab.isr_of(0)
        assert (isr, replica.told) == ([1, 2], [IsrWritten(wanted, revision)])
        item = await lab.store.get(partition_state_key("t", 0))
        assert item is not None
        assert b'"controller_epoch":9' in item.value
        assert b'"last_known_leader":7' in item.value

    run(scenario)


def test_a_fault_in_one_replica_does_not_end_the_writing() -> None:
    class Faulty(StubReplica):
        def step(self, event: Event) -> None:
            raise ZeroDivisionError

    async def scenario(lab: WriterLab) -> None:
        many = 2 * MAX_TXN_OPERATIONS
        sound = [StubReplica(partition) for partition in range(1, 5 * many)]
        lab.propose(Faulty(0), proposal(lab.stand(0, (1, 2)), (1,)))
        for replica in sound:
            partition = replica.topic_partition.partition
            lab.propose(replica, proposal(lab.stand(partition, (1, 2)), (1,)))
        await lab.writer.until_idle()
        assert all(replica.told for replica in sound[many:])

    run(scenario)


def test_the_outcomes_of_a_transaction_are_told_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is logged, which takes long."""
    monkeypatch.setattr("tidelog.kernel.slices.SLICE_MS", 0)  # a slice has STEPS_BETWEEN_READINGS steps
    turn = 0
    told: Counter[int] = Counter()

    class Counting(StubReplica):
        def step(self, event: Event) -> None:
            super().step(event)
            told[turn] += 1

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def scenario(lab: WriterLab) -> None:
        turns = asyncio.create_task(count_turns())
        replicas = [Counting(partition) for partition in range(MAX_TXN_OPERATIONS)]
        for replica in replicas:
            partition = replica.topic_partition.partition
            lab.propose(replica, proposal(lab.stand(partition, (1, 2)), (1,)))
        await lab.writer.until_idle()
        turns.cancel()
        assert all(isinstance(*replica.told, IsrWritten) for replica in replicas)
        assert max(told.values()) <= 2 * STEPS_BETWEEN_READINGS

    run(scenario)


def test_an_expansion_compares_the_followers_broker_epoch() -> None:
    async def scenario(lab: WriterLab) -> None:
        old_life = lab.register(3)
        epoch = lab.stand(0, (1, 2))
        lab.register(3)
        replica, wanted = StubReplica(0), proposal(epoch, (1, 2, 3), ((3, old_life),))
        lab.propose(replica, wanted)
        await lab.writer.until_idle()
        assert replica.told == [IsrRefused(wanted, IsrState(LEADER, EPOCH, (1, 2)), epoch, 0)]
        assert await lab.isr_of(0) == ([1, 2], epoch)
        assert lab.refused == 1

    run(scenario)


@pytest.mark.parametrize("leader_epoch", [EPOCH, EPOCH + 1])
def test_a_state_that_another_process_wrote_is_reported(leader_epoch: int) -> None:
    async def scenario(lab: WriterLab) -> None:
        before = lab.stand(0, (1, 2, 3))
        now = lab.stand(0, (1, 3), leader_epoch=leader_epoch)
        replica, wanted = StubReplica(0), proposal(before, (1, 2))
        lab.propose(replica, wanted)
        await lab.writer.until_idle()
        assert replica.told == [IsrRefused(wanted, IsrState(LEADER, leader_epoch, (1, 3)), now, 0)]
        assert not lab.store.writes

    run(scenario)


def test_a_deleted_topic_is_reported() -> None:
    async def scenario(lab: WriterLab) -> None:
        replica, wanted = StubReplica(0), proposal(5, (1, 2))
        lab.propose(replica, wanted)
        await lab.writer.until_idle()
        assert replica.told == [IsrRefused(wanted, None, 0, 0)]

    run(scenario)


@pytest.mark.parametrize("fates", [["lost"], ["unsure"], ["lost", "lost", "unsure"], ["unsure", "lost"]])
def test_an_unknown_outcome_is_resolved(fates: list[str]) -> None:
    async def scenario(lab: WriterLab) -> None:
        life = lab.register(3)
        lab.store.failures = list(fates)
        replica, wanted = StubReplica(0), proposal(lab.stand(0, (1, 2)), (1, 2, 3), ((3, life),))
        lab.propose(replica, wanted)
        await lab.writer.until_idle()
        isr, revision = await lab.isr_of(0)
        assert (isr, replica.told) == ([1, 2, 3], [IsrWritten(wanted, revision)])

    run(scenario)


def test_while_the_store_is_unavailable_the_change_stays_pending() -> None:
    async def scenario(lab: WriterLab) -> None:
        replica, wanted = StubReplica(0), proposal(lab.stand(0, (1, 2, 3)), (1, 2))
        lab.store.is_away = True
        lab.propose(replica, wanted)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not replica.told
        lab.store.is_away = False
        await lab.writer.until_idle()
        assert isinstance(replica.told[0], IsrWritten)

    run(scenario)


def test_a_deposed_leader_receives_no_outcome() -> None:
    async def scenario(lab: WriterLab) -> None:
        replica = StubReplica(0)
        lab.store.is_away = True
        lab.propose(replica, proposal(lab.stand(0, (1, 2, 3)), (1, 2)))
        await asyncio.sleep(0)
        replica.core.leader_epoch = EPOCH + 1
        lab.store.is_away = False
        await lab.writer.until_idle()
        assert not replica.told
        assert (await lab.isr_of(0))[0] == [1, 2, 3]

    run(scenario)


def test_many_changes_share_transactions_that_the_store_takes() -> None:
    async def scenario(lab: WriterLab) -> None:
        lives = {broker_id: lab.register(broker_id) for broker_id in (2, 3)}
        replicas = [StubReplica(number) for number in range(1000)]
        for number, replica in enumerate(replicas):
            added = 2 + number % 2
            wanted = proposal(lab.stand(number, (1,)), (1, added), ((added, lives[added]),))
            lab.propose(replica, wanted)
        await lab.writer.until_idle()
        assert all(isinstance(replica.told[0], IsrWritten) for replica in replicas)
        assert len(lab.store.writes) == 8
        assert all(len(compares) <= MAX_TXN_OPERATIONS for compares, _ in lab.store.writes)

    run(scenario)


@settings(deadline=None, max_examples=60)
@given(
    fates=st.lists(st.sampled_from(["", "lost", "unsure"]), max_size=8),
    kinds=st.lists(st.sampled_from(["good", "moved", "reborn", "gone"]), min_size=1, max_size=12),
)
def test_in_a_mixed_group_each_change_has_its_own_outcome(fates: list[str], kinds: list[str]) -> None:
    async def scenario(lab: WriterLab) -> None:
        alive, old_life = lab.register(2), lab.register(3)
        replicas = [StubReplica(number) for number in range(len(kinds))]
        proposals = []
        for number, kind in enumerate(kinds):
            added = (3, old_life) if kind == "reborn" else (2, alive)
            epoch = 1 if kind == "gone" else lab.stand(number, (1,))
            proposals.append(proposal(epoch, (1, added[0]), (added,)))
            if kind == "moved":
                lab.stand(number, (1, 5))
        lab.register(3)
        lab.store.failures = list(fates)
        for replica, wanted in zip(replicas, proposals, strict=True):
            lab.propose(replica, wanted)
        await lab.writer.until_idle()
        for number, (kind, replica, wanted) in enumerate(zip(kinds, replicas, proposals, strict=True)):
            (told,) = replica.told
            if kind == "good":
                assert told == IsrWritten(wanted, (await lab.isr_of(number))[1])
                assert (await lab.isr_of(number))[0] == [1, 2]
            else:
                assert isinstance(told, IsrRefused)
        assert lab.refused == sum(kind != "good" for kind in kinds)

    run(scenario)
