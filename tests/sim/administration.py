"""The administrator of the simulated cluster, who moves replicas, elects preferred leaders and deletes old
records.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from sim.broker_node import broker_name
from sim.clients import REQUEST_TIMEOUT_S, Metadata
from sim.requests import ask
from sim.rpc import SimControllerApi
from sim.store import SimStore
from tidelog.broker.partition.producer_state import MAX_BATCHES_REMEMBERED
from tidelog.metadata.entries import topic_key
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.controller_api import ForwardedRequest
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest

if TYPE_CHECKING:
    from sim.world import World

SCRATCH_TOPIC: Final = "scratch"
SCRATCH_PARTITIONS: Final = 2
SCRATCH_REPLICAS: Final = 2
DELETE_RECORDS_VERSION: Final = 2
TIMEOUT_MS: Final = 1000
PREFERRED: Final = 0


class Operator:
    """`run` runs in the client's process. Requests that are refused or lost are not repeated."""

    def __init__(self, world: World, metadata: Metadata, chance: random.Random) -> None:
        self.is_stopped = False
        self._world = world
        self._metadata = metadata
        self._chance = chance
        self._controller = SimControllerApi(world.network, SimStore(world.network))

    async def run(self) -> None:
        chance = self._chance
        while True:
            await asyncio.sleep(chance.expovariate(1 / self._world.plan.mean_operation_pause_s))
            if self.is_stopped:
                return
            act = chance.choice((self._reassign, self._elect, self._delete_records, self._make_or_delete))
            is_deletion = act == self._delete_records
            if is_deletion and self._world.coordination is not None:
                continue  # it would also delete evidence about transactions
            world = self._world
            topic_partition = chance.choice(world.data_partitions if is_deletion else world.topic_partitions)
            try:
                await act(topic_partition)
            except (KafkaError, ConnectionError) as error:
                self._note(f"{act.__name__} {topic_partition} failed: {error}")

    def _note(self, what: str) -> None:
        self._world.trace.add(self._world.loop.now, "operator", what)

    async def _reassign(self, topic_partition: TopicPartition) -> None:
        world = self._world
        count = len(world.plan.all_assignments[topic_partition.topic][topic_partition.partition])
        replicas = self._chance.sample(world.plan.brokers, count)
        self._note(f"moves {topic_partition} to {replicas}")
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS,
            topics=[
                ReassignableTopic(
                    topic_partition.topic, [ReassignablePartition(topic_partition.partition, replicas)]
                )
            ],
        )
        await self._controller.handle(ApiKey.ALTER_PARTITION_REASSIGNMENTS, ForwardedRequest(1, request))

    async def _elect(self, topic_partition: TopicPartition) -> None:
        self._note("elects preferred leaders")
        request = ElectLeadersRequest(PREFERRED, None, TIMEOUT_MS)
        await self._controller.handle(ApiKey.ELECT_LEADERS, ForwardedRequest(2, request))

    async def _make_or_delete(self, _: TopicPartition) -> None:
        """Creates or deletes an extra topic, for which there are no expectations."""
        if self._world.store.space.get(topic_key(SCRATCH_TOPIC)) is None:
            self._note("makes the scratch topic")
            topic = CreatableTopic(
                name=SCRATCH_TOPIC, num_partitions=SCRATCH_PARTITIONS, replication_factor=SCRATCH_REPLICAS
            )
            request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
            await self._controller.handle(ApiKey.CREATE_TOPICS, ForwardedRequest(5, request))
        else:
            self._note("deletes the scratch topic")
            deletion = DeleteTopicsRequest(topic_names=[SCRATCH_TOPIC], timeout_ms=TIMEOUT_MS)
            await self._controller.handle(ApiKey.DELETE_TOPICS, ForwardedRequest(5, deletion))

    def _all_producers_known_from(self, topic_partition: TopicPartition) -> int:
        """Returns an offset that is safe for DeleteRecords: brokers that copy the log from there on remember
        as many batches of each producer as any broker.

        From a later offset they would know less, as in Kafka, and would accept a duplicate that they cannot
        recognize.
        """
        found: dict[int, list[int]] = {}
        for header, _ in self._world.invariants.log(topic_partition).batches:
            if header.producer_id >= 0:
                found.setdefault(header.producer_id, []).append(header.base_offset)
        return min((offsets[-MAX_BATCHES_REMEMBERED:][0] for offsets in found.values()), default=0)

    async def _delete_records(self, topic_partition: TopicPartition) -> None:
        world = self._world
        topic, partition = topic_partition
        offset = self._chance.randint(0, self._all_producers_known_from(topic_partition))
        leader = await self._metadata.leader(topic_partition)
        if leader is None:
            return
        self._note(f"deletes {topic_partition} up to {offset}")
        world.invariants.deleted_below[topic_partition] = max(
            offset, world.invariants.deleted_below.get(topic_partition, 0)
        )
        request = DeleteRecordsRequest(
            [DeleteRecordsTopic(topic, [DeleteRecordsPartition(partition, offset)])], TIMEOUT_MS
        )
        await ask(
            world.network,
            broker_name(leader.broker_id),
            request,
            DELETE_RECORDS_VERSION,
            timeout_s=REQUEST_TIMEOUT_S,
        )
