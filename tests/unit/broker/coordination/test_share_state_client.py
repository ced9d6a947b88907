"""The client of share states: requests are split by shard, and a failure is the error code of a partition."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from tidelog.broker.coordination import share_state
from tidelog.broker.coordination.attachment import ShardCall
from tidelog.broker.coordination.internal_topics import InternalTopics
from tidelog.broker.coordination.share_state import ShareStateClient
from tidelog.group_coordinator.shard_core import ClusterImage, ShardRequest, TopicImage
from tidelog.group_coordinator.share_state_core import ShareStateCore
from tidelog.kernel.instants import WallMs
from tidelog.kernel.timer import LoopTimer
from tidelog.model.coordinator_shards import ShardId, ShardKind, shard_for, share_partition_key
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import initialize_share_group_state as initializing
from tidelog.wire.messages import read_share_group_state as reading
from tidelog.wire.messages import write_share_group_state as writing

TOPICS = [UUID(int=1), UUID(int=2)]
SHARDS = 5
NOW = WallMs(0)
IMAGE = ClusterImage(
    1,
    {str(topic_id): TopicImage(topic_id, str(topic_id), 8) for topic_id in TOPICS},
    {topic_id: str(topic_id) for topic_id in TOPICS},
)


class Owners:
    """A `ShardOwners` with a core for each shard. `outcomes` are the failures of shards."""

    def __init__(self) -> None:
        self.cores = {number: ShareStateCore(BrokerSettings.parse({})) for number in range(SHARDS)}
        for core in self.cores.values():
            core.activate(IMAGE, NOW)
        self.asked: list[ShardId] = []
        self.outcomes: dict[int, ErrorCode] = {}
        self.has_topic = True
        self.topics = cast(
            InternalTopics, SimpleNamespace(exists=lambda kind: self.has_topic, make=self._make)
        )

    async def _make(self, kind: ShardKind) -> None:
        self.has_topic = True

    def share_shard(self, group_id: str, topic_id: UUID, partition: int) -> ShardId | None:
        name = share_partition_key(group_id, topic_id, partition)
        return shard_for(ShardKind.SHARE, name, SHARDS) if self.has_topic else None

    async def until_served(self, shards: Collection[ShardId], timeout_ms: int) -> None:
        assert all(shard.kind is ShardKind.SHARE for shard in shards)

    def ask_shard_owner(self, shard: ShardId | None, call: ShardCall) -> ErrorCode:
        assert shard is not None
        self.asked.append(shard)
        failure = self.outcomes.get(shard.partition)
        if failure is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return failure
        if failure is not None:
            asyncio.get_running_loop().call_soon(call.answered, None, failure)
            return ErrorCode.NONE
        message = codec.request_decoder(call.api_key, call.api_version)(call.body, 0)[0]
        request = ShardRequest[object]("to", call.api_key, call.api_version, message)
        (reply,) = self.cores[shard.partition].handle(request, NOW).replies
        encode = codec.response_encoder(call.api_key, call.api_version)
        body = b"".join(map(bytes, encode(cast(Any, reply.message))))
        asyncio.get_running_loop().call_soon(call.answered, body, ErrorCode.NONE)
        return ErrorCode.NONE


def ask(owners: Owners, request: Any) -> Any:
    async def run() -> Any:
        timer = LoopTimer(asyncio.get_running_loop())
        client = ShareStateClient(owners, timer)
        try:
            return await client.ask(request.API_KEY, request)
        finally:
            timer.close()

    return asyncio.run(run())


def initialization(partitions: dict[UUID, list[int]]) -> initializing.InitializeShareGroupStateRequest:
    data = initializing.InitializeStateData
    return initializing.InitializeShareGroupStateRequest(
        "g", [data(t, [initializing.PartitionData(p, 1, 10 + p) for p in ps]) for t, ps in partitions.items()]
    )


def read(partitions: dict[UUID, list[int]]) -> reading.ReadShareGroupStateRequest:
    return reading.ReadShareGroupStateRequest(
        "g",
        [reading.ReadStateData(t, [reading.PartitionData(p, 0) for p in ps]) for t, ps in partitions.items()],
    )


def results(response: Any) -> list[tuple[UUID, int, int]]:
    return [(t.topic_id, p.partition, p.error_code) for t in response.results for p in t.partitions]


@pytest.mark.parametrize("seed", range(10))
def test_a_request_is_split_and_its_answers_are_merged_in_order(seed: int) -> None:
    chance = random.Random(seed)
    wanted = {topic_id: chance.sample(range(8), chance.randint(1, 8)) for topic_id in TOPICS}
    owners = Owners()
    expected = [(topic_id, partition, 0) for topic_id, ps in wanted.items() for partition in ps]
    assert results(ask(owners, initialization(wanted))) == expected
    assert len(owners.asked) == len(set(owners.asked))
    found = ask(owners, read(wanted))
    assert results(found) == expected
    assert all(p.start_offset == 10 + p.partition for t in found.results for p in t.partitions)
    assert sum(len(core.states) for core in owners.cores.values()) == len(expected)


@pytest.mark.parametrize("failure", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR])
def test_only_the_partitions_of_a_failed_shard_fail(failure: ErrorCode) -> None:
    wanted = {topic_id: list(range(8)) for topic_id in TOPICS}
    owners = Owners()
    ask(owners, initialization(wanted))
    owners.outcomes = {2: failure}
    for topic_id, partition, error in results(ask(owners, read(wanted))):
        is_lost = all(
            known.partition != partition or known.topic_id != topic_id
            for number, core in owners.cores.items()
            if number != 2
            for known in core.states
        )
        assert error == (failure if is_lost else ErrorCode.NONE)


def test_the_topic_is_created_first() -> None:
    owners = Owners()
    owners.has_topic = False
    assert results(ask(owners, initialization({TOPICS[0]: [3]}))) == [(TOPICS[0], 3, 0)]


def test_a_write_changes_the_state_of_its_owner() -> None:
    owners = Owners()
    ask(owners, initialization({TOPICS[0]: [3]}))
    batch = writing.StateBatch(13, 20, 2, 1)
    data = writing.PartitionData(3, 1, 0, -1, 8, [batch])
    request = writing.WriteShareGroupStateRequest("g", [writing.WriteStateData(TOPICS[0], [data])])
    assert request.API_KEY == ApiKey.WRITE_SHARE_GROUP_STATE
    assert results(ask(owners, request)) == [(TOPICS[0], 3, 0)]
    found = ask(owners, read({TOPICS[0]: [3]})).results[0].partitions[0]
    assert found.state_batches == [reading.StateBatch(13, 20, 2, 1)]


def test_many_requests_at_once_take_several_turns() -> None:
    async def run() -> tuple[list[int], list[int]]:
        timer, owners = LoopTimer(asyncio.get_running_loop()), Owners()
        client = ShareStateClient(owners, timer)
        asked, answered = list[int](), list[int]()
        count, calls = 3 * share_state.WORK_OF_A_TURN, list[ShardCall]()

        def ask_later(shard: ShardId | None, call: ShardCall) -> ErrorCode:
            calls.append(call)
            return ErrorCode.NONE

        cast(Any, owners).ask_shard_owner = ask_later
        done = list[int]()

        async def ask_one(number: int) -> None:
            await client.read(read({TOPICS[0]: [number % 8]}))
            done.append(number)

        tasks = [asyncio.ensure_future(ask_one(number)) for number in range(count)]
        while len(calls) < count:
            before = len(calls)
            await asyncio.sleep(0)
            asked.append(len(calls) - before)
        for call in calls:  # the coordinator answers all of them at once
            call.answered(None, ErrorCode.NOT_COORDINATOR)
        while len(done) < count:
            before = len(done)
            await asyncio.sleep(0)
            answered.append(len(done) - before)
        await asyncio.gather(*tasks)
        timer.close()
        return asked, answered

    asked, answered = asyncio.run(run())
    assert max(asked) == max(answered) == share_state.WORK_OF_A_TURN
