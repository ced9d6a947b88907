"""TxnOffsetCommit v0 to v5: offsets that count once their transaction is committed. Decided by the group's
coordinator. Passed on to the coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.coordination.forwarding import NamedRequest, forward_named, named_decoder
from tidelog.model.coordinator_shards import ShardKind
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import Decoder

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


def decoder(version: int) -> Decoder:
    # The transactional id stands before the group id.
    return named_decoder(ApiKey.TXN_OFFSET_COMMIT, version, strings_before=1)


def handle(broker: Broker, request: NamedRequest, context: RequestContext) -> object:
    return forward_named(broker, ShardKind.GROUP, request, context)
