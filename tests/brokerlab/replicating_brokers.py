"""Several brokers in one process that replicate over real sockets. The test acts as their controller and
metadata store.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.net.authentication import Authenticator
from tidelog.broker.net.listener import ConnectionLimits, Listener
from tidelog.broker.partition.events import IsrWritten, ProposeIsr
from tidelog.broker.partition.roles import FetchState
from tidelog.broker.parts import BrokerParts, BrokerSurroundings
from tidelog.broker.requests.chain import RequestChain
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.kernel.clock import SystemClock
from tidelog.kernel.timer import LoopTimer
from tidelog.metadata.store import MetadataStore
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.rpc.broker_commands import LeaderAndIsr, PartitionState, TopicState, UpdateMetadata
from tidelog.rpc.controller_api import ControllerApi
from tidelog.settings.broker_settings import BrokerSettings

CLUSTER_ID = "abcdefghijklmnopqrstuv"
CONTROLLER_EPOCH = 1
PATIENCE_S = 15.0


class WritesAtOnce:
    """A store that accepts every ISR proposal at the next iteration of the event loop."""

    def __init__(self) -> None:
        self.written: list[ProposeIsr] = []

    def propose(self, replica: Replica, proposal: ProposeIsr) -> None:
        asyncio.get_running_loop().call_soon(self._write, replica, proposal)

    def _write(self, replica: Replica, proposal: ProposeIsr) -> None:
        self.written.append(proposal)
        # This partition epoch is far below that of the test's next command.
        replica.step(IsrWritten(proposal, proposal.partition_epoch + 1))

    def isr_changed(self, topic_partition: TopicPartition, *, is_expansion: bool) -> None: ...


class ReplicatingBroker:
    """One broker with a socket."""

    def __init__(self, broker_id: int, directory: Path, settings: Mapping[str, str]) -> None:
        self.settings = BrokerSettings.parse(
            {
                "node.id": str(broker_id),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "replica.fetch.wait.max.ms": "50",
                **settings,
            }
        )
        self.timer = LoopTimer(asyncio.get_running_loop())
        self.isr = WritesAtOnce()
        around = BrokerSurroundings(
            CLUSTER_ID,
            LogDirectory.open(directory, cluster_id=CLUSTER_ID, node_id=broker_id),
            cast(MetadataStore, None),
            cast(ControllerApi, None),
            Telemetry(),
            SystemClock(),
            self.timer,
            random.Random(broker_id),
        )
        self.broker = BrokerParts(self.settings, around, self.isr)
        self.broker.identity.broker_epoch = 100 + broker_id
        self.commands = self.broker.commands
        self.dispatcher = Dispatcher(RequestChain(self.broker), self.broker.telemetry, self.broker.quotas)
        self.listener = self._listen(0)
        self.told_port: int | None = None
        """The port that other brokers connect to, if it is not the port of the listener."""

    def _listen(self, port: int) -> Listener:
        endpoint = self.settings.listener_plan().bind[0]._replace(port=port)
        name, broker = endpoint.listener_name, self.broker
        is_sasl = endpoint.security_protocol.startswith("SASL_")
        listener = Listener(
            endpoint,
            self.broker.current_settings,
            self.broker.telemetry,
            self.timer,
            self.dispatcher.dispatch,
            ConnectionLimits(self.broker.current_settings, self.broker.quotas.quotas),
            Authenticator(name, broker.current_settings, broker.metadata, broker.clock) if is_sasl else None,
        )
        listener.bind()
        return listener

    async def go_dark(self) -> None:
        """Closes the listener and all connections, as if the process had ended."""
        self.listener.close()

    async def come_back(self) -> None:
        """Listens on another port, as after a restart."""
        self.listener = self._listen(0)
        await self.listener.serve()

    @property
    def registration(self) -> BrokerRegistration:
        port = self.told_port or self.listener.port
        endpoint = self.settings.listener_plan().bind[0]._replace(port=port)
        identity = self.broker.identity
        return BrokerRegistration(identity.broker_id, identity.broker_epoch, (endpoint,))

    def replica(self, topic_partition: TopicPartition) -> Replica:
        return self.broker.hosted.replicas[topic_partition]

    async def close(self) -> None:
        self.listener.close()
        await self.broker.hosting.close_all()
        self.timer.close()


class ReplicatingCluster:
    """Brokers 1 to n, which `async with` opens and closes."""

    def __init__(self, directory: Path, brokers: int = 2, settings: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._count = brokers
        self._settings = settings or {}
        self.brokers: dict[int, ReplicatingBroker] = {}
        self._revision = 1

    async def __aenter__(self) -> ReplicatingCluster:
        for broker_id in range(1, self._count + 1):
            node = ReplicatingBroker(broker_id, self._directory / str(broker_id), self._settings)
            self.brokers[broker_id] = node
            await node.listener.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.brokers.values():
            await node.close()

    async def show_brokers(self) -> None:
        """Sends the addresses of all brokers to all brokers."""
        await self._update_metadata()

    async def elect(
        self,
        topic: str,
        leader: int,
        leader_epoch: int,
        *,
        isr: tuple[int, ...] | None = None,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        told: tuple[int, ...] | None = None,
        known: bool = True,
    ) -> None:
        """Makes `leader` the leader of all partitions of the topic. `told` are the brokers that receive the
        command, all by default.
        """
        everybody = tuple(self.brokers)
        self._revision += 1000
        states = tuple(
            PartitionState(
                topic,
                uuid.uuid5(uuid.NAMESPACE_DNS, topic),
                partition,
                leader,
                leader_epoch,
                isr if isr is not None else (leader,),
                everybody,
                CONTROLLER_EPOCH,
                partition_epoch=self._revision,
            )
            for partition in range(partitions)
        )
        if known:
            await self._update_metadata(topic=TopicState(topic, states[0].topic_id, states, configs or {}))
        for broker_id in told or everybody:
            command = LeaderAndIsr(1, CONTROLLER_EPOCH, states, {topic: configs or {}})
            result = await self.brokers[broker_id].commands.leader_and_isr(command)
            assert not result.error
            assert not result.partition_errors

    async def _update_metadata(self, topic: TopicState | None = None) -> None:
        update = UpdateMetadata(
            1,
            CONTROLLER_EPOCH,
            tuple(node.registration for node in self.brokers.values()),
            topics=() if topic is None else (topic,),
            broker_configs={},
        )
        for node in self.brokers.values():
            await node.commands.update_metadata(update)

    def append(self, broker_id: int, topic_partition: TopicPartition, **shape: Any) -> None:
        """Appends one batch at that leader."""
        append_to(self.brokers[broker_id].replica(topic_partition), **shape)

    def end_offset(self, broker_id: int, topic_partition: TopicPartition) -> int:
        return self.brokers[broker_id].replica(topic_partition).core.log_end_offset

    async def level(self, topic_partition: TopicPartition, leader: int) -> None:
        """Waits until all replicas have the leader's log end and high watermark."""

        first = self.brokers[leader]

        def is_level() -> bool:
            core = first.replica(topic_partition).core
            if core.high_watermark < core.log_end_offset:
                return False
            others = [
                node.replica(topic_partition).core for node in self.brokers.values() if node is not first
            ]
            return all(
                other.fetch_state is FetchState.FETCHING
                and other.log_end_offset == other.high_watermark == core.log_end_offset
                for other in others
            )

        await until(is_level)


def append_to(replica: Replica, *, records: int = 1, value_bytes: int = 10, **producer: Any) -> None:
    now_ms = SystemClock().wall_ms()
    made = [Record(number, now_ms, None, bytes(value_bytes), []) for number in range(records)]
    replica.append(memoryview(build_batch(made, **producer)), 1, 9, now_ms)


async def until(holds: Callable[[], bool], what: str = "") -> None:
    """Waits until other tasks of this event loop have made the condition true."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, f"the condition did not become true {what}"
        await asyncio.sleep(0.002)
