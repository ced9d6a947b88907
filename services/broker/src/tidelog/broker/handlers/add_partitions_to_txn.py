"""AddPartitionsToTxn v0 to v5: partitions are to be part of a transaction. From v4 on brokers ask, for
several transactions, and perhaps only whether they are (KIP-890). Passed on to the coordinator of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.coordination.batched import forward_batched
from tidelog.broker.coordination.forwarding import (
    NamedRequest,
    WholeRequest,
    forward_named,
    named_decoder,
    whole_decoder,
)
from tidelog.model.coordinator_shards import ShardKind
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import Decoder

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext

_FIRST_VERSION_WITH_TRANSACTIONS = 4


def decoder(version: int) -> Decoder:
    if version < _FIRST_VERSION_WITH_TRANSACTIONS:
        return named_decoder(ApiKey.ADD_PARTITIONS_TO_TXN, version)
    return whole_decoder(ApiKey.ADD_PARTITIONS_TO_TXN, version)


def handle(broker: Broker, request: NamedRequest | WholeRequest, context: RequestContext) -> object:
    if type(request) is WholeRequest:
        return forward_batched(broker, request, context)
    assert type(request) is NamedRequest
    return forward_named(broker, ShardKind.TRANSACTION, request, context)
