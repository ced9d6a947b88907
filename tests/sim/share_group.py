"""One share partition in virtual time: its leaders, its consumers, and the shard with its state.

The shells and cores of the leaders and the core of the state's shard are real. The log is a list of batches.
The connection to the coordinator is simulated: requests arrive in order, late or never, answers get lost, and
the coordinator restarts from its log, without the records that it had not replicated. Leaders change, and an
old leader goes on until it hears of it. With an odd seed, the group has a dead letter topic, to which writes
fail, take long, or succeed without an answer. `python -m sim.share_group FIRST_SEED SEEDS` runs many seeds.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final, cast
from unittest.mock import patch
from uuid import UUID

from sim.loop import SimLoop
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.share import dead_letter_copies
from tidelog.broker.share.dead_letter_copies import DeadLetterCopies
from tidelog.broker.share.dead_letter_records import NO_RECORD, DeadLetter, ReadLetters
from tidelog.broker.share.deliveries import AcknowledgedBatch, DeadLetters, LogBatch, Wanted
from tidelog.broker.share.partition_core import SharePartitionCore
from tidelog.broker.share.share_partition import SharePartition, ShareParts
from tidelog.group_coordinator.shard_core import (
    ClusterImage,
    CoordinatorRecord,
    ReplayedRecord,
    ShardRequest,
    TopicImage,
)
from tidelog.group_coordinator.share_state_core import ShareStateCore
from tidelog.kernel.clock import ManualClock
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.kernel.timer import LoopTimer
from tidelog.model import dead_letters
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import SharePartitionKey, TopicPartition
from tidelog.records.record import iterate_records
from tidelog.rpc.broker_commands import PartitionState, TopicState
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.group_settings import GroupSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import (
    initialize_share_group_state,
    read_share_group_state,
    write_share_group_state,
)
from tidelog.wire.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
)
from tidelog.wire.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)

TOPIC: Final = UUID(int=7)
KEY: Final = SharePartitionKey("g", TOPIC, 0)
IMAGE: Final = ClusterImage(1, {"t": TopicImage(TOPIC, "t", 1)}, {TOPIC: "t"})
NOW: Final = WallMs(1_700_000_000_000)
MEMBERS: Final = ("a", "b", "c")
STEPS: Final = 150
REQUEST_TIMEOUT_S: Final = 3.0
SOURCE: Final = TopicPartition("t", 0)
DEAD: Final = "dlq.t"
ACCEPT, RELEASE, REJECT = 1, 2, 3


class ViolationError(AssertionError):
    """A property does not hold. The message says which one."""


class Coordinator:
    """The owner of the state's shard, over its restarts."""

    def __init__(self, chance: random.Random) -> None:
        name = "share.coordinator.snapshot.update.records.per.snapshot"
        self._settings = BrokerSettings.parse({name: str(chance.choice((0, 3, 50)))})
        self._log: list[CoordinatorRecord] = []
        self._answered = 0
        """The length of the log when the last answer left: what is certainly replicated."""
        self.generation = 0
        self._core = self._replayed()
        data = initialize_share_group_state.PartitionData(0, 0, 0)
        topic = initialize_share_group_state.InitializeStateData(TOPIC, [data])
        request = initialize_share_group_state.InitializeShareGroupStateRequest("g", [topic])
        self.handle(ApiKey.INITIALIZE_SHARE_GROUP_STATE, request)
        self.answered()

    def _replayed(self) -> ShareStateCore:
        core = ShareStateCore(self._settings)
        for offset, record in enumerate(self._log):
            core.replay(ReplayedRecord(record.key, record.value, NOW, None), offset)
        core.activate(IMAGE, NOW)
        return core

    def restart(self, chance: random.Random) -> None:
        """Starts from the log, which may have lost what was not replicated."""
        self.generation += 1
        del self._log[chance.randint(self._answered, len(self._log)) :]
        self._answered = len(self._log)
        self._core = self._replayed()

    def handle(self, api_key: int, request: Any) -> Any:
        decision = self._core.handle(ShardRequest("to", api_key, 0, request), NOW)
        self._log += decision.records
        return decision.replies[0].message

    def answered(self) -> None:
        self._answered = len(self._log)


