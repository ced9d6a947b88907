"""DeleteGroups v0 to v2: groups without members are deleted. Passed on to the coordinator of
each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.coordination.batched import forward_batched
from tidelog.broker.coordination.forwarding import WholeRequest, whole_decoder
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import Decoder

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


def decoder(version: int) -> Decoder:
    return whole_decoder(ApiKey.DELETE_GROUPS, version)


def handle(broker: Broker, request: WholeRequest, context: RequestContext) -> object:
    return forward_batched(broker, request, context)
