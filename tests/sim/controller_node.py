"""One life of a controller: tidelog's `Controller` over the simulated store and network."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from sim.loop import SimClock, SimProcess
from sim.store import SimStore
from tidelog.controller.server import Controller
from tidelog.metadata.store import StoreError
from tidelog.rpc.grpc_broker_channels import GrpcBrokerChannels
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
