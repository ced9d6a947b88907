"""ListGroups v0 to v5: the groups of all shards whose partitions this broker leads, filtered by state and
type.

If one shard is still being loaded, its error becomes the error of the whole response, beside the groups of
the other shards. The list would not be complete otherwise. Kafka does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.coordination.batched import WholeRequest, ask_all_shards
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.list_groups import ListGroupsResponse

if TYPE_CHECKING:
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.requests.request import RequestContext


class ListGroupsHandler:
    """Answers ListGroups."""

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
