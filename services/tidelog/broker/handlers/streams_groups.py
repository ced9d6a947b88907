"""StreamsGroupHeartbeat and StreamsGroupTopologyDescriptionUpdate: streams groups (KIP-1071)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from tidelog.broker.coordination.batched import WholeRequest, ask_shard_for_bytes
from tidelog.broker.requests.error_responses import error_response
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.slices import TaskSet
from tidelog.model.acl import AclOperation, ResourceType
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.controller_api import ForwardedRequest
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.malformed import MalformedMessageError
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.wire.messages.streams_group_heartbeat import (
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from tidelog.wire.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.requests.request import RequestContext
    from tidelog.broker.security.authorizer import Authorizer
    from tidelog.kernel.clock import Clock
    from tidelog.settings.group_settings import GroupSettingsView

MISSING_INTERNAL_TOPICS: Final = 3
"""The code of the status, as in Kafka's `StreamsGroupHeartbeatResponse.Status`."""
CREATE_TOPICS_VERSION: Final = CreateTopicsRequest.VERSIONS[1]
"""The version of the request that follows a coordinator's answer."""
MAX_KNOWN_FAILURES: Final = 1_000
"""The topics whose failed creation is remembered. The oldest failures are forgotten first."""
MAX_CREATIONS: Final = 1_000
"""The internal topics that this broker has being created at a time. A later heartbeat asks for the others."""
MAX_TOLD_FAILURES: Final = 3
"""The failures, or the topics that the client may not create, that one answer names. It counts the others."""
HEARTBEATS_OF_A_FAILURE: Final = 2
"""The heartbeat intervals for which a failure is remembered, and its topic is not created again."""


class _Failure(NamedTuple):
    reason: str
    expires_ms: MonotonicMs


