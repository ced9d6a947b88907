"""The applications of a simulated cluster: producers, transactional producers, and the members of groups."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from sim.application import CONNECTIONS, LEAST_PROGRESS, Application
from sim.deliveries import GroupReads, sent_value
from sim.histories import Transaction, transaction_value
from sim.plan import TOPIC, ApplicationsPlan, ShareGroupPlan
from sim.rpc import SimControllerApi
from sim.share_members import Backlog, ShareDeliveries, ShareMember
from sim.store import SimStore
from tidelog.client.errors import ClientError, TransactionAbortableError
from tidelog.client.shell.consuming.consumer import Consumer
from tidelog.client.shell.producing.delivery import Delivery
from tidelog.client.shell.producing.producer import Producer
from tidelog.client.shell.producing.transactions import GroupMetadata
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import ConfigOperation, ConfigResourceType
from tidelog.model.topics import SharePartitionKey, TopicPartition
from tidelog.rpc.controller_api import ForwardedRequest
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

if TYPE_CHECKING:
    from sim.world import World

POLL_S: Final = 0.5
MAX_BURST: Final = 4
STAYS_S: Final = 15.0
"""The mean time for which a consumer is a member before it leaves and joins again."""
COMMIT_SHARE: Final = 0.75
OFFSET_SHARE: Final = 0.5
FORGET_SHARE: Final = 0.05
MAX_RECORDS: Final = 6
RETRY_S: Final = 0.1
SHARE_GROUP: Final = "sharers"
_CONFIGURATION_VERSION: Final = 1


class SendingApplication(Application):
    """Sends records with an idempotent producer, in bursts."""

    def __init__(
        self, name: str, world: World, chance: random.Random, *, mean_pause_s: float, delivery_timeout_ms: int
    ) -> None:
        super().__init__(name, world, chance)
        self._mean_pause_s = mean_pause_s
        self._settings = {
            **CONNECTIONS,
            "linger.ms": chance.choice((0, 5, 100)),
            "batch.size": chance.choice((60, 200, 16_384)),
            "delivery.timeout.ms": delivery_timeout_ms,
        }
        self._history = world.invariants.sent

    async def live(self) -> None:
        life = self.next_life()
        async with Producer(self.bootstrap, self._settings) as producer:
            number = 0
            while not self.is_stopped:
                await asyncio.sleep(self.chance.expovariate(1 / self._mean_pause_s))
                for _ in range(self.chance.randint(1, MAX_BURST)):
                    number += 1
                    await self._send(producer, sent_value(life, number))
            await producer.flush()
        self.is_idle = True

    async def _send(self, producer: Producer[bytes, bytes], value: bytes) -> None:
        chance = self.chance
        partition = None if chance.random() < 0.3 else chance.choice(self.partitions).partition

        def told(delivery: Delivery) -> None:
            error = delivery.error()
            if error is not None:
                self._history.failed += 1
                self.note(error)
                return
            found = delivery.metadata()
            place = TopicPartition(found.topic, found.partition)
            self._history.was_acknowledged(place, value, found.offset)
            self.done[place.partition] += 1

        await producer.send(TOPIC, value, partition=partition, on_delivery=told)


class TransactionalApplication(Application):
    """Runs transactions one after the other. Some commit an offset of a group of their own."""

    def __init__(
        self, name: str, world: World, chance: random.Random, *, mean_pause_s: float, timeout_ms: int
    ) -> None:
        super().__init__(name, world, chance)
        self._mean_pause_s = mean_pause_s
        self._settings = {
            **CONNECTIONS,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": chance.choice((0, 5)),
            "delivery.timeout.ms": 20_000,
            "max.block.ms": 20_000,
        }
        self._history = world.invariants.transactions
        self._number = 0

    @property
    def group(self) -> str:
        return f"group-of-{self.name}"

    async def live(self) -> None:
        async with Producer(self.bootstrap, self._settings) as producer:
            while not self.is_stopped:
                await asyncio.sleep(self.chance.expovariate(1 / self._mean_pause_s))
                if await self._transaction(producer):
                    return  # the application goes away in the middle
                self.done.update(place.partition for place in self.partitions)
        async with Producer(self.bootstrap, self._settings):
            self.is_idle = True  # its start has ended an open transaction

    async def _transaction(self, producer: Producer[bytes, bytes]) -> bool:
        """Runs a transaction. Returns whether the application forgets about it. Raises KafkaError."""
        chance = self.chance
        self._number += 1
        transaction = self._history.begin(self.name, self._number)
        producer.begin_transaction()
        try:
            for number in range(chance.randint(1, MAX_RECORDS)):
                await self._send(producer, transaction, number)
            if chance.random() < OFFSET_SHARE:
                await self._send_offset(producer, transaction)
            if chance.random() < FORGET_SHARE:
                return True
            if chance.random() < COMMIT_SHARE:
                transaction.wants_commit = True
                await producer.commit_transaction()
                self._history.was_told(transaction, is_commit=True)
                return False
        except TransactionAbortableError as error:
            self.note(error)
        await producer.abort_transaction()
        self._history.was_told(transaction, is_commit=False)
        return False

    async def _send(self, producer: Producer[bytes, bytes], transaction: Transaction, number: int) -> None:
        def told(delivery: Delivery) -> None:
            if delivery.error() is None:
                place = TopicPartition(TOPIC, delivery.partition)
                transaction.written[place] = transaction.written.get(place, 0) + 1

        partition = self.chance.choice(self.partitions).partition
        value = transaction_value(transaction, number)
        await producer.send(TOPIC, value, partition=partition, on_delivery=told)

    async def _send_offset(self, producer: Producer[bytes, bytes], transaction: Transaction) -> None:
        try:
            await producer.send_offsets({self.partitions[0]: transaction.number}, GroupMetadata(self.group))
        except KafkaError as error:
            raise TransactionAbortableError(f"the offset was not sent: {error}") from error
        transaction.commits_offset = True

    async def committed_offset(self) -> int | None:
        """Returns the offset of the application's group. It asks until it gets an answer."""
        place = self.partitions[0]
        while True:
            with contextlib.suppress(ClientError, KafkaError):
                settings = {**CONNECTIONS, "group.id": self.group}
                async with Consumer[bytes, bytes](self.bootstrap, settings) as consumer:
                    return (await consumer.committed([place]))[place]
            await asyncio.sleep(RETRY_S)


