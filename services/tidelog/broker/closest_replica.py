"""The choice of the replica from which a consumer should read (KIP-392).

If `replica.selector.class` names Kafka's `RackAwareReplicaSelector`, with or without its package, a consumer
that sends its rack (`client.rack`) reads from a replica in that rack. With `LeaderSelector`, and without the
setting, all consumers read from the leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.broker.metadata_view import MetadataView
    from tidelog.broker.partition.core import PartitionCore
    from tidelog.settings.broker_settings import BrokerSettings

_RACK_AWARE: Final = "RackAwareReplicaSelector"


def is_rack_aware(selector_class: str | None) -> bool:
    """Returns whether this `replica.selector.class` lets consumers read from followers."""
    return selector_class is not None and selector_class.rpartition(".")[2] == _RACK_AWARE


def closest_replica(
    settings: BrokerSettings,
    metadata: MetadataView,
    core: PartitionCore,
    rack: str,
    fetch_offset: int,
    listener_name: str,
) -> int | None:
    """Returns the follower in the consumer's rack with the highest log end offset, None if the consumer
    should read from the leader.

    A follower must be alive and in sync, have `fetch_offset`, and have an address on the consumer's listener.
    If the leader is in the consumer's rack, the consumer reads from the leader.
    """
    if not is_rack_aware(settings.replica_selector_class) or settings.broker_rack == rack:
        return None
    best, best_end_offset = None, fetch_offset - 1
    for replica in core.in_sync_replicas:
        known = metadata.brokers.get(replica)
        if replica == core.broker_id or known is None or known.rack != rack:
            continue
        end_offset = core.follower_end_offset(replica)
        if end_offset > best_end_offset and known.endpoint(listener_name) is not None:
            best, best_end_offset = replica, end_offset
    return best
