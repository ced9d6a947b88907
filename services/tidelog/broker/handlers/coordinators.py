"""FindCoordinator, ListGroups and ListTransactions: the coordinators of groups and transactions."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from tidelog.broker.coordination.batched import WholeRequest, ask_all_shards
from tidelog.kernel.slices import in_slices, run_in_slices
from tidelog.kernel.steps import Steps
from tidelog.model.coordinator_shards import ShardId, ShardKind, is_share_partition_key
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.wire.messages.list_groups import ListGroupsResponse
from tidelog.wire.messages.list_transactions import ListTransactionsResponse

if TYPE_CHECKING:
    from tidelog.broker.cluster.view import MetadataView
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.requests.request import RequestContext

FIRST_CLAIM_MS: Final = 2_000
"""The longest time that a response waits for a coordinator to claim the shards of a new topic."""
_FIRST_VERSION_WITH_KEYS: Final = 4
_FIRST_VERSION_WITH_SHARES: Final = 6
_NO_NODE: Final = -1
_KINDS: Final = {0: ShardKind.GROUP, 1: ShardKind.TRANSACTION, 2: ShardKind.SHARE}
_MESSAGES: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: "There are no coordinators of this key type, or the key is not valid.",
}


class FindCoordinatorHandler:
    """FindCoordinator v0 to v6: the broker that leads the partition of the shard of a group or transactional
    id. That broker passes requests on to the owner of the shard. From v4 on, a request may contain several
    names.

    The first request creates the internal topic and waits for it; Kafka answers COORDINATOR_NOT_AVAILABLE in
    the meantime. The key of a share partition (key type 2, from v6 on) is `group:topicId:partition`.
    """

    def __init__(self, metadata: MetadataView, hosted: HostedPartitions, coordination: Coordination) -> None:
        self._metadata = metadata
        self._hosted = hosted
        self._coordination = coordination

    def handle(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse | Coroutine[object, None, FindCoordinatorResponse]:
        kind = _KINDS.get(request.key_type)
        if kind is ShardKind.SHARE and not _are_share_partitions(request, context.api_version):
            kind = None
        if kind is not None and not self._coordination.topics.exists(kind):
            return self._make_then_answer(request, context, kind)
        return in_slices(self._answer(request, context, kind))

    async def _make_then_answer(
        self, request: FindCoordinatorRequest, context: RequestContext, kind: ShardKind
    ) -> FindCoordinatorResponse:
        coordination = self._coordination
        await coordination.topics.make(kind)
        keys = request.coordinator_keys or [request.key]
        shards = await run_in_slices(_shards(coordination, kind, keys))
        # Otherwise, a client that asks while its shard is being claimed would wait for its own retry, which
        # takes longer.
        await coordination.until_served(shards, FIRST_CLAIM_MS)
        return await run_in_slices(self._answer(request, context, kind))

    def _answer(
        self, request: FindCoordinatorRequest, context: RequestContext, kind: ShardKind | None
    ) -> Steps[FindCoordinatorResponse]:
        if context.api_version >= _FIRST_VERSION_WITH_KEYS:
            coordinators = []
            for key in request.coordinator_keys:
                coordinators.append(self._find(kind, key, context))
                yield
            return FindCoordinatorResponse(coordinators=coordinators)
        found = self._find(kind, request.key, context)
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )

    def _find(self, kind: ShardKind | None, key: str, context: RequestContext) -> Coordinator:
        if kind is None:
            return _refused(key, ErrorCode.INVALID_REQUEST)
        shard = self._coordination.shard_of(kind, key)
        leader = None if shard is None else self._hosted.leader_of(*shard.topic_partition)
        node = None if leader is None else self._metadata.node(leader[0], context.listener_name)
        if node is None:
            return _refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        known, endpoint = node
        return Coordinator(key, known.broker_id, endpoint.host, endpoint.port)


def _shards(coordination: Coordination, kind: ShardKind, keys: list[str]) -> Steps[set[ShardId]]:
    """Returns the shards of the keys. The shard of a long key takes milliseconds to find."""
    shards = set()
    for key in keys:
        shard = coordination.shard_of(kind, key)
        if shard is not None:
            shards.add(shard)
        yield
    return shards


def _are_share_partitions(request: FindCoordinatorRequest, version: int) -> bool:
    return version >= _FIRST_VERSION_WITH_SHARES and all(
        map(is_share_partition_key, request.coordinator_keys)
    )


def _refused(key: str, code: ErrorCode) -> Coordinator:
    return Coordinator(key, _NO_NODE, "", _NO_NODE, code, _MESSAGES[code])


class ListGroupsHandler:
    """ListGroups v0 to v5: the groups of all shards whose partitions this broker leads, filtered by state and
    type.

    If one shard is still being loaded, its error becomes the error of the whole response, beside the groups
    of the other shards. The list would not be complete otherwise. Kafka does the same.
    """

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def handle(self, request: WholeRequest, context: RequestContext) -> ListGroupsResponse:
        listed = ListGroupsResponse()
        for answer, error in await ask_all_shards(self._coordination, ShardKind.GROUP, request.body, context):
            if answer is None:
                failed = error
            else:
                failed = ErrorCode(answer.error_code)
                listed.groups += answer.groups
            if failed and failed is not ErrorCode.NOT_COORDINATOR:  # another broker lists that shard's groups
                listed.error_code = failed
        return listed


class ListTransactionsHandler:
    """ListTransactions v0 to v2: the transactions of all shards whose partitions this broker leads, filtered
    by state, producer, duration and pattern (KIP-664, KIP-994, KIP-1152).
    """

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def handle(self, request: WholeRequest, context: RequestContext) -> ListTransactionsResponse:
        listed = ListTransactionsResponse()
        unknown_states: dict[str, None] = {}
        for answer, error in await ask_all_shards(
            self._coordination, ShardKind.TRANSACTION, request.body, context
        ):
            if answer is None:
                if error is not ErrorCode.NOT_COORDINATOR:  # another broker lists that shard's transactions
                    listed.error_code = error
                continue
            listed.error_code = answer.error_code or listed.error_code
            unknown_states.update(dict.fromkeys(answer.unknown_state_filters))
            listed.transaction_states += answer.transaction_states
        listed.unknown_state_filters = list(unknown_states)
        if listed.error_code:
            listed.transaction_states = []  # as in Kafka, an error leaves no partial list
        return listed
