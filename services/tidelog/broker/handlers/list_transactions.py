"""ListTransactions v0 to v2: the transactions of all shards whose partitions this broker leads, filtered by
state, producer, duration and pattern (KIP-664, KIP-994, KIP-1152).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.coordination.batched import WholeRequest, ask_all_shards
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.list_transactions import ListTransactionsResponse

if TYPE_CHECKING:
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.requests.request import RequestContext


class ListTransactionsHandler:
    """Answers ListTransactions."""

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
