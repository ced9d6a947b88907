"""OffsetFetch v1 to v10: committed offsets, of several groups from v8 on, by topic id from v10 on. Passed on
to the coordinator of each group.
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

_FIRST_VERSION_WITH_GROUPS = 8


def decoder(version: int) -> Decoder:
    if version < _FIRST_VERSION_WITH_GROUPS:
        return named_decoder(ApiKey.OFFSET_FETCH, version)
    return whole_decoder(ApiKey.OFFSET_FETCH, version)


def handle(broker: Broker, request: NamedRequest | WholeRequest, context: RequestContext) -> object:
    if type(request) is WholeRequest:
        return forward_batched(broker, request, context)
    assert type(request) is NamedRequest
    return forward_named(broker, ShardKind.GROUP, request, context)