class ReadingApplication(Application):
    """A member of a consumer group (KIP-848), which deals with the records of a poll before the next one."""

    def __init__(
        self,
        name: str,
        world: World,
        chance: random.Random,
        reads: GroupReads,
        *,
        commits_itself: bool,
        max_poll_interval_ms: int,
    ) -> None:
        super().__init__(name, world, chance)
        self._reads = reads
        self._commits_itself = commits_itself
        self._settings = {
            **CONNECTIONS,
            "group.id": reads.group,
            "isolation.level": "read_committed" if reads.reads_committed else "read_uncommitted",
            "enable.auto.commit": str(not commits_itself).lower(),
            "auto.commit.interval.ms": chance.choice((100, 1_000)),
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": max_poll_interval_ms,
            "fetch.max.wait.ms": 300,
            "max.partition.fetch.bytes": chance.choice((300, 4_000)),
            "default.api.timeout.ms": 10_000,
        }

    def has_gone_on(self) -> bool:
        return self._reads.delivered_since_healing >= LEAST_PROGRESS

    async def live(self) -> None:
        member = self.next_life()
        loop = asyncio.get_running_loop()
        async with Consumer(self.bootstrap, self._settings) as consumer:
            consumer.subscribe([TOPIC])
            leaves_s = loop.time() + self.chance.expovariate(1 / STAYS_S)
            while not self.is_idle and (self.is_stopped or loop.time() < leaves_s):
                await self._work(consumer, member)

    async def _work(self, consumer: Consumer[bytes, bytes], member: str) -> None:
        """Polls once and deals with the records."""
        records = await consumer.poll(POLL_S, max_records=self.chance.randint(1, 20))
        for record in records:
            self._reads.was_delivered(record.place, record.offset, record.value, member)
        if records and self.chance.random() < 0.3 and not self.is_stopped:
            await asyncio.sleep(self.chance.expovariate(1 / 0.3))
        for record in records:
            self._reads.was_dealt_with(record.place, record.offset)
        if records and self._commits_itself:
            with contextlib.suppress(KafkaError, ClientError):
                await consumer.commit()


