"""Simulates producers that share a transactional id, its coordinator, and their partitions, in random order.

Messages may be late, duplicated or lost. The coordinator may crash at any point and lose the part of its log
that is not replicated. Producers crash and return. A seed determines the history. After each step `check`,
and at the end `settle`, verify these invariants:

- a transaction that a producer knows to be committed (or aborted) is so in each partition, permanently;
- the partitions of a transaction agree;
- no id and epoch is ever given to two producers;
- a replay of the log restores the core's state;
- no partition keeps an open transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple  # Any: generated messages have no common base

from tidelog.group_coordinator.shard_core import (
    AllocateProducerId,
    CancelTimer,
    ClusterImage,
    CoordinatorRecord,
    EndTransaction,
    ReplayedRecord,
    ShardDecision,
    ShardRequest,
)
from tidelog.group_coordinator.transactions.transaction_core import TransactionCore
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.settings.coordinator_settings import CoordinatorSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidelog.wire.messages.end_txn import EndTxnRequest
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest

NAME = "t"
TIMEOUT_MS = 30_000
RETRIABLE = frozenset(
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)


class Call(NamedTuple):
    """A request of a producer, or of a broker on its behalf.

    `answered` receives the response, or None if the response is lost.
    """

    api_key: ApiKey
    version: int
    message: Any
    answered: Callable[[Any], None]


@dataclass
class Batch:
    label: str
    outcome: bool | None = None


@dataclass
class Partition:
    """A leader's view of one transactional id's producers."""

    epochs: dict[int, int] = field(default_factory=dict)
    coordinator_epoch: int = -1
    open: dict[int, list[Batch]] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    ended: int = 0
    """The number of markers. A verification is valid only until the next one (VerificationStateEntry)."""

    def append(self, producer: tuple[int, int], label: str, guard: int) -> bool:
        producer_id, epoch = producer
        if epoch < self.epochs.get(producer_id, -1) or guard != self.ended:
            return False
        if any(batch.label == label for batch in self.batches):
            return True
        self.epochs[producer_id] = epoch
        batch = Batch(label)
        self.batches.append(batch)
        self.open.setdefault(producer_id, []).append(batch)
        return True

    def write_marker(self, effect: EndTransaction) -> bool:
        """Writes a marker, and returns whether the partition is finished for the coordinator."""
        producer_id, epoch = effect.producer
        known, is_open = self.epochs.get(producer_id, -1), producer_id in self.open
        if effect.coordinator_epoch < self.coordinator_epoch:
            return False
        self.coordinator_epoch = effect.coordinator_epoch
        if epoch < known or (effect.transaction_version >= 2 and epoch == known and is_open):
            return True
        self.epochs[producer_id] = epoch
        self.ended += 1
        for batch in self.open.pop(producer_id, []):
            batch.outcome = effect.is_commit
        return True


class World:
    def __init__(self, seed: int, *, version: int) -> None:
        self.random = Random(seed)
        self.version = version
        self.now_ms = 1_000_000
        self.log: list[CoordinatorRecord] = []
        self.committed = 0
        self.held: list[tuple[int, Callable[[], None]]] = []
        self.calls: list[Call] = []
        self.owed: list[Call] = []
        self.in_flight: list[Callable[[], None]] = []
        self.timers: dict[Any, int] = {}
        self.partitions = {TopicPartition("a", index): Partition() for index in range(3)}
        self.told: dict[tuple[int, int], str] = {}
        self.acknowledged: dict[str, bool] = {}
        self.counts = {"committed": 0, "aborted": 0, "crashes": 0, "fenced": 0}
        self.coordinator_epoch = 0
        self.next_producer_id = 100
        self.core: TransactionCore
        self.producers: list[Producer] = []
        self.is_settling = False
        self.load()
        for number in range(3):
            self.producers.append(Producer(self, f"p{number}"))
        self.active = self.producers[0]

    # -- the coordinator

    def load(self) -> None:
        self.coordinator_epoch += 1
        self.core = self.replayed(self.coordinator_epoch)
        self.committed = len(self.log)
        self.timers.clear()
        self.carry_out(self.core.activate(ClusterImage(1, {}, {}), self.now_ms))

    def replayed(self, coordinator_epoch: int) -> TransactionCore:
        core = TransactionCore(coordinator_epoch, CoordinatorSettings())
        for offset, (key, value) in enumerate(self.log):
            core.replay(ReplayedRecord(key, value, self.now_ms, None), offset)
        return core

    def crash(self) -> None:
        self.counts["crashes"] += 1
        del self.log[self.random.randint(self.committed, len(self.log)) :]
        self.held.clear()
        for call in self.owed:
            self.in_flight.append(lambda call=call: call.answered(None))
        self.owed.clear()
        self.load()

    def process(self, call: Call) -> None:
        self.owed.append(call)
        request = ShardRequest(call, call.api_key, call.version, call.message)
        self.carry_out(self.core.handle(request, self.now_ms))

    def carry_out(self, decision: ShardDecision) -> None:
        self.log += decision.records
        core = self.core
        for call, message, _ in decision.replies:
            self.held.append((len(self.log), lambda call=call, message=message: self.answer(call, message)))
        for effect in decision.effects:
            if isinstance(effect, AllocateProducerId):
                self.in_flight.append(lambda effect=effect: self.tell_producer_id(core, effect))
            else:
                self.held.append((len(self.log), lambda effect=effect: self.send_markers(core, effect)))
        for timer in decision.timers:
            if isinstance(timer, CancelTimer):
                self.timers.pop(timer.key, None)
            else:
                self.timers[timer.key] = self.now_ms + timer.delay_ms

    def tell_producer_id(self, core: TransactionCore, effect: AllocateProducerId) -> None:
        if core is self.core:
            self.next_producer_id += 1
            is_had = self.random.random() < 0.9
            outcome = self.next_producer_id if is_had else None
            self.carry_out(core.effect_done(effect, outcome, self.now_ms))

    def replicate(self) -> None:
        self.committed = self.random.randint(self.committed, len(self.log))
        released = [release for offset, release in self.held if offset <= self.committed]
        self.held = [(offset, release) for offset, release in self.held if offset > self.committed]
        for release in released:
            release()

    def send_markers(self, core: TransactionCore, effect: EndTransaction) -> None:
        missing = set(effect.partitions)

        def deliver(partition: TopicPartition) -> None:
            if self.partitions[partition].write_marker(effect):
                missing.discard(partition)
                if not missing and core is self.core:
                    self.carry_out(core.effect_done(effect, None, self.now_ms))
            if self.random.random() < 0.2 and not self.is_settling:
                self.in_flight.append(lambda: deliver(partition))

        for partition in effect.partitions:
            self.in_flight.append(lambda partition=partition: deliver(partition))

    # -- the network

    def send(self, call: Call, *, may_come_twice: bool) -> None:
        self.calls.append(call)
        if may_come_twice and self.random.random() < 0.3:
            again = call._replace(answered=lambda message: None)
            self.in_flight.append(lambda: self.calls.append(again))

    def answer(self, call: Call, message: Any) -> None:
        if call in self.owed:
            self.owed.remove(call)
        is_lost = self.random.random() < 0.15 and not self.is_settling
        self.in_flight.append(lambda: call.answered(None if is_lost else message))

    # -- steps

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.3:
            if self.random.random() < 0.005:
                self.active = self.random.choice(self.producers)
            self.active.act()
        elif choice < 0.5 and self.calls:
            # Each connection keeps the order of its messages, but there are many connections.
            self.process(self.calls.pop(self.random.randrange(len(self.calls))))
        elif choice < 0.7:
            self.replicate()
        elif choice < 0.95 and self.in_flight:
            self.in_flight.pop(self.random.randrange(len(self.in_flight)))()
        elif choice < 0.965:
            self.pass_time(self.random.choice([1, 10, 100, 1_000, 11_000]))
        elif choice < 0.974:
            assert self.replayed(0).transactions == self.core.transactions, (
                "the replay restores another state"
            )
            self.crash()
        elif choice < 0.975:
            self.random.choice(self.producers).restart()
        self.check()

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for key in [key for key, deadline_ms in self.timers.items() if deadline_ms <= self.now_ms]:
            del self.timers[key]
            self.carry_out(self.core.timer_fired(key, self.now_ms))

    def settle(self) -> None:
        """Ends all transactions without further faults and new transactions."""
        self.is_settling = True
        for _ in range(20):
            while self.calls or self.in_flight or self.held:
                if self.calls:
                    self.process(self.calls.pop(0))
                elif self.in_flight:
                    self.in_flight.pop(0)()
                self.committed = len(self.log)
                self.replicate()
            self.pass_time(TIMEOUT_MS)
        self.check()
        for partition in self.partitions.values():
            assert not partition.open, "a transaction remains open"
            assert all(batch.outcome is not None for batch in partition.batches)

    def check(self) -> None:
        outcomes: dict[str, bool] = {}
        for partition in self.partitions.values():
            for batch in partition.batches:
                if batch.outcome is None:
                    continue
                agreed = outcomes.setdefault(batch.label, batch.outcome)
                assert agreed == batch.outcome, (
                    f"{batch.label} is committed in one partition and aborted in another"
                )
                told = self.acknowledged.get(batch.label, batch.outcome)
                assert told == batch.outcome, f"{batch.label} was reported as {told} but is {batch.outcome}"

    def tell(self, producer: tuple[int, int], who: str) -> None:
        before = self.told.setdefault(producer, who)
        assert before == who, f"{producer} was given to {who} and {before}"


class Producer:
    """A producer, which makes one call at a time and repeats it after a retriable or lost response."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.restart()

    def restart(self) -> None:
        self.life += 1
        self.transaction = 0
        self.identity: tuple[int, int] | None = None
        self.is_waiting = False
        self.label: str | None = None
        self.has_written = False
        self.wants_commit = True
        self.pending: Callable[[], None] | None = None
        """The call to repeat."""

    @property
    def who(self) -> str:
        return f"{self.name}.{self.life}"

    def act(self) -> None:
        if self.is_waiting:
            return
        if self.pending is not None:
            self.pending()
        elif self.identity is None:
            self._init(None)
        elif self.label is None:
            if self.world.random.random() < 0.1:
                self._init(self.identity)
            else:
                self.transaction += 1
                self.label = f"{self.who}.{self.transaction}"
                self.has_written = False
        elif self.world.random.random() < 0.6 or not self.has_written:
            self._write(self.world.random.choice(sorted(self.world.partitions)))
        else:
            self.wants_commit = self.world.random.random() < 0.7
            self._end()

    def _call(
        self,
        api_key: ApiKey,
        version: int,
        message: Any,
        done: Callable[[Any], None],
        error_of: Callable[[Any], int],
        again: Callable[[], None],
        *,
        may_come_twice: bool,
    ) -> None:
        self.is_waiting, self.pending = True, again
        life = self.life

        def answered(answer: Any) -> None:
            if self.life != life or not self.is_waiting:
                return
            self.is_waiting = False
            if answer is None or error_of(answer) in RETRIABLE:
                return
            self.pending = None
            if error_of(answer) == ErrorCode.NONE:
                done(answer)
            else:
                self.world.counts["fenced"] += 1
                self.restart()

        self.world.send(Call(api_key, version, message, answered), may_come_twice=may_come_twice)

    def _init(self, named: tuple[int, int] | None) -> None:
        message = InitProducerIdRequest(NAME, TIMEOUT_MS, *(named or (-1, -1)))

        def done(answer: Any) -> None:
            self.identity = (answer.producer_id, answer.producer_epoch)
            self.world.tell(self.identity, self.who)

        self._call(
            ApiKey.INIT_PRODUCER_ID,
            5,
            message,
            done,
            lambda answer: int(answer.error_code),
            lambda: self._init(named),
            may_come_twice=True,
        )

    def _write(self, partition: TopicPartition) -> None:
        """Adds the partition to the transaction, or verifies it, and then appends the batch.

        The append fails if a marker was written in between.
        """
        assert self.identity is not None
        assert self.label is not None
        identity, label, leader = self.identity, self.label, self.world.partitions[partition]
        guard = leader.ended
        topics = [AddPartitionsToTxnTopic(partition.topic, [partition.partition])]
        if self.world.version >= 2:
            asked = AddPartitionsToTxnTransaction(NAME, *identity, False, topics)
            version, message = 5, AddPartitionsToTxnRequest([asked])
        else:
            version, message = 3, AddPartitionsToTxnRequest([], NAME, *identity, topics)

        def error_of(answer: Any) -> int:
            if version < 4:
                results = answer.results_by_topic_v3_and_below
            else:
                results = answer.results_by_transaction[0].topic_results
            return int(results[0].results_by_partition[0].partition_error_code)

        def done(_: Any) -> None:
            if leader.append(identity, label, guard):
                self.has_written = True
            elif identity[1] < leader.epochs.get(identity[0], -1):
                self.restart()

        self._call(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            message,
            done,
            error_of,
            lambda: self._write(partition),
            may_come_twice=True,
        )

    def _end(self) -> None:
        assert self.identity is not None
        assert self.label is not None
        label, is_commit, version = self.label, self.wants_commit, 5 if self.world.version >= 2 else 4

        def done(answer: Any) -> None:
            self.world.acknowledged[label] = is_commit
            self.world.counts["committed" if is_commit else "aborted"] += 1
            self.label = None
            if version >= 5:
                self.identity = (answer.producer_id, answer.producer_epoch)
                self.world.tell(self.identity, self.who)

        self._call(
            ApiKey.END_TXN,
            version,
            EndTxnRequest(NAME, *self.identity, is_commit),
            done,
            lambda answer: int(answer.error_code),
            self._end,
            # If many transactions share an epoch, a late EndTxn can't be distinguished from that of the next
            # transaction. KIP-890 fixes this.
            may_come_twice=version >= 5,
        )
