"""FindCoordinator v0 to v6: the broker that leads the partition of a group's or transactional id's shard; it
passes requests on to whoever owns the shard. From v4 on for several names at once.

The internal topic is made at the first request and waited for, where Kafka answers
COORDINATOR_NOT_AVAILABLE meanwhile. There are no share groups: INVALID_REQUEST, as from Kafka without them.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext

FIRST_CLAIM_MS: Final = 2_000
"""How long the answer waits for a coordinator of a new topic's shards."""
_FIRST_VERSION_WITH_KEYS: Final = 4
_NO_NODE: Final = -1
_KINDS: Final = {0: ShardKind.GROUP, 1: ShardKind.TRANSACTION}
_MESSAGES: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: "There are no coordinators of this key type.",
}


def handle(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse | Coroutine[Any, Any, FindCoordinatorResponse]:
    kind = _KINDS.get(request.key_type)
    if kind is not None and not broker.coordination.topics.exists(kind):
        return _make_then_answer(broker, request, context, kind)
    return _answer(broker, request, context, kind)


async def _make_then_answer(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext, kind: ShardKind
) -> FindCoordinatorResponse:
    coordination = broker.coordination
    await coordination.topics.make(kind)
    keys = request.coordinator_keys or [request.key]
    shards = {shard for key in keys if (shard := coordination.shard_of(kind, key)) is not None}
    # A client that comes while its shard is being claimed would have to wait longer than this takes.
    await coordination.until_served(shards, FIRST_CLAIM_MS)
    return _answer(broker, request, context, kind)


def _answer(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext, kind: ShardKind | None
) -> FindCoordinatorResponse:
    if context.api_version >= _FIRST_VERSION_WITH_KEYS:
        return FindCoordinatorResponse(
            coordinators=[_find(broker, kind, key, context) for key in request.coordinator_keys]
        )
    found = _find(broker, kind, request.key, context)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(broker: Broker, kind: ShardKind | None, key: str, context: RequestContext) -> Coordinator:
    if kind is None:
        return _refused(key, ErrorCode.INVALID_REQUEST)
    shard = broker.coordination.shard_of(kind, key)
    leader = None if shard is None else broker.leader_of(*shard.topic_partition)
    node = None if leader is None else broker.metadata.node(leader[0], context.listener_name)
    if node is None:
        return _refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    known, endpoint = node
    return Coordinator(key, known.broker_id, endpoint.host, endpoint.port)


def _refused(key: str, code: ErrorCode) -> Coordinator:
    return Coordinator(key, _NO_NODE, "", _NO_NODE, code, _MESSAGES[code])
