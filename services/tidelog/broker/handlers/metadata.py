"""Metadata, DescribeTopicPartitions and DescribeCluster: what this broker knows of brokers and topics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Coroutine, Generator, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from tidelog.broker.coordination.internal_topics import internal_topic
from tidelog.broker.requests.request import EncodedBody
from tidelog.broker.security.judging import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from tidelog.kernel.slices import in_slices, run_in_slices
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import INTERNAL_TOPICS, ZERO_TOPIC_ID, topic_name_problem
from tidelog.rpc.broker_commands import PartitionState, TopicState
from tidelog.rpc.controller_api import ForwardedRequest
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tidelog.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.view import CurrentSettings, MetadataView
    from tidelog.broker.requests.request import RequestContext

_FIRST_VERSION_WITH_AUTO_CREATE_FLAG = 4
_FIRST_VERSION_WITH_NULL_FOR_ALL = 1
_FIRST_VERSION_WITH_TOPIC_IDS = 12
_FIRST_VERSION_WITH_DEAD_REPLICAS = 1
"""Older responses leave out replicas at dead brokers and report REPLICA_NOT_AVAILABLE, as in Kafka."""
_CREATE_TIMEOUT_MS = 15_000
MAX_ANSWERS: Final = 64
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""The limit for the size of all kept responses."""
MAX_TOPICS_TO_CREATE: Final = 1_000
"""The most topics that one request creates. The client asks again for the others."""
BROKERS: Final = 1
CONTROLLERS: Final = 2


class MetadataAnswers:
    """Encoded Metadata responses, kept as long as the metadata in them is current."""

    __slots__ = ("_answers", "_bytes", "_version")

    def __init__(self) -> None:
        self._version = -1
        self._answers: dict[tuple[object, ...], EncodedBody] = {}
        self._bytes = 0

    def get(self, key: tuple[object, ...], version: int) -> EncodedBody | None:
        return self._answers.get(key) if version == self._version else None

    def put(self, key: tuple[object, ...], version: int, body: EncodedBody) -> None:
        size = sum(map(len, body.chunks))
        if (
            version != self._version
            or len(self._answers) >= MAX_ANSWERS
            or self._bytes + size > MAX_ANSWER_BYTES
        ):
            self._answers.clear()
            self._bytes = 0
            self._version = version
        if size <= MAX_ANSWER_BYTES:
            self._answers[key] = body
            self._bytes += size


