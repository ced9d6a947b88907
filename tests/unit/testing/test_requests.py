"""Requests of a test while the brokers' knowledge changes."""

from __future__ import annotations

import asyncio
from typing import Any

from tidelog.model.errors import ErrorCode
from tidelog.testing.requests import Broker, Requests
from tidelog.wire.messages import list_offsets, metadata
from tidelog.wire.schema import Message


class ScriptedRequests(Requests):
    """Brokers 1 and 3 answer. Metadata names the `leaders` in turn, and the last one for ever."""

    def __init__(self, *leaders: int, refusals: int = 0) -> None:
        super().__init__()
        self.brokers = [Broker(1, 9001), Broker(3, 9003)]
        self.asked: list[int] = []
        self._leaders = list(leaders)
        self._refusals = refusals

    async def ask(
        self, request: Message, answer: type[Any], broker_id: int | None = None, *, wait_s: float = 0.0
    ) -> Any:
        if isinstance(request, metadata.MetadataRequest):
            leader = self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]
            part = metadata.MetadataResponsePartition(partition_index=0, leader_id=leader)
            return metadata.MetadataResponse(
                topics=[metadata.MetadataResponseTopic(name="flights", partitions=[part])]
            )
        assert isinstance(request, list_offsets.ListOffsetsRequest)
        assert broker_id is not None
        self.asked.append(broker_id)
        self._refusals -= 1
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if self._refusals >= 0 else ErrorCode.NONE
        row = list_offsets.ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=7)
        return list_offsets.ListOffsetsResponse(
            topics=[list_offsets.ListOffsetsTopicResponse("flights", [row])]
        )


def test_a_leader_that_was_killed_is_not_asked() -> None:
    """The broker that answers the first request of metadata has not heard of the kill of broker 2."""
    requests = ScriptedRequests(2, 3)
    topic = asyncio.run(requests.topic("flights"))
    assert topic.partitions[0].leader_id == 3


def test_a_leader_that_moved_is_looked_up_again() -> None:
    requests = ScriptedRequests(1, 3, refusals=1)

    async def ends() -> dict[int, int]:
        return await requests.ends(await requests.topic("flights"))

    assert asyncio.run(ends()) == {0: 7}
    assert requests.asked == [1, 3]
