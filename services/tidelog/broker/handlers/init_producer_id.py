"""InitProducerId v0 to v5. This broker gives an idempotent producer a new producer id with epoch 0. The
coordinator answers a transactional producer. Version 6 is unstable in Kafka 4.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.broker.coordination.batched import WholeRequest
from tidelog.broker.coordination.coordination import forward_body
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.coordination.coordination import Coordination
    from tidelog.broker.requests.request import Answer, RequestContext

_NONE: Final = -1


class InitProducerIdHandler:
    """Answers InitProducerId."""

    def __init__(self, controller: ControllerConnection, coordination: Coordination) -> None:
        self._controller = controller
        self._coordination = coordination

    def handle(self, request: WholeRequest, context: RequestContext) -> Answer:
        message: InitProducerIdRequest = request.message
        if (message.producer_id == _NONE) != (message.producer_epoch == _NONE):
            return _refused(ErrorCode.INVALID_REQUEST)
        if message.transactional_id is None:
            return self._new_id()
        if not message.transactional_id:
            return _refused(ErrorCode.INVALID_REQUEST)
        return forward_body(
            self._coordination, ShardKind.TRANSACTION, message.transactional_id, request.body, context
        )

    async def _new_id(self) -> InitProducerIdResponse:
        try:
            return InitProducerIdResponse(
                producer_id=await self._controller.next_producer_id(), producer_epoch=0
            )
        # the controller moved or cannot be reached, so the client retries
        except (KafkaError, ConnectionError):
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=_NONE, producer_epoch=_NONE)
