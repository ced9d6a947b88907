"""Groups and transactions in a simulated cluster: coordinators, their clients, and the final checks of their
state.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from sim.clients import Metadata
from sim.controller_node import coordinator_name
from sim.group_members import CoordinatorAddress, SimGroupMember
from sim.loop import SimProcess
from sim.streams_members import GROUP as STREAMS_GROUP
from sim.streams_members import LEAST_GIVEN, SimStreamsMember
from sim.transactional import SimCommittedReader, SimTransactionalProducer, Versions
from tidelog.model.coordinator_shards import ShardKind

if TYPE_CHECKING:
    from sim.world import World


LEAST_COMMITS: Final = 20
LEAST_TRANSACTIONS: Final = 10


class Coordination:
    """The coordination of a world whose plan includes it."""

    def __init__(self, world: World) -> None:
        plan = world.plan.coordination
        assert plan is not None
        self.members: list[SimGroupMember] = []
        self.producers: list[SimTransactionalProducer] = []
        self.readers: list[SimCommittedReader] = []
        self.streams: list[SimStreamsMember] = []
        self._world = world
        self._plan = plan

    def start(self, client: SimProcess) -> None:
        world, plan = self._world, self._plan
        for coordinator_id in plan.coordinators:
            world.start_coordinator(coordinator_id)
        metadata = Metadata(world.network, self._chance(), list(world.plan.brokers))
        self._make_members(metadata)
        self._make_producers(metadata)
        for topic_partition in world.data_partitions:
            self.readers.append(
                SimCommittedReader(
                    f"reader-{topic_partition.partition}",
                    topic_partition,
                    world.network,
                    metadata,
                    world.invariants,
                    self._chance(),
                    history=world.invariants.transactions,
                )
            )
        self._make_streams_members(metadata)
        for work in (*self.members, *self.producers, *self.readers, *self.streams):
            client.spawn(work.run())

    def _chance(self) -> random.Random:
        return random.Random(self._world.chance.getrandbits(64))

    def _address(self, metadata: Metadata, kind: ShardKind, name: str) -> CoordinatorAddress:
        return CoordinatorAddress(metadata, kind, name, len(self._plan.assignments[kind.topic]))

    def _make_members(self, metadata: Metadata) -> None:
        world, plan = self._world, self._plan
        for number in range(plan.groups):
            group = f"group-{number}"
            for member in range(plan.members_a_group):
                self.members.append(
                    SimGroupMember(
                        f"{group}-member-{member}",
                        group,
                        len(world.data_partitions),
                        self._address(metadata, ShardKind.GROUP, group),
                        world.network,
                        world.invariants.commits,
                        self._chance(),
                        mean_pause_s=plan.mean_commit_pause_s,
                    )
                )

    def _make_streams_members(self, metadata: Metadata) -> None:
        for number in range(self._plan.streams_members):
            self.streams.append(
                SimStreamsMember(
                    f"streams-{number}",
                    self._address(metadata, ShardKind.GROUP, STREAMS_GROUP),
                    self._world.network,
                    self._world.invariants.streams,
                    self._chance(),
                )
            )

    def _make_producers(self, metadata: Metadata) -> None:
        world, plan = self._world, self._plan
        for number in range(plan.transactional_producers):
            name = f"copier-{number}"
            self.producers.append(
                SimTransactionalProducer(
                    name,
                    world.data_partitions,
                    (
                        self._address(metadata, ShardKind.TRANSACTION, name),
                        self._address(metadata, ShardKind.GROUP, f"group-of-{name}"),
                    ),
                    world.network,
                    metadata,
                    world.invariants.transactions,
                    self._chance(),
                    versions=Versions(bumps_epoch=number % 2 == 0),
                    timeout_ms=plan.transaction_timeout_ms,
                    mean_pause_s=plan.mean_transaction_pause_s,
                )
            )

    def stop(self) -> None:
        for client in (*self.members, *self.producers, *self.streams):
            client.is_stopped = True

    def has_gone_on(self) -> bool:
        invariants = self._world.invariants
        return (
            invariants.commits.acknowledged >= LEAST_COMMITS
            and invariants.transactions.committed >= LEAST_TRANSACTIONS
            and (not self.streams or invariants.streams.given >= LEAST_GIVEN)
        )

    def has_settled(self) -> bool:
        """Returns True if all transactions have ended and every reader has seen them."""
        history = self._world.invariants.transactions
        return (
            all(producer.is_idle for producer in self.producers)
            and not history.unfinished()
            and self._unfinished_streams() is None
            and all(
                reader.position == self._world.invariants.log(reader.topic_partition).end_offset
                for reader in self.readers
            )
        )

    def _unfinished_streams(self) -> str | None:
        """Returns what is missing until each task of the streams group runs at one member."""
        if not self.streams:
            return None
        return self._world.invariants.streams.missing(len(self._world.data_partitions))

    async def ask_at_last(self) -> None:
        """Asks, in the client's process, for the committed offsets after all commits have ended."""
        self._world.invariants.transactions.check_end()
        await self._ask_all()
        self._start_anew()
        await self._ask_all()

    def _start_anew(self) -> None:
        """Restarts the coordinators, so that the contents of the shards' logs are compared with the answers
        of their former owners.
        """
        world = self._world
        for coordinator_id in self._plan.coordinators:
            process = world.process(coordinator_name(coordinator_id))
            if process is not None:
                process.kill()
            world.loop.call_outside(0, world.start_coordinator, coordinator_id)

    async def _ask_all(self) -> None:
        invariants = self._world.invariants
        await asyncio.gather(*(member.read_at_last() for member in self.members))
        for producer in self.producers:
            found = await producer.committed_offset()
            expected = invariants.transactions.last_with_offset(producer.name)
            if found != expected:
                invariants.fail(
                    "offsets of a transaction count when it does",
                    f"{producer.group}: {found} is committed, last was {expected}",
                )

    def describe(self) -> list[str]:
        history, commits = self._world.invariants.transactions, self._world.invariants.commits
        lines = [f"  {producer.name}: {producer.last_error}" for producer in self.producers]
        lines += [f"  {member.name}: {member.last_error}" for member in self.members]
        lines += [
            f"  {reader.topic_partition} committed is read to {reader.position}" for reader in self.readers
        ]
        lines += [f"  {member.name}: {member.last_error}" for member in self.streams]
        lines += [unfinished] if (unfinished := self._unfinished_streams()) else []
        lines += history.unfinished()
        lines.append(f"  {commits.acknowledged} commits, {history.committed} transactions")
        for coordinator_id in self._plan.coordinators:
            process = self._world.process(f"coordinator-{coordinator_id}")
            coordinator = None if process is None else process.service.coordinator
            shards = {} if coordinator is None else coordinator.runtime.shards
            lines += [f"  coordinator {coordinator_id}: {coordinator}"]
            lines += [
                f"    {shard_id} {shard.state.value} epoch {shard.shard_epoch} {shard.log.end_offset}"
                for shard_id, shard in shards.items()
            ]
        return lines