class Connection:
    """The connection of one leader to the coordinator (`ShareState`). Requests arrive in their order."""

    def __init__(self, group: ShareGroup) -> None:
        self._group = group
        self._arrived = 0.0

    async def read(self, request: ReadShareGroupStateRequest) -> ReadShareGroupStateResponse:
        answer, error = await self._ask(ApiKey.READ_SHARE_GROUP_STATE, request)
        if error:
            result = read_share_group_state.PartitionResult(0, error)
            answer = ReadShareGroupStateResponse([read_share_group_state.ReadStateResult(TOPIC, [result])])
        return cast(ReadShareGroupStateResponse, answer)

    async def write(self, request: WriteShareGroupStateRequest) -> WriteShareGroupStateResponse:
        answer, error = await self._ask(ApiKey.WRITE_SHARE_GROUP_STATE, request)
        if error:
            result = write_share_group_state.PartitionResult(0, error)
            answer = WriteShareGroupStateResponse([write_share_group_state.WriteStateResult(TOPIC, [result])])
        return cast(WriteShareGroupStateResponse, answer)

    async def _ask(self, api_key: int, request: Any) -> tuple[Any, ErrorCode]:
        group, coordinator = self._group, self._group.coordinator
        generation = coordinator.generation
        if group.happens(0.05):
            return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        loop = asyncio.get_running_loop()
        late_s = group.chance.expovariate(1 / 2) if group.happens(0.1) else group.chance.random() * 0.01
        self._arrived = max(self._arrived + 0.0001, loop.time() + late_s)
        answered: asyncio.Future[tuple[Any, ErrorCode]] = loop.create_future()

        def arrives() -> None:
            if coordinator.generation != generation:
                self._answer(answered, None, ErrorCode.NOT_COORDINATOR)
                return
            answer = coordinator.handle(api_key, request)
            loop.call_later(group.chance.random() * 0.01, replicated, answer)

        def replicated(answer: Any) -> None:
            if coordinator.generation != generation:
                self._answer(answered, None, ErrorCode.NOT_COORDINATOR)
                return
            coordinator.answered()
            if not group.happens(0.1):
                self._answer(answered, answer, ErrorCode.NONE)

        loop.call_at(self._arrived, arrives)
        loop.call_later(REQUEST_TIMEOUT_S, self._answer, answered, None, ErrorCode.REQUEST_TIMED_OUT)
        return await answered

    @staticmethod
    def _answer(answered: asyncio.Future[tuple[Any, ErrorCode]], answer: Any, error: ErrorCode) -> None:
        if not answered.done():
            answered.set_result((answer, error))


@dataclass
class Log:
    """The part of a replica that a share partition uses."""

    leader_epoch: int
    log_start_offset: int = 0
    high_watermark: int = 0
    is_high_watermark_known: bool = True


@dataclass
class Replicated:
    core: Log
    topic_partition: TopicPartition


class DeadLetterTopic:
    """The dead letter topic as one leader reaches it (`FindTopic` and `WriteBatch`)."""

    def __init__(self, group: ShareGroup, epoch: int) -> None:
        self._group = group
        self._epoch = epoch

    async def find(self, name: str) -> TopicState:
        if self._group.happens(0.1):
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        state = PartitionState(name, TOPIC, 0, 1, 0, (1,), (1,), 1)
        return TopicState(name, TOPIC, (state,), {})

    def max_message_bytes(self, topic: TopicState) -> int:
        return 2_000

    async def write(self, topic: str, partition: int, batch: bytearray) -> None:
        group = self._group
        await asyncio.sleep(group.chance.expovariate(1 / 2) if group.happens(0.2) else 0.005)
        if group.happens(0.1):
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        for record in iterate_records(batch):
            offset = int(dict(record.headers)[dead_letters.OFFSET] or b"")
            group.dead.setdefault(offset, self._epoch)
        await asyncio.sleep(0.005)
        if group.happens(0.1):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    async def close(self) -> None: ...


class Leader:
    """A leader of the partition. It knows that another one leads when `is_deposed`."""

    def __init__(self, group: ShareGroup, epoch: int) -> None:
        self.group = group
        self.epoch = epoch
        self.is_deposed = False
        self.replica = cast(Replica, Replicated(Log(epoch), SOURCE))
        self.parts = ShareParts(
            Connection(group),
            group,
            group,
            group.timer,
            cast(Executor, None),
            lambda replica, leader_epoch: not self.is_deposed,
            group.spawn,
            lambda key: None,
            self._copy_dead_letters,
        )
        topic = DeadLetterTopic(group, epoch)
        self.copies = DeadLetterCopies(topic, topic, ManualClock(), cast(Executor, None), group.spawn)
        self.open()

    def _copy_dead_letters(self, partition: SharePartition) -> None:
        self.copies.begin(partition)

    def open(self) -> None:
        self.partition = SharePartition(KEY, self.replica, self.parts, lambda _: None)
        self.partition.members.update(MEMBERS)
        self.partition.start()


@dataclass
class Delivered:
    """Records that a member has from a leader."""

    leader: Leader
    member: str
    first: int
    last: int


