"""The response to a request that fails on purpose, with the error where the API has a place for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tidelog.broker.authorization.denials import (
    denied_epochs,
    denied_offset_lookup,
    denied_record_deletion,
)
from tidelog.broker.coordination.refusals import refuse_message
from tidelog.broker.handlers.controller_refusals import controller_refusal
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import (
    create_topics,
    delete_records,
    fetch,
    find_coordinator,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from tidelog.wire.schema import Message

_FIRST_FIND_COORDINATOR_WITH_KEYS: Final = 4
_MESSAGE: Final = "tidelog.testing made this request fail."

# `Any`: each function takes the request class of its API.


def error_response(
    api_key: ApiKey,
    version: int,
    request: Any,
    code: ErrorCode,
    brokers: Sequence[metadata.MetadataResponseBroker] = (),
) -> Message:
    """Returns the response that carries the error. Metadata also names the brokers. Raises ValueError for an
    API that has no place for an error.
    """
    if api_key == ApiKey.METADATA:
        return _metadata(request, code, brokers)
    make = _RESPONSES.get(api_key)
    if make is not None:
        return make(request, version, code)
    try:
        return refuse_message(api_key, version, request, code)
    except KeyError:
        pass
    try:
        return controller_refusal(api_key, version, request, code, _MESSAGE)
    except TypeError:  # the response has no field for an error message
        pass
    refused = ValueError(
        f"tidelog.testing has no error response for {api_key.name_in_kafka} v{version}; delay and "
        "lose_response work for each API"
    )
    try:
        response = codec.response_class(api_key)(error_code=code)
    except TypeError as error:
        raise refused from error
    body = b"".join(codec.response_encoder(api_key, version)(response))
    # An old version may lack the field, and the client would take the response for a success.
    if codec.response_decoder(api_key, version)(body, 0)[0].error_code != code:
        raise refused
    return response


def _metadata(
    request: metadata.MetadataRequest, code: ErrorCode, brokers: Sequence[metadata.MetadataResponseBroker]
) -> Message:
    """The error is at each topic that the request names. A request for all topics finds none."""
    return metadata.MetadataResponse(
        brokers=list(brokers),
        controller_id=brokers[0].node_id if brokers else -1,
        topics=[
            metadata.MetadataResponseTopic(code, topic.name, topic.topic_id) for topic in request.topics or ()
        ],
    )


def _produce(request: produce.ProduceRequest, version: int, code: ErrorCode) -> Message:
    return produce.ProduceResponse(
        [
            produce.TopicProduceResponse(
                topic.name,
                topic.topic_id,
                [
                    produce.PartitionProduceResponse(part.index, code, -1, error_message=_MESSAGE)
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(request: fetch.FetchRequest, version: int, code: ErrorCode) -> Message:
    if not request.topics:  # a fetch session (KIP-227) names only what has changed
        return fetch.FetchResponse(error_code=code)
    return fetch.FetchResponse(
        responses=[
            fetch.FetchableTopicResponse(
                topic.topic,
                topic.topic_id,
                [
                    fetch.PartitionData(part.partition, code, -1, aborted_transactions=None)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offsets(request: list_offsets.ListOffsetsRequest, version: int, code: ErrorCode) -> Message:
    return list_offsets.ListOffsetsResponse(
        topics=[denied_offset_lookup(topic, code) for topic in request.topics]
    )


def _leader_epochs(
    request: offset_for_leader_epoch.OffsetForLeaderEpochRequest, version: int, code: ErrorCode
) -> Message:
    return offset_for_leader_epoch.OffsetForLeaderEpochResponse(
        topics=[denied_epochs(topic, code) for topic in request.topics]
    )


def _find_coordinator(
    request: find_coordinator.FindCoordinatorRequest, version: int, code: ErrorCode
) -> Message:
    if version < _FIRST_FIND_COORDINATOR_WITH_KEYS:
        return find_coordinator.FindCoordinatorResponse(error_code=code, error_message=_MESSAGE, node_id=-1)
    return find_coordinator.FindCoordinatorResponse(
        coordinators=[
            find_coordinator.Coordinator(key, -1, "", -1, code, _MESSAGE) for key in request.coordinator_keys
        ]
    )


def _create_topics(request: create_topics.CreateTopicsRequest, version: int, code: ErrorCode) -> Message:
    return create_topics.CreateTopicsResponse(
        topics=[
            create_topics.CreatableTopicResult(topic.name, error_code=code, error_message=_MESSAGE)
            for topic in request.topics
        ]
    )


def _delete_records(request: delete_records.DeleteRecordsRequest, version: int, code: ErrorCode) -> Message:
    return delete_records.DeleteRecordsResponse(
        topics=[denied_record_deletion(topic, code) for topic in request.topics]
    )


_RESPONSES: Final[dict[ApiKey, Callable[[Any, int, ErrorCode], Message]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _leader_epochs,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_RECORDS: _delete_records,
}
