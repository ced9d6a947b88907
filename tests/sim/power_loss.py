"""Power failures of all machines at once, for a topic whose records wait for the disk (`flush.messages=1`).

PYTHONHASHSEED=0 python -m sim.power_loss --seeds 20 [--first-seed 1] [--unflushed]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Final
from unittest.mock import patch

from sim import world as simulated
from sim.broker_node import broker_name
from sim.faults import RESTART_AFTER_S, Faults
from sim.world import Outcome, World

MEAN_PAUSE_S: Final = 3.0
LEAST_LOSSES: Final = 5


class PowerLosses(Faults):
    """Every fault is a power failure of all machines. Disks lose unflushed data, each its own part of it."""

    async def run(self, for_s: float, at_least: int) -> None:
        world, chance = self._world, self._chance
        until = world.loop.now + for_s
        losses = 0
        while world.loop.now < until or losses < max(at_least, LEAST_LOSSES):
            await asyncio.sleep(chance.expovariate(1 / MEAN_PAUSE_S))
            for broker_id in world.plan.brokers:
                process = world.process(broker_name(broker_id))
                if process is not None:
                    self._kill(process)
                world.disks[broker_id].crash(chance)
                self._later(chance.choice(RESTART_AFTER_S), lambda b=broker_id: self._start_broker(b))
            losses += 1
            self._note(f"power failure {losses}")


class PowerLossWorld(World):
    """A cluster without groups and transactions. Its topic flushes after `flush_messages` records, or only
    when the operating system does (None).
    """

    flush_messages: int | None = 1

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        settings = dict(self.plan.topic_settings)
        settings.pop("flush.ms", None)
        if self.flush_messages is not None:
            settings["flush.messages"] = str(self.flush_messages)
        self.plan = self.plan._replace(topic_settings=settings, coordination=None)
        self.coordination = None


class UnflushedWorld(PowerLossWorld):
    flush_messages = None


def simulate_power_losses(seed: int, *, flushes: bool) -> Outcome:
    """Runs a seed with power failures instead of the usual faults."""
    kind = PowerLossWorld if flushes else UnflushedWorld
    with patch.object(simulated, "Faults", PowerLosses), patch.object(simulated, "World", kind):
        return simulated.simulate(seed)


def main() -> int:
    """Prints a line for each seed. The exit code is the number of seeds that failed, at most 1."""
    parser = argparse.ArgumentParser(prog="python -m sim.power_loss", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--unflushed", action="store_true", help="do not set flush.messages")
    arguments = parser.parse_args()
    failed = 0
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        outcome = simulate_power_losses(seed, flushes=not arguments.unflushed)
        failed += outcome.failure is not None
        print(
            f"seed {seed}: {outcome.faults} power failures, {outcome.acknowledged} records acknowledged:"
            f" {outcome.failure or 'nothing lost'}",
            flush=True,
        )
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