@dataclass
class ShareGroup:
    """The world of one seed, and what its consumers saw."""

    seed: int
    loop: SimLoop
    chance: random.Random
    is_faulty: bool = True
    log: list[LogBatch] = field(default_factory=list)
    held: list[Delivered] = field(default_factory=list)
    confirmed: dict[int, int] = field(default_factory=dict)
    """The leader epoch in which the acceptance of each record was confirmed."""
    dead: dict[int, int] = field(default_factory=dict)
    """The leader epoch in which each dead letter was written first."""
    offered: set[int] = field(default_factory=set)
    """The records whose acceptance was sent."""
    excused: set[int] = field(default_factory=set)
    """The records that need not be delivered again: their acceptance or rejection was sent, or they were
    delivered up to the limit.
    """
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    not_before_ms: dict[tuple[int, int], int] = field(default_factory=dict)
    """The earliest delivery of a record with a delivery count, after a release that was confirmed."""
    deliveries: int = 0
    fenced: int = 0

    def __post_init__(self) -> None:
        self.timer = LoopTimer(self.loop)
        self.coordinator = Coordinator(self.chance)
        self.settings = GroupSettings(
            share_delivery_count_limit=self.chance.choice((2, 3, 5)),
            tidelog_share_retry_backoff_ms=self.chance.choice((0, 500, 20_000)),
            tidelog_share_breaker_failure_percentage=self.chance.choice((0, 0, 50)),
            tidelog_share_breaker_pause_ms=2_000,
            errors_deadletterqueue_topic_name=DEAD if self.seed % 2 else "",
        )
        self.leaders = [Leader(self, 0)]

    @property
    def has_dead_letters(self) -> bool:
        return bool(self.settings.errors_deadletterqueue_topic_name)

    async def read_letters(
        self, replica: Replica, wanted: list[DeadLetters], *_: object, copies: bool
    ) -> ReadLetters:
        """Replaces `dead_letter_copies.read_letters`."""
        deliverable = {
            at for batch in self.log if batch.is_deliverable for at in range(batch.first, batch.last + 1)
        }
        letters = [
            DeadLetter(at, found.delivery_count, found.is_rejected, NO_RECORD)
            for found in wanted
            for at in range(found.first, found.last + 1)
            if at in deliverable
        ]
        return ReadLetters(letters, wanted[-1].last + 1)

    def for_group(self, group_id: str) -> GroupSettings:
        return self.settings

    def monotonic_ms(self) -> MonotonicMs:
        return self.timer.monotonic_ms()

    def wall_ms(self) -> WallMs:
        return WallMs(NOW + self.timer.monotonic_ms())

    def happens(self, probability: float) -> bool:
        return self.is_faulty and self.chance.random() < probability

    def spawn(self, work: Coroutine[object, None, None]) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.problems.append(repr(task.exception()))

    # -- events

    def append(self) -> None:
        end = self.log[-1].last + 1 if self.log else 0
        first = end + self.chance.choice((0, 0, 0, 2))
        last = first + self.chance.randint(0, 9)
        self.log.append(LogBatch(first, last, self.chance.random() < 0.9))

    def change_leader(self) -> None:
        leader = Leader(self, self.leaders[-1].epoch + 1)
        old = self.leaders[-1]
        self.leaders.append(leader)
        self.loop.call_later(self.chance.expovariate(1 / 5), lambda: setattr(old, "is_deposed", True))

    def fetch(self) -> None:
        leader = self.leaders[-1] if self.chance.random() < 0.8 else self.chance.choice(self.leaders)
        if leader.is_deposed:
            return
        if leader.partition.is_over:
            self.fenced += 1
            leader.open()
        core = leader.partition.core
        if core is None:
            return
        member, limits = self.chance.choice(MEMBERS), leader.partition.limits
        batches = [batch for batch in self.log if batch.last >= core.next_fetch_offset]
        wanted = Wanted(member, self.chance.randint(1, 20), 5)
        for first, last, count in core.acquire(wanted, batches, self.timer.monotonic_ms(), limits):
            self.held.append(Delivered(leader, member, first, last))
            for offset in range(first, last + 1):
                self.deliveries += 1
                epoch = self.confirmed.get(offset)
                if epoch is not None and epoch <= leader.epoch:
                    raise ViolationError(f"offset {offset} was accepted in epoch {epoch}, and comes again")
                epoch = self.dead.get(offset)
                if epoch is not None and epoch <= leader.epoch:
                    raise ViolationError(
                        f"offset {offset} is a dead letter of epoch {epoch}, and comes again"
                    )
                if count > limits.delivery_count:
                    raise ViolationError(f"offset {offset} is delivered {count} times")
                if self.wall_ms() < self.not_before_ms.get((offset, count), 0):
                    raise ViolationError(f"offset {offset} is delivered before its time")
                if count == limits.delivery_count:
                    self.excused.add(offset)
        leader.partition.core_changed()

    def acknowledge(self) -> None:
        if not self.held:
            return
        delivered = self.held.pop(self.chance.randrange(len(self.held)))
        kind = self.chance.choice((ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT))
        first, last = delivered.first, delivered.last
        if self.chance.random() < 0.3:
            last = self.chance.randint(first, last)
            if last < delivered.last:
                self.held.append(Delivered(delivered.leader, delivered.member, last + 1, delivered.last))
        self.spawn(self._acknowledge(delivered.leader, delivered.member, first, last, kind))

    async def _acknowledge(self, leader: Leader, member: str, first: int, last: int, kind: int) -> None:
        core = leader.partition.core
        start = 0 if core is None else core.start_offset
        counts = {} if core is None else _delivery_counts(core, first, last)
        released_ms = self.wall_ms()
        result = leader.partition.acknowledge(member, [AcknowledgedBatch(first, last, [kind])])
        if kind == ACCEPT and result.error is None:
            self.offered.update(range(first, last + 1))
        if kind != RELEASE and result.error is None:
            self.excused.update(range(first, last + 1))
        while result.error is None:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.01)
        if result.error is ErrorCode.NONE and kind == ACCEPT:
            for offset in range(max(first, start), last + 1):
                self.confirmed.setdefault(offset, leader.epoch)
        if result.error is ErrorCode.NONE and kind == RELEASE:
            retry = leader.partition.limits.retry
            for offset, count in counts.items():
                self.not_before_ms[offset, count + 1] = released_ms + retry.delay_ms(count)

    def leave(self) -> None:
        leader, member = self.leaders[-1], self.chance.choice(MEMBERS)
        leader.partition.leave(member)
        leader.partition.members.add(member)

    # -- the run

    async def run(self) -> None:
        """Lets things happen, then heals everything, and checks that no record is lost."""
        events = (
            (20, self.append),
            (40, self.fetch),
            (35, self.acknowledge),
            (3, self.change_leader),
            (3, lambda: self.coordinator.restart(self.chance)),
            (3, self.leave),
        )
        weights, calls = [weight for weight, _ in events], [call for _, call in events]
        for _ in range(STEPS):
            self.chance.choices(calls, weights)[0]()
            is_long = self.chance.random() < 0.05
            await asyncio.sleep(self.chance.uniform(1, 20) if is_long else self.chance.random() * 0.02)
        self.is_faulty = False
        for leader in self.leaders:
            leader.is_deposed = True
        self.held.clear()
        self.leaders.append(Leader(self, self.leaders[-1].epoch + 1))
        await self._drain()

    async def _drain(self) -> None:
        leader = self.leaders[-1]
        for _ in range(3_000):
            await asyncio.sleep(1)
            self.fetch()
            while self.held:
                delivered = self.held.pop()
                if delivered.leader is leader:
                    span = delivered.first, delivered.last
                    await self._acknowledge(leader, delivered.member, *span, ACCEPT)
            core = leader.partition.core
            end = self.log[-1].last if self.log else -1
            if core is not None and core.start_offset > end:
                break
        for batch in self.log:
            for offset in range(batch.first, batch.last + 1):
                if not batch.is_deliverable or offset in self.confirmed:
                    continue
                if offset not in self.excused:
                    raise ViolationError(f"offset {offset} is lost")
                if self.has_dead_letters and offset not in self.dead and offset not in self.offered:
                    raise ViolationError(f"offset {offset} is no dead letter")
        if self.problems:
            raise ViolationError(self.problems[0])


