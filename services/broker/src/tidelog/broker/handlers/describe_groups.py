"""DescribeGroups v0 to v6: classic groups and their members. Passed on to the coordinator of each group; what
the client may do with it is this broker's to tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.coordination.described import forward_described
from tidelog.broker.coordination.forwarding import WholeRequest, whole_decoder
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import Decoder

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


def decoder(version: int) -> Decoder:
    return whole_decoder(ApiKey.DESCRIBE_GROUPS, version)


def handle(broker: Broker, request: WholeRequest, context: RequestContext) -> object:
    return forward_described(broker, request, context)
