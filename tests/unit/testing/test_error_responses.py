"""The response of each API to a request that fails on purpose can be encoded and carries the error."""

from __future__ import annotations

import pytest

from tidelog.broker.requests.apis import APIS
from tidelog.model.errors import ErrorCode
from tidelog.testing.error_responses import error_response
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


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
