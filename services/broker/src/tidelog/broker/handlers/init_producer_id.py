"""InitProducerId v0 to v5: an idempotent producer is given a new producer id by this broker, epoch 0; what a
transactional one is given is its coordinator's to say. Version 6 is unstable in Kafka 4.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.broker.coordination.forwarding import WholeRequest, forward_body, whole_decoder
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import Decoder
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext

_NONE: Final = -1


def decoder(version: int) -> Decoder:
    return whole_decoder(ApiKey.INIT_PRODUCER_ID, version)


def handle(broker: Broker, request: WholeRequest, context: RequestContext) -> object:
    message: InitProducerIdRequest = request.message
    if (message.producer_id == _NONE) != (message.producer_epoch == _NONE):
        return _refused(ErrorCode.INVALID_REQUEST)
    if message.transactional_id is None:
        return _new_id(broker)
    if not message.transactional_id:
        return _refused(ErrorCode.INVALID_REQUEST)
    return forward_body(broker, ShardKind.TRANSACTION, message.transactional_id, request.body, context)


async def _new_id(broker: Broker) -> InitProducerIdResponse:
    try:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next_id(), producer_epoch=0)
    except (KafkaError, ConnectionError):  # the controller moved or is away: the client tries again
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=_NONE, producer_epoch=_NONE)