def _delivery_counts(core: SharePartitionCore, first: int, last: int) -> dict[int, int]:
    return {
        offset: found.delivery_count
        for found in core.ranges.overlapping(first, last)
        for offset in range(max(found.first, first), min(found.last, last) + 1)
    }


def simulate(seed: int) -> ShareGroup:
    """Runs one seed. Raises ViolationError."""
    chance = random.Random(seed)
    loop = SimLoop(chance)
    group: list[ShareGroup] = []
    outcome: list[BaseException | None] = []

    async def main() -> None:
        group.append(ShareGroup(seed, loop, chance))
        with patch.object(dead_letter_copies, "read_letters", group[0].read_letters):
            await group[0].run()

    def ended(task: asyncio.Task[None]) -> None:
        outcome.append(task.exception())

    loop.spawn_outside(main()).add_done_callback(ended)
    loop.run_until(lambda: bool(outcome))
    loop.forget()
    if outcome[0] is not None:
        raise outcome[0]
    return group[0]


def main(first_seed: int, seeds: int) -> int:
    failed, deliveries, changes = [], 0, 0
    for seed in range(first_seed, first_seed + seeds):
        try:
            group = simulate(seed)
            deliveries, changes = deliveries + group.deliveries, changes + len(group.leaders) - 2
        except ViolationError as violation:
            failed.append(seed)
            print(f"seed {seed}: {violation}")
    print(
        f"{seeds} seeds from {first_seed}: {len(failed)} failed, {deliveries} deliveries, "
        f"{changes} changes of leaders"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
