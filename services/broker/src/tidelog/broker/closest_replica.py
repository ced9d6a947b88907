"""Which replica a consumer had better read from (KIP-392).

`replica.selector.class` names Kafka's `RackAwareReplicaSelector`, with or without its package: a consumer
that says where it stands (`client.rack`) is sent to a replica in its own rack. `LeaderSelector` has everybody
read from the leader, as without the setting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition.core import PartitionCore
    from tidelog.broker.request import RequestContext

_RACK_AWARE: Final = "RackAwareReplicaSelector"


def is_rack_aware(selector_class: str | None) -> bool:
    """Whether `replica.selector.class` has consumers read from followers at all."""
    return selector_class is not None and selector_class.rpartition(".")[2] == _RACK_AWARE


def closest_replica(
    broker: Broker, core: PartitionCore, rack: str, fetch_offset: int, context: RequestContext
) -> int | None:
    """The follower in the consumer's rack that has come furthest; None if it is best served by the leader.

    A follower counts if it is alive, in sync, has got `fetch_offset`, and can be reached by the listener that
    the consumer uses. The leader wins if it stands in that rack itself.
    """
    settings = broker.settings
    if not is_rack_aware(settings.replica_selector_class) or settings.broker_rack == rack:
        return None
    best, best_end_offset = None, fetch_offset - 1
    for replica in core.in_sync_replicas:
        known = broker.metadata.brokers.get(replica)
        if replica == core.broker_id or known is None or known.rack != rack:
            continue
        end_offset = core.follower_end_offset(replica)
        if end_offset > best_end_offset and known.endpoint(context.listener_name) is not None:
            best, best_end_offset = replica, end_offset
    return best
