"""Requests of a test while the brokers' knowledge changes, waits for fetches, and responses that fail on
purpose.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from tidelog.broker.requests.apis import APIS
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import FINAL_EPOCH, INITIAL_EPOCH
from tidelog.testing._interception import Faults, FetchWatch
from tidelog.testing.error_responses import error_response
from tidelog.testing.requests import Broker, Requests
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import list_offsets, metadata
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.schema import Message

TOPIC_ID = uuid.UUID(int=1)


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


class Client:
    """A connection."""

    is_closed = False


def request(epoch: int, offsets: dict[int, int], forgotten: tuple[int, ...] = ()) -> FetchRequest:
    rows = [FetchPartition(index, fetch_offset=offset) for index, offset in offsets.items()]
    return FetchRequest(
        session_epoch=epoch,
        topics=[FetchTopic(topic_id=TOPIC_ID, partitions=rows)] if rows else [],
        forgotten_topics_data=[ForgottenTopic(topic_id=TOPIC_ID, partitions=list(forgotten))],
    )


def is_done(faults: Faults, ends: dict[int, int]) -> bool:
    """Returns whether the requests so far satisfy a watch that is added now."""

    async def scenario() -> bool:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        faults.watch_fetches(FetchWatch("t", TOPIC_ID, ends, done))
        return done.done()

    return asyncio.run(scenario())


def test_a_consumer_that_waits_at_the_end_has_fetched_all() -> None:
    """Its next request of the session names no partition, because no offset has changed."""
    faults, connection = Faults(), Client()
    client: Any = connection
    faults.fetch_arrived(client, request(INITIAL_EPOCH, {0: 0, 1: 5}))
    assert not is_done(faults, {0: 2, 1: 5})
    faults.fetch_arrived(client, request(1, {0: 2}))
    assert is_done(faults, {0: 2, 1: 5})
    faults.fetch_arrived(client, request(2, {}))
    assert is_done(faults, {0: 2, 1: 5}) and not is_done(faults, {0: 3})
    connection.is_closed = True
    assert not is_done(faults, {0: 2})


def test_partitions_that_left_the_session_do_not_count() -> None:
    faults = Faults()
    client: Any = Client()
    faults.fetch_arrived(client, request(INITIAL_EPOCH, {0: 2, 1: 5}))
    faults.fetch_arrived(client, request(1, {}, forgotten=(1,)))
    assert is_done(faults, {0: 2}) and not is_done(faults, {1: 5})
    faults.fetch_arrived(client, request(FINAL_EPOCH, {1: 5}))
    assert is_done(faults, {1: 5}) and not is_done(faults, {0: 2})


@pytest.mark.parametrize("key", sorted(APIS), ids=lambda key: ApiKey(key).name_in_kafka)
def test_each_api_has_a_response(key: int) -> None:
    api_key, served = ApiKey(key), APIS[key]
    request = codec.request_class(key)()
    response = error_response(api_key, served.max_version, request, ErrorCode.NOT_CONTROLLER)
    body = b"".join(map(bytes, codec.response_encoder(key, served.max_version)(response)))
    decoded, _ = codec.response_decoder(key, served.max_version)(body, 0)
    assert decoded == response


def test_a_version_without_a_place_for_the_error_is_refused() -> None:
    request = codec.request_class(ApiKey.DESCRIBE_LOG_DIRS)()
    with pytest.raises(ValueError, match="has no error response for DescribeLogDirs v2"):
        error_response(ApiKey.DESCRIBE_LOG_DIRS, 2, request, ErrorCode.NOT_CONTROLLER)


def test_the_error_is_at_each_partition() -> None:
    produce = ProduceRequest(
        topic_data=[TopicProduceData("flights", partition_data=[PartitionProduceData(2)])]
    )
    fetch = FetchRequest(topics=[FetchTopic("flights", partitions=[FetchPartition(2)])])
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    produced = error_response(ApiKey.PRODUCE, 9, produce, code)
    fetched = error_response(ApiKey.FETCH, 12, fetch, code)
    assert produced.responses[0].partition_responses[0].error_code == code
    assert fetched.responses[0].partitions[0].error_code == code
    assert error_response(ApiKey.FETCH, 12, FetchRequest(), code).error_code == code


def test_each_key_of_a_search_for_coordinators_gets_the_error() -> None:
    request = FindCoordinatorRequest(coordinator_keys=["one", "other"])
    found = error_response(ApiKey.FIND_COORDINATOR, 6, request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert [row.key for row in found.coordinators] == ["one", "other"]
    assert {row.error_code for row in found.coordinators} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
