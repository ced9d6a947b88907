"""ConsumerGroupHeartbeat v0 to v1: a member of a group of the consumer protocol (KIP-848). Passed on to the
coordinator.
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
    return named_decoder(ApiKey.CONSUMER_GROUP_HEARTBEAT, version)


def handle(broker: Broker, request: NamedRequest, context: RequestContext) -> object:
    return forward_named(broker, ShardKind.GROUP, request, context)
