"""One life of a controller or a coordinator: tidelog's own, over the simulated store and network."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from sim.loop import SimClock, SimProcess
from sim.sessions import SimSessionConnector
from sim.store import SimStore
from tidelog.controller.server import Controller
from tidelog.group_coordinator.server import GroupCoordinator
from tidelog.metadata.store import StoreError
from tidelog.model.errors import KafkaError
from tidelog.rpc.grpc_broker_commands import GrpcBrokerChannels
from tidelog.settings.broker_settings import BrokerSettings

if TYPE_CHECKING:
    from sim.world import World

START_RETRY_S: Final = 0.5


class ControllerNode:
    """The `service` of a controller's process."""

    def __init__(self, world: World, process: SimProcess, controller_id: int) -> None:
        self.world = world
        self.process = process
        self.controller_id = controller_id
        self.controller: Controller | None = None

    async def run(self) -> None:
        world = self.world
        settings = BrokerSettings.parse(
            {**world.plan.controller_settings, "node.id": str(self.controller_id)}
        )
        randomness = random.Random(world.chance.getrandbits(64))
        store, channels = SimStore(world.network), GrpcBrokerChannels()
        clock = SimClock(self.process)
        while self.controller is None:
            try:
                self.controller = await Controller.start(
                    store, channels, settings, clock=clock, randomness=randomness
                )
            except StoreError:
                await asyncio.sleep(START_RETRY_S)


def coordinator_name(coordinator_id: int) -> str:
    return f"coordinator-{coordinator_id}"


class CoordinatorNode:
    """The `service` of a coordinator's process."""

    def __init__(self, world: World, process: SimProcess, coordinator_id: int) -> None:
        self.world = world
        self.process = process
        self.coordinator_id = coordinator_id
        self.coordinator: GroupCoordinator | None = None

    async def run(self) -> None:
        world, plan = self.world, self.world.plan.coordination
        assert plan is not None
        settings = BrokerSettings.parse({**plan.coordinator_settings, "node.id": str(self.coordinator_id)})
        store = SimStore(world.network)
        connector = SimSessionConnector(self.process, world.network, world.invariants.writers)
        clock = SimClock(self.process)
        while self.coordinator is None:
            try:
                self.coordinator = await GroupCoordinator.start(
                    store, settings, connector, clock=clock, on_failed=lambda error: self._give_up()
                )
            except (StoreError, KafkaError):
                await asyncio.sleep(START_RETRY_S)

    def _give_up(self) -> None:
        """Ends the process. Its supervisor starts it again."""
        world = self.world
        self.process.kill()
        world.loop.call_outside(START_RETRY_S, world.start_coordinator, self.coordinator_id)

    async def stop(self) -> None:
        """Handles SIGTERM."""
        if self.coordinator is not None:
            await self.coordinator.stop()
