"""Metadata v0 to v13: brokers and topics, by name or topic id; makes unknown topics where
`auto.create.topics.enable` lets it.

Encoded answers are kept until the cluster's metadata changes. Deviation: a topic that is made on demand
is answered at once as it now is, where Kafka answers LEADER_NOT_AVAILABLE or UNKNOWN_TOPIC_OR_PARTITION
and lets the client ask again.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tidelog.broker.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from tidelog.broker.coordination.internal_topics import internal_topic
from tidelog.broker.request import EncodedBody
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import INTERNAL_TOPICS, ZERO_TOPIC_ID, topic_name_problem
from tidelog.rpc.broker_commands import NO_LEADER, PartitionState, TopicState
from tidelog.rpc.controller_api import ForwardedRequest
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext

_FIRST_VERSION_WITH_AUTO_CREATE_FLAG = 4
_FIRST_VERSION_WITH_NULL_FOR_ALL = 1
_CREATE_TIMEOUT_MS = 15_000


def handle(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> MetadataResponse | EncodedBody | Coroutine[Any, Any, MetadataResponse]:
    key = _cache_key(request, context)
    cached = broker.metadata_answers.get(key, broker.metadata.version)
    if cached is not None:
        return cached
    missing = _topics_to_create(broker, request, context)
    if missing:
        return _create_then_answer(broker, request, context, missing)
    response = _answer(broker, request, context)
    body = EncodedBody(context.route.encode(response))
    broker.metadata_answers.put(key, broker.metadata.version, body)
    return body


def _cache_key(request: MetadataRequest, context: RequestContext) -> tuple[object, ...]:
    topics = request.topics
    return (
        context.api_version,
        context.listener_name,
        None if topics is None else tuple((topic.topic_id, topic.name) for topic in topics),
        request.allow_auto_topic_creation,
        request.include_topic_authorized_operations,
        request.include_cluster_authorized_operations,
    )


def _wanted(request: MetadataRequest, version: int) -> list[MetadataRequestTopic] | None:
    """None: all topics. Version 0 says that with an empty list."""
    if version < _FIRST_VERSION_WITH_NULL_FOR_ALL and not request.topics:
        return None
    return request.topics


def _topics_to_create(broker: Broker, request: MetadataRequest, context: RequestContext) -> list[str]:
    allowed = request.allow_auto_topic_creation or context.api_version < _FIRST_VERSION_WITH_AUTO_CREATE_FLAG
    if not allowed or not broker.settings.auto_create_topics_enable:
        return []
    return [
        topic.name
        for topic in _wanted(request, context.api_version) or ()
        if topic.name is not None
        and topic.name not in broker.metadata.topics
        and topic_name_problem(topic.name) is None
    ]


async def _create_then_answer(
    broker: Broker, request: MetadataRequest, context: RequestContext, names: list[str]
) -> MetadataResponse:
    creation = CreateTopicsRequest(
        topics=[_creatable(broker, name) for name in dict.fromkeys(names)],
        timeout_ms=_CREATE_TIMEOUT_MS,
    )
    # In a version of that API's own: it is encoded on its way to the controller.
    _, version = CreateTopicsRequest.VERSIONS
    forwarded = ForwardedRequest(version, creation, client_id=context.client_id, host=context.host)
    errors: dict[str, int] = {}
    try:
        created: CreateTopicsResponse = await broker.controller.handle(ApiKey.CREATE_TOPICS, forwarded)
        errors = {result.name: result.error_code for result in created.topics if result.error_code}
    except (KafkaError, ConnectionError):
        errors = dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)  # the client asks again
    response = _answer(broker, request, context)
    for topic in response.topics:
        if topic.error_code and topic.name in errors:
            known = errors[topic.name]
            retry = known in (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NOT_CONTROLLER)
            topic.error_code = ErrorCode.LEADER_NOT_AVAILABLE if retry else known
    return response


def _creatable(broker: Broker, name: str) -> CreatableTopic:
    if name in INTERNAL_TOPICS:
        return internal_topic(name, broker.settings, len(broker.metadata.brokers))
    return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)


def _answer(broker: Broker, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    metadata = broker.metadata
    wanted = _wanted(request, context.api_version)
    with_operations = request.include_topic_authorized_operations
    if wanted is None:
        topics = [_topic(broker, state, with_operations) for state in metadata.topics.values()]
    else:
        topics = [_wanted_topic(broker, topic, with_operations) for topic in wanted]
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=known.broker_id, host=endpoint.host, port=endpoint.port, rack=known.rack
            )
            for known, endpoint in metadata.endpoints(context.listener_name)
        ],
        cluster_id=metadata.cluster_id,
        controller_id=broker.controller_id_for_clients(),
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def _wanted_topic(
    broker: Broker, wanted: MetadataRequestTopic, with_operations: bool
) -> MetadataResponseTopic:
    name = wanted.name
    if name is None:
        name = broker.metadata.topic_names.get(wanted.topic_id)
        if name is None:
            code = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if wanted.topic_id == ZERO_TOPIC_ID
                else ErrorCode.UNKNOWN_TOPIC_ID
            )
            return MetadataResponseTopic(error_code=code, name=None, topic_id=wanted.topic_id)
    state = broker.metadata.topics.get(name)
    if state is not None:
        return _topic(broker, state, with_operations)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_name_problem(name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)


def _topic(broker: Broker, state: TopicState, with_operations: bool) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=state.name,
        topic_id=state.topic_id,
        is_internal=state.name in INTERNAL_TOPICS,
        partitions=[_partition(broker, partition) for partition in state.partitions],
        topic_authorized_operations=TOPIC_OPERATIONS if with_operations else NOT_ASKED,
    )


def _partition(broker: Broker, state: PartitionState) -> MetadataResponsePartition:
    is_led = state.leader != NO_LEADER and state.leader in broker.metadata.brokers
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=state.partition,
        leader_id=state.leader if is_led else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=broker.metadata.offline_replicas(state),
    )