class StreamsGroupHeartbeatHandler:
    """StreamsGroupHeartbeat v0 and v1 (KIP-1071). The coordinator of the group answers. If it misses internal
    topics of the application, its answer is followed by the CreateTopics request for them, and this broker
    has the controller create them in the client's name.

    The client does not wait for the topics: it learns from a later heartbeat that they exist. An answer tells
    why earlier attempts failed.
    """

    def __init__(
        self,
        coordination: Coordination,
        controller: ControllerConnection,
        authorizer: Authorizer | None,
        group_settings: GroupSettingsView,
        clock: Clock,
    ) -> None:
        self._coordination = coordination
        self._controller = controller
        self._authorizer = authorizer
        self._group_settings = group_settings
        self._clock = clock
        self._failures: dict[str, _Failure] = {}
        self._in_creation: set[str] = set()
        self._creations: TaskSet[None] = TaskSet()

    async def handle(self, request: WholeRequest, context: RequestContext) -> StreamsGroupHeartbeatResponse:
        message: StreamsGroupHeartbeatRequest = request.message
        version = context.api_version
        api_key = ApiKey.STREAMS_GROUP_HEARTBEAT
        shard = self._coordination.shard_of(ShardKind.GROUP, message.group_id)
        answer, error = await ask_shard_for_bytes(
            self._coordination, shard, api_key, version, request.body, context
        )
        if answer is None:
            return cast(StreamsGroupHeartbeatResponse, error_response(api_key, version, message, error))
        try:
            response, end = codec.response_decoder(api_key, version)(answer, 0)
            creation = None
            if end < len(answer):
                decode = codec.request_decoder(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION)
                creation, _ = decode(answer, end)
        except MalformedMessageError:
            return StreamsGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        if creation is not None:
            self._create(message.group_id, creation, response, context)
        return cast(StreamsGroupHeartbeatResponse, response)

    def _create(
        self,
        group_id: str,
        creation: CreateTopicsRequest,
        response: StreamsGroupHeartbeatResponse,
        context: RequestContext,
    ) -> None:
        """Begins to create the topics, and completes the response."""
        denied = self._denied(creation.topics, context)
        if denied:
            _add_detail(response, f"Unauthorized to CREATE on topics {_told(denied, str)}.")
            return
        now_ms = self._clock.monotonic_ms()
        interval_ms = self._group_settings.for_group(group_id).streams_heartbeat_interval_ms
        timeout_ms = interval_ms * HEARTBEATS_OF_A_FAILURE
        due: list[CreatableTopic] = []
        for topic in creation.topics:
            if len(self._in_creation) >= MAX_CREATIONS:
                break
            if not self._is_due(topic.name, now_ms):
                continue
            if context.charge is not None and not context.charge.may_mutate(topic.num_partitions):
                break  # a client above its quota asks again with a later heartbeat (KIP-599)
            self._in_creation.add(topic.name)
            due.append(topic)
        if due:
            work = self._create_in_background(creation, due, timeout_ms, context)
            self._creations.start(work, loop=context.connection.loop)
        failed = [topic.name for topic in creation.topics if topic.name in self._failures]
        if failed and any(known.status_code == MISSING_INTERNAL_TOPICS for known in response.status or ()):
            told = _told(failed, lambda name: f"{name} ({self._failures[name].reason})")
            _add_detail(response, f"Creation failed: {told}.")

    def _denied(self, topics: Iterable[CreatableTopic], context: RequestContext) -> list[str]:
        """Returns the topics that the client may not create."""
        authorizer = self._authorizer
        if authorizer is None or authorizer.may(
            context, AclOperation.CREATE, ResourceType.CLUSTER, is_asked_for=False
        ):
            return []
        return [
            topic.name
            for topic in topics
            if not authorizer.may(context, AclOperation.CREATE, ResourceType.TOPIC, topic.name)
        ]

    def _is_due(self, name: str, now_ms: MonotonicMs) -> bool:
        failure = self._failures.get(name)
        if failure is not None:
            if failure.expires_ms > now_ms:
                return False
            del self._failures[name]
        return name not in self._in_creation

    async def _create_in_background(
        self,
        creation: CreateTopicsRequest,
        topics: list[CreatableTopic],
        timeout_ms: int,
        context: RequestContext,
    ) -> None:
        forwarded = ForwardedRequest(
            CREATE_TOPICS_VERSION,
            CreateTopicsRequest(topics=topics, timeout_ms=creation.timeout_ms),
            principal=context.principal,
            client_id=context.client_id,
            host=context.host,
        )
        reasons: dict[str, str]
        try:
            answer = await self._controller.api.handle(ApiKey.CREATE_TOPICS, forwarded)
            reasons = {
                result.name: result.error_message or ErrorCode(result.error_code).name
                for result in cast("CreateTopicsResponse", answer).topics
                if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            }
        except (KafkaError, ConnectionError) as error:
            reasons = dict.fromkeys((topic.name for topic in topics), str(error))
        finally:
            self._in_creation.difference_update(topic.name for topic in topics)
        expires_ms = MonotonicMs(self._clock.monotonic_ms() + timeout_ms)
        for name, reason in reasons.items():
            self._failures.pop(name, None)
            self._failures[name] = _Failure(reason, expires_ms)
        while len(self._failures) > MAX_KNOWN_FAILURES:
            del self._failures[next(iter(self._failures))]


def _told(names: list[str], text_of: Callable[[str], str]) -> str:
    """Returns the texts of the first topics, and the number of the others."""
    told = ", ".join(map(text_of, names[:MAX_TOLD_FAILURES]))
    further = len(names) - MAX_TOLD_FAILURES
    return f"{told} and {further} more" if further > 0 else told


def _add_detail(response: StreamsGroupHeartbeatResponse, detail: str) -> None:
    """Adds a sentence to the status that names the missing internal topics."""
    if response.status is None:
        response.status = []
    for known in response.status:
        if known.status_code == MISSING_INTERNAL_TOPICS:
            known.status_detail = f"{known.status_detail}; {detail}"
            return
    response.status.append(Status(MISSING_INTERNAL_TOPICS, detail))


def streams_group_topology_description_update(
    request: StreamsGroupTopologyDescriptionUpdateRequest, context: RequestContext
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    """StreamsGroupTopologyDescriptionUpdate v0 (KIP-1331): refused, because nothing keeps descriptions.

    Kafka 4.4 answers so without a plugin that keeps them. Clients send it only if the response to a heartbeat
    asks for it.
    """
    return StreamsGroupTopologyDescriptionUpdateResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="The broker has no streams group topology description plugin configured.",
    )
