"""Power failures of all machines at once, for a topic whose records wait for the disk (`flush.messages=1`).

A record counts as committed only when it is on the disk of every replica in the ISR. The simulation checks
this when it happens, because a power failure rarely comes at the moment that makes a difference.

PYTHONHASHSEED=0 python -m sim.power_loss --seeds 20 [--first-seed 1] [--unflushed] [--planted NAME]
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
from sim.planted import PLANTED_FOR_POWER_LOSS
from sim.world import Outcome, World
from tidelog.broker.partition.core import PartitionCore
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader

MEAN_PAUSE_S: Final = 3.0
LEAST_LOSSES: Final = 5
KILL_SHARE: Final = 0.3
PAUSES_AFTER_KILL_S: Final = (0.2, 1.0, 3.0)


class PowerLosses(Faults):
    """Power failures of all machines, in which disks lose unflushed data, each its own part of it. Sometimes
    the process of one broker is killed before. Its unflushed data is then still in the page cache.
    """

    async def run(self, for_s: float, at_least: int) -> None:
        world, chance = self._world, self._chance
        until = world.loop.now + for_s
        losses = 0
        while world.loop.now < until or losses < max(at_least, LEAST_LOSSES):
            await asyncio.sleep(chance.expovariate(1 / MEAN_PAUSE_S))
            if chance.random() < KILL_SHARE and self._kill_broker() is not None:
                await asyncio.sleep(chance.choice(PAUSES_AFTER_KILL_S))
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
            self.invariants.on_committed = self._check_flushed
        self.plan = self.plan._replace(topic_settings=settings, coordination=None, applications=None)
        self.coordination = self.applications = None

    def _check_flushed(self, partition: TopicPartition, core: PartitionCore, batch: BatchHeader) -> None:
        # A leader learns late that a reassignment has removed a replica, whose log is deleted by then.
        for broker_id in set(core.in_sync_replicas).intersection(self.replicas_of(partition)):
            stored = self.disks[broker_id].partitions.get(partition)
            end = -1 if stored is None else stored.flushed_end_offset
            if end <= batch.last_offset:
                self.invariants.fail(
                    "committed records are on disk",
                    f"{partition} epoch {core.leader_epoch} of broker {core.broker_id}: the high watermark is"
                    f" {core.high_watermark}, on the disk of broker {broker_id} the log ends at {end}",
                )


class UnflushedWorld(PowerLossWorld):
    flush_messages = None


def simulate_power_losses(seed: int, *, flushes: bool, planted: str | None = None) -> Outcome:
    """Runs a seed with power failures instead of the usual faults, possibly with a fault in tidelog."""
    kind = PowerLossWorld if flushes else UnflushedWorld
    with patch.object(simulated, "Faults", PowerLosses), patch.object(simulated, "World", kind):
        return simulated.simulate(seed, PLANTED_FOR_POWER_LOSS[planted] if planted else None)


def main() -> int:
    """Prints a line for each seed. The exit code is the number of seeds that failed, at most 1."""
    parser = argparse.ArgumentParser(prog="python -m sim.power_loss", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--unflushed", action="store_true", help="do not set flush.messages")
    parser.add_argument(
        "--planted", choices=sorted(PLANTED_FOR_POWER_LOSS), help="plant this fault in tidelog"
    )
    parser.add_argument("--until-found", action="store_true", help="stop at the first seed that fails")
    arguments = parser.parse_args()
    failed = 0
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        outcome = simulate_power_losses(seed, flushes=not arguments.unflushed, planted=arguments.planted)
        failed += outcome.failure is not None
        print(
            f"seed {seed}: {outcome.faults} power failures, {outcome.acknowledged} records acknowledged:"
            f" {outcome.failure or 'nothing lost'}",
            flush=True,
        )
        if failed and arguments.until_found:
            break
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
