"""The producer of the commands that send records."""

from __future__ import annotations

from typing import Final

from tidelog.client.cluster import Cluster
from tidelog.client.threads.cluster_clients import producer_of
from tidelog.client.threads.producer import Producer
from tidelog.records.compression import Compression
from tidelog.settings.setting import INT_MAX

ACKS: Final = ("all", "-1", "1", "0")
CODECS: Final = tuple(codec.name.lower() for codec in Compression)
MAX_REQUEST_BYTES: Final = 65 * 1024 * 1024
"""The largest request, which holds the longest line. Brokers accept requests of 100 MiB by default."""
_EVERY_REPLICA: Final = ("all", "-1")


def batch_producer(cluster: Cluster, *, acks: str, codec: str, batch_bytes: int) -> Producer[bytes, bytes]:
    """Returns a producer, not started, whose batches do not wait for more records.

    With acks=all, it is idempotent. It retries until the cluster's timeout.
    """
    timeout_ms = min(INT_MAX, max(1, int(cluster.timeout_s * 1000)))
    return producer_of(
        cluster,
        {
            "acks": acks,
            "enable.idempotence": acks in _EVERY_REPLICA,
            "compression.type": codec,
            "batch.size": min(batch_bytes, INT_MAX),
            "linger.ms": 0,
            "max.request.size": MAX_REQUEST_BYTES,
            "buffer.memory": MAX_REQUEST_BYTES,
            "max.block.ms": timeout_ms,
            "delivery.timeout.ms": timeout_ms,
        },
    )
