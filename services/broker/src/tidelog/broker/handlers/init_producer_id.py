"""InitProducerId v0 to v5 for idempotent producers: a new producer id, epoch 0.

Transactional ids are answered COORDINATOR_NOT_AVAILABLE (retriable) until there is a transaction
coordinator. Version 6 is unstable in Kafka 4.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


async def handle(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if request.transactional_id else ErrorCode.INVALID_REQUEST
        return _refused(code)
    try:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next_id(), producer_epoch=0)
    except (KafkaError, ConnectionError):  # the controller moved or is away: the client tries again
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
