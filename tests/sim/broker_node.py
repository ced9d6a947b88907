"""One life of a broker: tidelog's broker over a simulated disk, store and network, wired as in
`server.py`.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

from sim.disk import SimDisk, SimLogDirectory, SimPartitionLog
from sim.loop import SimClock, SimProcess
from sim.rpc import SimControllerApi
from sim.store import SimStore
from sim.tcp import SimListener
from tidelog.broker.parts import BrokerParts, BrokerSurroundings
from tidelog.broker.requests.chain import RequestChain
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.kernel.timer import LoopTimer
from tidelog.metadata.entries import BrokerEntry
from tidelog.metadata.store import StoreError
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.brokers import Endpoint
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.grpc_broker_commands import BrokerCommandsService
from tidelog.settings.broker_settings import BrokerSettings

if TYPE_CHECKING:
    from sim.world import World

CLUSTER_ID: Final = "simulated-cluster-id--"
START_RETRY_S: Final = 0.5
PORT: Final = 9092


def broker_name(broker_id: int) -> str:
    return f"broker-{broker_id}"


class BrokerNode:
    """The `service` of a broker's process."""

    def __init__(self, world: World, process: SimProcess, broker_id: int, disk: SimDisk) -> None:
        self.world = world
        self.process = process
        self.broker_id = broker_id
        self.disk = disk
        self.broker: Any = None
        self.handlers: RequestChain | None = None
        self.commands_service: BrokerCommandsService | None = None
        self._listener: SimListener | None = None
        self.is_stopping = False
        self.routes: dict[tuple[int, int], Any] = {}
        self._has_started = False

    @property
    def is_serving(self) -> bool:
        return self._has_started and not self.is_stopping

    @property
    def listener(self) -> SimListener | None:
        """The listener for clients with connections, None while the broker does not serve."""
        if self._listener is None and self.is_serving:
            dispatcher = Dispatcher(self.handlers, self.broker.telemetry, self.broker.quotas)
            self._listener = SimListener(self.process.loop, PORT, dispatcher.dispatch)
        return self._listener if self.is_serving else None

    @property
    def session_acceptor(self) -> Any:
        """Returns the acceptor of coordinators' sessions. It is open as soon as the process is, like the RPC
        server.
        """
        return None if self.broker is None or self.is_stopping else self.broker.coordination

    async def run(self) -> None:
        world, process = self.world, self.process
        settings = BrokerSettings.parse(
            {
                "log.cleaner.enable": "false",  # the worker is another process
                **world.plan.broker_settings,
                "node.id": str(self.broker_id),
            }
        )
        clock = SimClock(process)
        directory: Any = SimLogDirectory(self.disk, self.broker_id, self._log_changed)
        store = SimStore(world.network)
        around = BrokerSurroundings(
            CLUSTER_ID,
            directory,
            store,
            SimControllerApi(world.network, store),
            Telemetry(clock),
            clock,
            LoopTimer(world.loop),
            random.Random(world.chance.getrandbits(64)),
        )
        broker = BrokerParts(settings, around)
        self._watch_proposals(broker.isr)
        self.commands_service = BrokerCommandsService(broker.commands, self.broker_id, store)
        self.broker = broker
        self.handlers = RequestChain(broker)
        await self._register(directory)
        await broker.commands.first_metadata.wait()
        await broker.life.logs_are_known()
        self._has_started = True
        broker.start_duties()

    def _log_changed(self, topic_partition: TopicPartition, log: SimPartitionLog) -> None:
        self.world.log_changed(self.process, topic_partition, log)

    def _watch_proposals(self, maintenance: Any) -> None:
        propose = maintenance.propose

        def watched(replica: Any, proposal: Any) -> None:
            self.world.on_proposal(self.process, replica.topic_partition, proposal)
            propose(replica, proposal)

        maintenance.propose = watched

    async def _register(self, directory: SimLogDirectory) -> None:
        name = broker_name(self.broker_id)
        entry = BrokerEntry(
            self.broker_id,
            (Endpoint("PLAINTEXT", name, PORT),),
            None,
            name,
            is_log_suspect=directory.is_suspect,
            suspect_partitions=directory.suspect_partitions(),
        )
        while True:
            try:
                await self.broker.life.begin(
                    entry, self._take_epoch, on_failed=lambda error: self.process.kill()
                )
                return
            except (StoreError, KafkaError):
                await asyncio.sleep(START_RETRY_S)

    def _take_epoch(self, epoch: int) -> None:
        assert self.commands_service is not None
        self.commands_service.set_broker_epoch(epoch)
        self.world.trace.add(self.world.loop.now, "registered", self.process, epoch)

    async def stop(self) -> None:
        """Handles SIGTERM: hands over, stops, flushes, marks the directory clean, and gives up the
        registration.
        """
        broker = self.broker
        await broker.life.hand_over()
        self.is_stopping = True
        await broker.stop_duties()
        if self._listener is not None:
            await asyncio.sleep(0)  # the responses leave at the end of this iteration
            self._listener.close()
        await broker.commands.stop()
        await broker.hosting.close_all()
        await broker.life.end()