class MetadataHandler:
    """Metadata v0 to v13: brokers, and topics by name or topic id. Creates unknown topics if
    `auto.create.topics.enable` allows it.

    Encoded responses are kept until the cluster's metadata changes. Deviation: a topic that is created on
    demand is described at once. Kafka answers LEADER_NOT_AVAILABLE or UNKNOWN_TOPIC_OR_PARTITION, and the
    client asks again. A topic that is named twice is described once. A large response is made and encoded in
    slices.
    """

    def __init__(
        self, settings: CurrentSettings, metadata: MetadataView, controller: ControllerConnection
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._controller = controller
        self._answers = MetadataAnswers()

    def handle(
        self, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse | EncodedBody | Coroutine[object, None, MetadataResponse | EncodedBody]:
        if context.api_version < _FIRST_VERSION_WITH_TOPIC_IDS and _has_topic_ids(request):
            return _invalid(request)
        key = _cache_key(request, context)
        cached = self._answers.get(key, self._metadata.version)
        if cached is not None and context.edit is None:  # an edit would have to decode it, in one turn
            return cached
        missing = self._topics_to_create(request, context)
        if missing:
            return self._create_then_answer(request, context, missing)
        return in_slices(self._keep_answer(request, context, key))

    def _keep_answer(
        self, request: MetadataRequest, context: RequestContext, key: tuple[object, ...]
    ) -> Generator[None, None, MetadataResponse | EncodedBody]:
        version = self._metadata.version
        response = yield from self._answer(request, context)
        if context.edit is not None:  # it changes the response before it is encoded
            return response
        encode = codec.response_encoder_in_steps(ApiKey.METADATA, context.api_version)
        body = EncodedBody((yield from encode(response)))
        if version == self._metadata.version:
            self._answers.put(key, version, body)
        return body

    def _topics_to_create(self, request: MetadataRequest, context: RequestContext) -> list[str]:
        allowed = (
            request.allow_auto_topic_creation or context.api_version < _FIRST_VERSION_WITH_AUTO_CREATE_FLAG
        )
        if not allowed or not self._settings.broker.auto_create_topics_enable:
            return []
        missing: dict[str, None] = {}
        for topic in _wanted(request, context.api_version) or ():
            name = topic.name
            if topic.topic_id != ZERO_TOPIC_ID or name is None or name in self._metadata.topics:
                continue
            if topic_name_problem(name) is not None:
                continue
            if context.charge is not None and not context.charge.may_mutate(
                self._settings.broker.num_partitions
            ):
                break  # the other topics do not exist for a client above its quota (KIP-599)
            missing[name] = None
            if len(missing) == MAX_TOPICS_TO_CREATE:
                break
        return list(missing)

    async def _create_then_answer(
        self, request: MetadataRequest, context: RequestContext, names: list[str]
    ) -> MetadataResponse:
        creation = CreateTopicsRequest(
            topics=[self._creatable(name) for name in names],
            timeout_ms=_CREATE_TIMEOUT_MS,
        )
        # The version is CreateTopics' own, because the request is encoded on its way to the controller.
        _, version = CreateTopicsRequest.VERSIONS
        forwarded = ForwardedRequest(
            version,
            creation,
            principal=context.principal,
            client_id=context.client_id,
            host=context.host,
        )
        errors: dict[str, int] = {}
        try:
            answer = await self._controller.api.handle(ApiKey.CREATE_TOPICS, forwarded)
            created = cast("CreateTopicsResponse", answer)
            errors = {result.name: result.error_code for result in created.topics if result.error_code}
        except (KafkaError, ConnectionError):
            errors = dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)  # the client retries
        response = await run_in_slices(self._answer(request, context))
        for topic in response.topics:
            if topic.error_code and topic.name in errors:
                known = errors[topic.name]
                retry = known in (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NOT_CONTROLLER)
                topic.error_code = ErrorCode.LEADER_NOT_AVAILABLE if retry else known
        return response

    def _creatable(self, name: str) -> CreatableTopic:
        if name in INTERNAL_TOPICS:
            return internal_topic(name, self._settings.broker, len(self._metadata.brokers))
        return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)

    def _answer(
        self, request: MetadataRequest, context: RequestContext
    ) -> Generator[None, None, MetadataResponse]:
        metadata = self._metadata
        wanted = _wanted(request, context.api_version)
        with_operations = request.include_topic_authorized_operations
        only_live = context.api_version < _FIRST_VERSION_WITH_DEAD_REPLICAS
        topics = []
        if wanted is None:
            for state in tuple(metadata.topics.values()):
                topics.append((yield from self._topic(state, with_operations, only_live)))
                yield
        else:
            for topic in {(topic.topic_id, topic.name): topic for topic in wanted}.values():
                topics.append((yield from self._wanted_topic(topic, with_operations, only_live)))
                yield
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(
                    node_id=known.broker_id, host=endpoint.host, port=endpoint.port, rack=known.rack
                )
                for known, endpoint in metadata.endpoints(context.listener_name)
            ],
            cluster_id=metadata.cluster_id,
            controller_id=self._controller.id_for_clients,
            topics=topics,
            cluster_authorized_operations=CLUSTER_OPERATIONS
            if request.include_cluster_authorized_operations
            else NOT_ASKED,
        )

    def _wanted_topic(
        self, wanted: MetadataRequestTopic, with_operations: bool, only_live: bool
    ) -> Generator[None, None, MetadataResponseTopic]:
        # A client that asks by topic id leaves the name at its default, which is "" and not null.
        is_by_id = wanted.topic_id != ZERO_TOPIC_ID
        name = self._metadata.topic_names.get(wanted.topic_id) if is_by_id else wanted.name
        if name is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return MetadataResponseTopic(error_code=code, name=None, topic_id=wanted.topic_id)
        state = self._metadata.topics.get(name)
        if state is not None:
            return (yield from self._topic(state, with_operations, only_live))
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic_name_problem(name) is not None:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)

    def _topic(
        self, state: TopicState, with_operations: bool, only_live: bool
    ) -> Generator[None, None, MetadataResponseTopic]:
        partitions = []
        for partition in state.partitions:
            partitions.append(self._partition(partition, only_live))
            yield
        return MetadataResponseTopic(
            name=state.name,
            topic_id=state.topic_id,
            is_internal=state.name in INTERNAL_TOPICS,
            partitions=partitions,
            topic_authorized_operations=TOPIC_OPERATIONS if with_operations else NOT_ASKED,
        )

    def _partition(self, state: PartitionState, only_live: bool) -> MetadataResponsePartition:
        is_led = state.leader != NO_LEADER and state.leader in self._metadata.brokers
        offline = self._metadata.offline_replicas(state)
        hidden = offline if only_live else ()
        error = ErrorCode.REPLICA_NOT_AVAILABLE if hidden else ErrorCode.NONE
        return MetadataResponsePartition(
            error_code=error if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=state.partition,
            leader_id=state.leader if is_led else NO_LEADER,
            leader_epoch=state.leader_epoch,
            replica_nodes=[replica for replica in state.replicas if replica not in hidden],
            isr_nodes=[replica for replica in state.isr if replica not in hidden],
            offline_replicas=offline,
        )


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


def _has_topic_ids(request: MetadataRequest) -> bool:
    return any(topic.name is None or topic.topic_id != ZERO_TOPIC_ID for topic in request.topics or ())


def _invalid(request: MetadataRequest) -> MetadataResponse:
    """Refuses a null name or a topic id, which Kafka accepts only from v12 on."""
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id
            )
            for topic in request.topics or ()
        ]
    )


