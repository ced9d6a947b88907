"""One simulation: a cluster with the seed's plan, clients and faults. At the end everything is healed, and
the cluster must settle with nothing lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from sim import product, tcp
from sim.administration import Operator
from sim.applications import Applications
from sim.broker_node import BrokerNode, broker_name
from sim.clients import CarelessProducer, Metadata, SimConsumer, SimProducer
from sim.controller_node import ControllerNode, CoordinatorNode, coordinator_name
from sim.coordination import Coordination
from sim.disk import SimDisk, SimPartitionLog
from sim.faults import Faults
from sim.invariants import Invariants
from sim.loop import SimLoop, SimProcess
from sim.network import Network
from sim.plan import TOPIC, Plan, plan_for, with_applications, with_streams
from sim.rpc import SimControllerApi, controller_name
from sim.store import STORE, SimStore, StoreServer
from sim.trace import Trace
from tidelog.client.errors import ClientError
from tidelog.metadata.entries import (
    ISR_CHANGE_PREFIX,
    TOPIC_PREFIX,
    BrokerEntry,
    PartitionStateEntry,
    TopicEntry,
    broker_key,
    decode_entry,
    partition_state_key,
    topic_key,
)
from tidelog.metadata.store import StoreError
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.controller_api import ForwardedRequest
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

LEAST_EVENTS: Final = 2000
LEAST_FAULTS: Final = 10
LEAST_ACKNOWLEDGED: Final = 200
START_S: Final = 60.0
SETTLE_S: Final = 90.0
"""The time in which a healed cluster must replicate and acknowledge everything. A share group gets more for
the records that it finishes, and nothing while it stands still.
"""
APPLICATIONS: Final = "applications "
"""The beginning of the seed of the applications. The other choices do not depend on them."""
STREAMS: Final = "streams "
"""The beginning of the seed of the streams group."""
POLL_S: Final = 0.1
FRAMES_SHOWN: Final = 5
MAX_LOAD_S: Final = 200.0
IDS_OF_NO_BLOCK: Final = 1 << 40
"""The controller never assigns producer ids from here on."""


class Outcome(NamedTuple):
    seed: int
    failure: str | None
    events: int
    faults: int
    acknowledged: int
    trace_hash: int
    virtual_s: float
    counts: dict[str, int]
    last_events: list[str]
    phase: str


def simulate(seed: int, fault_planted: Callable[[], AbstractContextManager[None]] | None = None) -> Outcome:
    """Runs everything that follows from `seed`.

    Killed processes are collected at the end, not during the next run. The effects of their `finally` blocks
    are ignored.
    """
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with product.silent(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # from work that never began
            with contextlib.nullcontext() if fault_planted is None else fault_planted():
                outcome = World(seed).run()
            gc.collect()
    finally:
        sys.unraisablehook = before
    return outcome


def plan_of(seed: int, chance: random.Random | None = None) -> Plan:
    """Returns the plan of a seed. `chance` is its source of random numbers, which makes the later choices."""
    plan = plan_for(chance or random.Random(seed))
    plan = with_applications(random.Random(APPLICATIONS + str(seed)), plan)
    return with_streams(random.Random(STREAMS + str(seed)), plan)


class World:
    """Call `run()` once."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.plan = plan_of(seed, self.chance)
        self.trace = Trace()
        self.loop = SimLoop(random.Random(self.chance.getrandbits(64)))
        self.network = Network(self.loop, self.trace, random.Random(self.chance.getrandbits(64)))
        self.invariants = Invariants(self.loop, self.trace)
        self.disks = {
            broker_id: SimDisk(random.Random(self.chance.getrandbits(64))) for broker_id in self.plan.brokers
        }
        self.producers: list[SimProducer] = []
        self.careless: list[CarelessProducer] = []
        self.consumers: list[SimConsumer] = []
        self.coordination = None if self.plan.coordination is None else Coordination(self)
        applications = self.plan.applications
        self.applications = None if applications is None else Applications(self, applications)
        self.loop.connect = tcp.connect
        self.phase = "start"
        self.is_over = False
        self.on_moment: Callable[..., None] = lambda *_: None
        """Called at moments at which a fault does the most damage: (event, process)."""
        self.on_proposal: Callable[..., None] = lambda *_: None
        """Called for each ISR change that a leader proposes: (process, partition, proposal)."""
        self.loop.on_step = self._after_step
        self.loop.on_problem = self._note_problem

    # -- processes

    def new_name(self) -> str:
        """Returns a name where tidelog would draw a UUID."""
        return f"{self.chance.getrandbits(64):016x}"

    def start_process(self, name: str, make: Callable[[SimProcess], Any]) -> SimProcess:
        process = SimProcess(self.loop, name)
        process.network = self.network
        self.network.processes[name] = process
        process.context.run(self._start_service, process, make)
        return process

    def _start_service(self, process: SimProcess, make: Callable[[SimProcess], Any]) -> None:
        process.service = make(process)
        if hasattr(process.service, "run"):
            process.spawn(process.service.run())

    def start_broker(self, broker_id: int) -> None:
        name = broker_name(broker_id)
        if not self.is_alive(name):
            disk = self.disks[broker_id]
            self.start_process(name, lambda process: BrokerNode(self, process, broker_id, disk))

    def start_controller(self, controller_id: int) -> None:
        name = controller_name(controller_id)
        if not self.is_alive(name):
            self.start_process(name, lambda process: ControllerNode(self, process, controller_id))

    def start_coordinator(self, coordinator_id: int) -> None:
        name = coordinator_name(coordinator_id)
        if not self.is_alive(name):
            self.start_process(name, lambda process: CoordinatorNode(self, process, coordinator_id))

    def is_alive(self, name: str) -> bool:
        process = self.network.processes.get(name)
        return process is not None and process.is_alive

    def process(self, name: str) -> SimProcess | None:
        process = self.network.processes.get(name)
        return process if process is not None and process.is_alive else None

    def node(self, broker_id: int) -> BrokerNode | None:
        process = self.process(broker_name(broker_id))
        return None if process is None else process.service

    @property
    def store(self) -> StoreServer:
        server: StoreServer = self.network.processes[STORE].service
        return server

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        """Returns all partitions that are checked."""
        return self.plan.topic_partitions

    @property
    def data_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, index) for index in range(len(self.plan.assignments))]

    def partition_state(self, topic_partition: TopicPartition) -> PartitionStateEntry | None:
        item = self.store.space.get(partition_state_key(*topic_partition))
        entry = None if item is None else decode_entry(item.key, item.value)
        return entry if isinstance(entry, PartitionStateEntry) else None

    def topic(self, name: str = TOPIC) -> TopicEntry | None:
        item = self.store.space.get(topic_key(name))
        entry = None if item is None else decode_entry(item.key, item.value)
        return entry if isinstance(entry, TopicEntry) else None

    def replicas_of(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        """Returns the current replicas, including those that are being added or removed."""
        topic = self.topic(topic_partition.topic)
        return () if topic is None else topic.assignments[topic_partition.partition]

    def _assigned_to(self, broker_id: int) -> set[TopicPartition]:
        entries = [decode_entry(item.key, item.value) for item in self.store.space.list_prefix(TOPIC_PREFIX)]
        return {
            TopicPartition(entry.name, index)
            for entry in entries
            if isinstance(entry, TopicEntry)
            for index, replicas in enumerate(entry.assignments)
            if broker_id in replicas
        }

    # -- hooks

    def log_changed(self, process: SimProcess, topic_partition: TopicPartition, log: SimPartitionLog) -> None:
        self.trace.add(self.loop.now, "log", process, topic_partition.partition, log.log_end_offset)
        self.on_moment("log", process)

    def _stored(self, source: SimProcess | None, changes: Any, revision: int) -> None:
        self.invariants.stored(source, changes, revision)
        if source is not None:
            self.on_moment("store", source)

    def _after_step(self, process: SimProcess | None) -> None:
        if process is not None:
            service = process.service
            if type(service) is BrokerNode and service.broker is not None:
                self.invariants.check_broker(process, service.broker.hosted.replicas)

    def _note_problem(self, context: dict[str, Any]) -> None:
        """Records an error that nobody caught. It is a bug, unless it is the way in which services end."""
        error = context.get("exception")
        if isinstance(
            error, KafkaError | ClientError | ConnectionError | StoreError | asyncio.CancelledError
        ):
            return
        frames = traceback.extract_tb(error.__traceback__)[-FRAMES_SHOWN:] if error else []
        where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
        self.invariants.fail(
            "nothing crashes", f"{context.get('message')}: {error!r} {context.get('task', '')} {where}"
        )

    # -- the run

    def run(self) -> Outcome:
        with product.installed(self):
            main = self.loop.spawn_outside(self._scenario())
            self.loop.run_until(lambda: main.done() or self.invariants.violation is not None)
            self.is_over = True
            if not main.done():
                failure = self.invariants.violation or "the simulation has nothing left to do"
            else:
                error = main.exception()
                failure = None if error is None else repr(error)
        self.loop.forget()
        return Outcome(
            self.seed,
            failure or self._worthless(),
            self.trace.event_count,
            self.trace.counts["fault"],
            self.acknowledged_records,
            self.trace.hash,
            self.loop.now,
            dict(self.trace.counts),
            self.trace.lines(),
            self.phase,
        )

    def _worthless(self) -> str | None:
        """Returns the reason why a run proves nothing: too little happened."""
        found = (self.trace.event_count, self.trace.counts["fault"], self.acknowledged_records)
        least = (LEAST_EVENTS, LEAST_FAULTS, LEAST_ACKNOWLEDGED)
        if any(have < need for have, need in zip(found, least, strict=True)):
            return f"the seed proves nothing: events, faults, acknowledged {found}, at least {least}"
        return None

    @property
    def acknowledged_records(self) -> int:
        return sum(producer.acknowledged_records for producer in self.producers)

    async def _scenario(self) -> None:
        plan = self.plan
        self.start_process(STORE, lambda process: StoreServer(process, self.trace, plan.history_events))
        self.store.on_change = self._stored
        for controller_id in plan.controllers:
            self.start_controller(controller_id)
        for broker_id in plan.brokers:
            self.start_broker(broker_id)
        client = self.start_process("client", lambda process: None)
        await self.until(self._all_registered, START_S, "brokers register")
        for name, assignments in plan.all_assignments.items():
            created = client.spawn(self._create_topic(name, assignments))
            await self.until(created.done, START_S, f"{name} is created")
        if self.applications is not None:
            prepared = client.spawn(self.applications.prepare())
            await self.until(prepared.done, START_S, "the share group is configured")
        self._start_clients(client)
        if self.coordination is not None:
            self.coordination.start(client)
        if self.applications is not None:
            self.applications.start()
        self.phase = "faults"
        faults = Faults(self, random.Random(self.chance.getrandbits(64)))
        await faults.run(plan.active_s, LEAST_FAULTS)
        self.phase = "heal"
        faults.heal()
        if self.applications is not None:
            self.applications.begin_last_phase()
        await self.until(self._has_gone_on, MAX_LOAD_S, "the load continues")
        for client_task in (*self.producers, *self.careless, self._operator):
            client_task.is_stopped = True
        if self.coordination is not None:
            self.coordination.stop()
        if self.applications is not None:
            self.applications.stop()
        self.phase = "settle"
        backlog_s = None if self.applications is None else self.applications.backlog_s
        await self.until(self._has_settled, SETTLE_S, "the cluster settles", backlog_s)
        self._check_end()
        if self.coordination is not None:
            told = client.spawn(self.coordination.ask_at_last())
            await self.until(told.done, SETTLE_S, "committed offsets are returned")
        if self.applications is not None:
            self.applications.check_end()
            asked = client.spawn(self.applications.ask_at_last())
            await self.until(asked.done, SETTLE_S, "offsets of transactions are returned")

    def _has_gone_on(self) -> bool:
        return (
            self.acknowledged_records >= LEAST_ACKNOWLEDGED
            and (self.coordination is None or self.coordination.has_gone_on())
            and (self.applications is None or self.applications.has_gone_on())
        )

    async def until(
        self,
        holds: Callable[[], bool],
        within_s: float,
        what: str,
        progress_s: Callable[[], float] | None = None,
    ) -> None:
        """Waits at most `within_s`, and the time that the progress so far may have taken."""
        deadline = self.loop.now + within_s
        while not holds():
            if self.loop.now > deadline + (0.0 if progress_s is None else progress_s()):
                self.invariants.fail(f"{what} in time", self.describe())
                await asyncio.sleep(within_s)
            await asyncio.sleep(POLL_S)

    def _all_registered(self) -> bool:
        return all(
            self.store.space.get(BrokerEntry(broker_id, ()).key) is not None
            for broker_id in self.plan.brokers
        )

    async def _create_topic(self, name: str, assignments: tuple[tuple[int, ...], ...]) -> None:
        api = SimControllerApi(self.network, SimStore(self.network))
        topic = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(index, list(replicas))
                for index, replicas in enumerate(assignments)
            ],
            configs=[CreatableTopicConfig(name, value) for name, value in self.plan.topic_settings.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
        while self.partition_state(TopicPartition(name, 0)) is None:
            with contextlib.suppress(KafkaError):
                await api.handle(ApiKey.CREATE_TOPICS, ForwardedRequest(7, request))
            await asyncio.sleep(POLL_S)

    def _start_clients(self, client: SimProcess) -> None:
        plan, brokers = self.plan, list(self.plan.brokers)

        def chance() -> random.Random:
            return random.Random(self.chance.getrandbits(64))

        metadata = Metadata(self.network, chance(), brokers)
        for topic_partition in self.data_partitions:
            for number in range(plan.producers_a_partition):
                self.producers.append(
                    SimProducer(
                        IDS_OF_NO_BLOCK + 1000 * topic_partition.partition + number,
                        topic_partition,
                        self.network,
                        metadata,
                        self.invariants,
                        chance(),
                        mean_pause_s=plan.mean_pause_s,
                    )
                )
            if plan.has_careless_producers:
                self.careless.append(
                    CarelessProducer(
                        topic_partition, self.network, metadata, chance(), mean_pause_s=plan.mean_pause_s
                    )
                )
            name = f"consumer-{topic_partition.partition}"
            consumer = SimConsumer(name, topic_partition, self.network, metadata, self.invariants, chance())
            self.consumers.append(consumer)
            if plan.has_rack_aware_consumers:
                consumer.reads_from = partial(self.replicas_of, topic_partition)
        self._operator = Operator(self, metadata, chance())
        for work in (*self.producers, *self.careless, *self.consumers, self._operator):
            client.spawn(work.run())

    # -- final checks

    def _has_settled(self) -> bool:
        if not all(producer.is_idle for producer in self.producers):
            return False
        if self.coordination is not None and not self.coordination.has_settled():
            return False
        if self.applications is not None and not self.applications.has_settled():
            return False
        return not self._unsettled_services() and all(
            self._is_settled(topic_partition) for topic_partition in self.topic_partitions
        )

    def _unsettled_services(self) -> list[str]:
        """Returns what is missing until every service knows the store's content."""
        missing = []
        controllers = [self.process(controller_name(c)) for c in self.plan.controllers]
        active = [c for c in controllers if c and c.service.controller and c.service.controller.is_active]
        if len(active) != 1:
            missing.append(f"active controllers: {active}")
        if self.store.space.list_prefix(ISR_CHANGE_PREFIX):
            missing.append("ISR changes that no controller has read")
        topic = self.topic()
        alive = {b: self.store.space.get(broker_key(b)) for b in self.plan.brokers}
        epochs = {b: item.create_revision for b, item in alive.items() if item is not None}
        for broker_id in self.plan.brokers:
            node = self.node(broker_id)
            if node is None or not node.is_serving or topic is None:
                missing.append(f"broker {broker_id} does not serve")
                continue
            view = node.broker.metadata
            assigned = self._assigned_to(broker_id)
            if (
                set(node.broker.hosted.replicas) != assigned
                or set(self.disks[broker_id].partitions) != assigned
            ):
                missing.append(
                    f"broker {broker_id} hosts {list(node.broker.hosted.replicas)}, not {assigned}"
                )
            if {b: known.broker_epoch for b, known in view.brokers.items()} != epochs:
                missing.append(f"broker {broker_id} knows brokers {list(view.brokers.values())} of {epochs}")
            for topic_partition in self.topic_partitions:
                known, state = view.partition(*topic_partition), self.partition_state(topic_partition)
                assert state is not None
                stored = (state.leader, state.leader_epoch, state.isr, state.elr)
                if known is None or (known.leader, known.leader_epoch, known.isr, known.elr) != stored:
                    missing.append(f"broker {broker_id} knows {known}, but the store has {state}")
        return missing

    def _is_settled(self, topic_partition: TopicPartition) -> bool:
        state = self.partition_state(topic_partition)
        topic, replicas = self.topic(topic_partition.topic), self.replicas_of(topic_partition)
        if topic is None or topic.adding.get(topic_partition.partition):
            return False
        if topic.removing.get(topic_partition.partition) or state is None or set(state.isr) != set(replicas):
            return False
        end = self.invariants.log(topic_partition).end_offset
        for broker_id in replicas:
            node = self.node(broker_id)
            replica = (
                None
                if node is None or node.broker is None
                else node.broker.hosted.replicas.get(topic_partition)
            )
            if replica is None or (replica.core.log_end_offset, replica.core.high_watermark) != (end, end):
                return False
            if replica.core.is_leader and replica.core.last_stable_offset != end:
                return False  # a transaction is still open
        return all(
            consumer.position == end
            for consumer in self.consumers
            if consumer.topic_partition == topic_partition
        )

    def _check_end(self) -> None:
        """Checks that everything that was acknowledged is there, once and in order, and that every replica
        has the same log.
        """
        for topic_partition in self.topic_partitions:
            committed = self.invariants.log(topic_partition)
            for broker_id in self.replicas_of(topic_partition):
                stored = self.disks[broker_id].partitions[topic_partition]
                left = [
                    data for header, data in committed.batches if header.base_offset >= stored.start_offset
                ]
                if [data for _, data in stored.batches] != left:
                    self.invariants.fail("all replicas are equal", f"{topic_partition} on broker {broker_id}")
        for producer in self.producers:
            committed = self.invariants.log(producer.topic_partition)
            found = [
                header.base_sequence
                for header, _ in committed.batches
                if header.producer_id == producer.producer_id
            ]
            if found != sorted(producer.acknowledged):
                self.invariants.fail(
                    "acknowledged records are there once and in order", f"producer {producer.producer_id}"
                )

    def describe(self) -> str:
        """Describes the whole state, to find out why nothing moves."""
        lines = []
        for topic_partition in self.topic_partitions:
            lines.append(f"{topic_partition}: {self.partition_state(topic_partition)}")
            lines.append(f"  committed {self.invariants.log(topic_partition).end_offset}")
            for broker_id in self.replicas_of(topic_partition):
                node = self.node(broker_id)
                broker = None if node is None else node.broker
                replica = None if broker is None else broker.hosted.replicas.get(topic_partition)
                if replica is None:
                    lines.append(f"  broker {broker_id}: {'down' if broker is None else 'no replica'}")
                    continue
                core = replica.core
                lines.append(
                    f"  broker {broker_id} of {broker.identity.broker_epoch}: leader {core.leader} epoch"
                    f" {core.leader_epoch} at {core.partition_epoch} isr {core.in_sync_replicas} pending"
                    f" {core.pending_isr} LSO {core.last_stable_offset} HW {core.high_watermark}"
                    f" LEO {core.log_end_offset}"
                    f" {core.fetch_state}"
                )
        waiting = [producer for producer in self.producers if not producer.is_idle]
        lines += [f"  producer {producer.producer_id} waits: {producer.last_error}" for producer in waiting]
        lines += [f"  consumer of {c.topic_partition} at {c.position}" for c in self.consumers]
        if self.coordination is not None:
            lines += self.coordination.describe()
        if self.applications is not None:
            lines += self.applications.describe()
        return "\n".join([*lines, *self._unsettled_services()])