class Applications:
    """The applications of a world whose plan includes them."""

    def __init__(self, world: World, plan: ApplicationsPlan) -> None:
        self._world = world
        self._plan = plan
        self.all: dict[str, Application] = {}
        self._backlog: Backlog | None = None
        """The records of the share group since its members were stopped."""

    def start(self) -> None:
        for application in self._made():
            self.all[application.name] = application
            self.start_one(application.name)

    def start_one(self, name: str) -> None:
        """Starts a process of an application, unless one is running."""
        application = self.all[name]
        if not self._world.is_alive(name):
            self._world.start_process(name, lambda process: _Life(application))

    def _chance(self) -> random.Random:
        return random.Random(self._world.chance.getrandbits(64))

    def _made(self) -> Iterator[Application]:
        world, plan = self._world, self._plan
        for number in range(plan.senders):
            yield SendingApplication(
                f"sender-{number}",
                world,
                self._chance(),
                mean_pause_s=plan.mean_pause_s,
                delivery_timeout_ms=plan.delivery_timeout_ms,
            )
        for number in range(plan.transactional):
            yield TransactionalApplication(
                f"transactor-{number}",
                world,
                self._chance(),
                mean_pause_s=plan.mean_pause_s,
                timeout_ms=plan.transaction_timeout_ms,
            )
        for number, group in enumerate(plan.groups):
            invariants = world.invariants
            reads = GroupReads(
                f"readers-{number}",
                invariants.fail,
                invariants.log,
                invariants.deleted_below,
                invariants.transactions,
                reads_committed=group.reads_committed,
            )
            invariants.group_offsets.groups[reads.group] = reads
            for member in range(group.members):
                yield ReadingApplication(
                    f"{reads.group}-{member}",
                    world,
                    self._chance(),
                    reads,
                    commits_itself=group.commits_itself,
                    max_poll_interval_ms=plan.max_poll_interval_ms,
                )

        if plan.share_group is not None:
            yield from self._made_share_members(plan.share_group)

    def _made_share_members(self, plan: ShareGroupPlan) -> Iterator[Application]:
        invariants = self._world.invariants
        deliveries = invariants.share_deliveries = ShareDeliveries(
            SHARE_GROUP,
            invariants.fail,
            invariants.log,
            invariants.transactions,
            reads_committed=plan.reads_committed,
        )
        for member in range(plan.members):
            yield ShareMember(
                f"{SHARE_GROUP}-{member}",
                self._world,
                self._chance(),
                deliveries,
                max_poll_interval_ms=self._plan.max_poll_interval_ms,
            )

    async def prepare(self) -> None:
        """Configures the share group, in the client's process."""
        plan = self._plan.share_group
        if plan is None:
            return
        settings = {
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed" if plan.reads_committed else "read_uncommitted",
            "share.delivery.count.limit": str(plan.delivery_count_limit),
            "share.record.lock.duration.ms": str(plan.lock_ms),
        }
        configs = [AlterableConfig(name, ConfigOperation.SET, value) for name, value in settings.items()]
        request = IncrementalAlterConfigsRequest(
            [AlterConfigsResource(ConfigResourceType.GROUP, SHARE_GROUP, configs)]
        )
        api = SimControllerApi(self._world.network, SimStore(self._world.network))
        while True:
            with contextlib.suppress(KafkaError):
                answer = await api.handle(
                    ApiKey.INCREMENTAL_ALTER_CONFIGS, ForwardedRequest(_CONFIGURATION_VERSION, request)
                )
                if not answer.responses[0].error_code:
                    return
            await asyncio.sleep(RETRY_S)

    # -- the end

    def stop(self) -> None:
        for application in self.all.values():
            application.is_stopped = True
        members = [each for each in self.all.values() if isinstance(each, ShareMember)]
        if members:
            self._backlog = Backlog(min(member.records_a_fetch for member in members))

    def begin_last_phase(self) -> None:
        """From now on nothing fails, and everything must succeed."""
        for application in self.all.values():
            application.done.clear()
        for reads in self._world.invariants.group_offsets.groups.values():
            reads.delivered_since_healing = 0
        if self._world.invariants.share_deliveries is not None:
            self._world.invariants.share_deliveries.delivered_since_healing = 0

    def has_gone_on(self) -> bool:
        return all(application.has_gone_on() for application in self.all.values())

    def has_settled(self) -> bool:
        """Returns whether the senders are idle and each group has committed all records."""
        are_idle = all(
            each.is_idle or isinstance(each, ReadingApplication | ShareMember) for each in self.all.values()
        )
        return are_idle and not self._unread() and not self._undelivered()

    def backlog_s(self) -> float:
        """Returns the time that the share group may have taken for the records that it has finished since its
        members were stopped. With one record a fetch, a long backlog needs many fetches.
        """
        if self._backlog is None:
            return 0.0
        for topic_partition in self._world.data_partitions:
            start_offset = self._share_start(topic_partition)
            if start_offset is not None:
                self._backlog.reached(topic_partition, start_offset)
        return self._backlog.due_s

    async def ask_at_last(self) -> None:
        """Compares the committed offset of each transactional application's group with its transactions."""
        invariants = self._world.invariants
        for application in self.all.values():
            if isinstance(application, TransactionalApplication):
                found = await application.committed_offset()
                last = invariants.transactions.last_with_offset(application.name)
                expected = None if last is None else int(last.rpartition(":")[2])
                if found != expected:
                    invariants.fail(
                        "offsets of a transaction count when it does",
                        f"{application.group}: {found} is committed, last was {expected}",
                    )

    def check_end(self) -> None:
        """Checks that no record of the share group is lost."""
        deliveries = self._world.invariants.share_deliveries
        if deliveries is not None:
            for topic_partition in self._world.data_partitions:
                deliveries.check_end(topic_partition)

    def _undelivered(self) -> list[str]:
        """Returns the share partitions whose states are not final up to the end of the log."""
        deliveries = self._world.invariants.share_deliveries
        if deliveries is None:
            return []
        missing = []
        for topic_partition in self._world.data_partitions:
            start_offset = self._share_start(topic_partition) or 0
            first = deliveries.unfinished(topic_partition, start_offset)
            if first is not None:
                missing.append(f"{SHARE_GROUP} has not finished {topic_partition} {first}")
        return missing

    def _share_start(self, topic_partition: TopicPartition) -> int | None:
        """Returns the start of the share partition at its leader, None if it is not known there."""
        state, topic = self._world.partition_state(topic_partition), self._world.topic()
        node = None if state is None else self._world.node(state.leader)
        if node is None or node.broker is None or node.broker.share_partitions_if_used is None:
            return None
        assert topic is not None
        key = SharePartitionKey(SHARE_GROUP, topic.topic_id, topic_partition.partition)
        found = node.broker.share_partitions_if_used.find(key)
        return None if found is None or found.core is None else int(found.core.start_offset)

    def _unread(self) -> list[str]:
        return [
            f"{reads.group} has not committed {topic_partition} from {reads.unread(topic_partition)}"
            for reads in self._world.invariants.group_offsets.groups.values()
            for topic_partition in self._world.data_partitions
            if reads.unread(topic_partition) is not None
        ]

    def describe(self) -> list[str]:
        lines = [
            f"  {each.name} of life {each.lives}, {each.done}: {each.last_error}"
            for each in self.all.values()
        ]
        sent = self._world.invariants.sent
        lines.append(f"  {sent.acknowledged} records of senders acknowledged, {sent.failed} failed")
        if self._backlog is not None:
            lines.append(f"  {SHARE_GROUP} has finished {self._backlog.finished} offsets since the stop")
        return [*lines, *self._unread(), *self._undelivered()]


class _Life:
    """The service of an application's process."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.run = application.run