def _wanted(request: MetadataRequest, version: int) -> list[MetadataRequestTopic] | None:
    """Returns the requested topics, or None for all topics. Version 0 requests all with an empty list."""
    if version < _FIRST_VERSION_WITH_NULL_FOR_ALL and not request.topics:
        return None
    return request.topics


class DescribeTopicPartitionsHandler:
    """DescribeTopicPartitions v0: topics in the order of their names, one page of partitions at a time
    (KIP-966).

    A page has at most `response_partition_limit` partitions, and at most `max.request.partition.size.limit`.
    `next_cursor` is the start of the next page. Deviation: an invalid topic name is answered with
    INVALID_TOPIC_EXCEPTION; Kafka fails the whole request.
    """

    def __init__(self, settings: CurrentSettings, metadata: MetadataView) -> None:
        self._settings = settings
        self._metadata = metadata

    def handle(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> DescribeTopicPartitionsResponse:
        try:
            names = self._names(request)
        except KafkaError as error:
            return DescribeTopicPartitionsResponse(
                topics=[
                    DescribeTopicPartitionsResponseTopic(error_code=error.code, name=topic.name)
                    for topic in request.topics
                ]
            )
        limit = max(
            min(request.response_partition_limit, self._settings.broker.max_request_partition_size_limit), 1
        )
        return self._page(names, request.cursor, limit)

    def _names(self, request: DescribeTopicPartitionsRequest) -> Iterable[str]:
        """Returns the topics from the cursor's topic on. A request without topics asks for all of them."""
        cursor = request.cursor
        first = cursor.topic_name if cursor is not None else ""
        names: Sequence[str]
        if request.topics:
            names = sorted({topic.name for topic in request.topics if topic.name >= first})
        else:
            names = self._metadata.sorted_topics()
        if cursor is not None and cursor.partition_index < 0:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"The cursor's partition index {cursor.partition_index} is invalid"
            )
        if cursor is not None and request.topics and first not in names:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"The request does not contain the cursor's topic {first}"
            )
        # The page may end after a few of very many topics.
        return islice(names, bisect_left(names, first), None)

    def _page(
        self, names: Iterable[str], cursor: Cursor | None, limit: int
    ) -> DescribeTopicPartitionsResponse:
        response = DescribeTopicPartitionsResponse()
        left = limit
        for name in names:
            if left == 0:
                response.next_cursor = Cursor(name, 0)
                break
            state = self._metadata.topics.get(name)
            if state is None:
                response.topics.append(_unknown_topic(name))
                continue
            first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
            end = min(first + left, len(state.partitions))
            response.topics.append(self._topic(state, state.partitions[first:end]))
            if end < len(state.partitions):
                response.next_cursor = Cursor(name, end)
                break
            left -= max(end - first, 0)
        return response

    def _topic(
        self, state: TopicState, partitions: Iterable[PartitionState]
    ) -> DescribeTopicPartitionsResponseTopic:
        return DescribeTopicPartitionsResponseTopic(
            name=state.name,
            topic_id=state.topic_id,
            is_internal=state.name in INTERNAL_TOPICS,
            partitions=[self._partition(partition) for partition in partitions],
            topic_authorized_operations=TOPIC_OPERATIONS,
        )

    def _partition(self, state: PartitionState) -> DescribeTopicPartitionsResponsePartition:
        return DescribeTopicPartitionsResponsePartition(
            partition_index=state.partition,
            leader_id=state.leader if state.leader in self._metadata.brokers else NO_LEADER,
            leader_epoch=state.leader_epoch,
            replica_nodes=list(state.replicas),
            isr_nodes=list(state.isr),
            eligible_leader_replicas=list(state.elr),
            last_known_elr=list(state.last_known_elr),
            offline_replicas=self._metadata.offline_replicas(state),
        )


def _unknown_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    is_illegal = topic_name_problem(name) is not None
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.INVALID_TOPIC_EXCEPTION if is_illegal else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


class DescribeClusterHandler:
    """DescribeCluster v0 to v2: the live brokers, with their addresses on the client's listener.

    There are never fenced brokers (v2), because a broker that has lost its lease is no longer known. As in
    all responses to clients, the controller id is the id of a broker that accepts admin requests. Only
    endpoint type 1 (brokers) is served.
    """

    def __init__(self, metadata: MetadataView, controller: ControllerConnection) -> None:
        self._metadata = metadata
        self._controller = controller

    def handle(self, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        if request.endpoint_type == CONTROLLERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                error_message="This endpoint belongs to a broker, but the request is for a controller",
            )
        if request.endpoint_type != BROKERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message=f"Unsupported endpoint type {request.endpoint_type}",
            )
        with_operations = request.include_cluster_authorized_operations
        return DescribeClusterResponse(
            cluster_id=self._metadata.cluster_id,
            controller_id=self._controller.id_for_clients,
            brokers=[
                DescribeClusterBroker(
                    broker_id=known.broker_id, host=endpoint.host, port=endpoint.port, rack=known.rack
                )
                for known, endpoint in self._metadata.endpoints(context.listener_name)
            ],
            cluster_authorized_operations=CLUSTER_OPERATIONS if with_operations else NOT_ASKED,
        )
