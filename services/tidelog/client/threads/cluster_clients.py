"""Producers and consumers of the cluster that a `Cluster` is connected to.

They have its bootstrap addresses, security, client id and timeout, so that a command describes them once.
"""

from __future__ import annotations

from typing import Final

from tidelog.client.cluster import Cluster
from tidelog.client.core.properties import Properties
from tidelog.client.threads.consumer import Consumer
from tidelog.client.threads.producer import Producer
from tidelog.settings.setting import INT_MAX

DEFAULT_BATCH_BYTES: Final = 16_384
MAX_REQUEST_BYTES: Final = 65 * 1024 * 1024
"""The largest request, and the most bytes that wait. Brokers accept requests of 100 MiB by default."""
_EVERY_REPLICA: Final = ("all", "-1")


def consumer_of(cluster: Cluster, settings: Properties) -> Consumer[bytes, bytes]:
    """Returns a consumer that is not started. Starting it raises SettingsError, ClientError."""
    return Consumer(
        cluster.bootstrap, {**_connection_settings(cluster), **settings}, security=cluster.security
    )


def batch_producer_of(
    cluster: Cluster,
    *,
    acks: str = "all",
    compression: str = "none",
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    is_idempotent: bool | None = None,
) -> Producer[bytes, bytes]:
    """Returns a producer, not started, whose batches do not wait for more records.

    It retries until the cluster's timeout. `is_idempotent` None means that it is with acks=all. Starting it
    raises ClientError.
    """
    connection = _connection_settings(cluster)
    return Producer(
        cluster.bootstrap,
        {
            **connection,
            "acks": acks,
            "enable.idempotence": acks in _EVERY_REPLICA if is_idempotent is None else is_idempotent,
            "compression.type": compression,
            "batch.size": min(batch_bytes, INT_MAX),
            "linger.ms": 0,
            "max.request.size": MAX_REQUEST_BYTES,
            "buffer.memory": MAX_REQUEST_BYTES,
            "max.block.ms": connection["request.timeout.ms"],
            "delivery.timeout.ms": connection["request.timeout.ms"],
        },
        security=cluster.security,
    )


def _connection_settings(cluster: Cluster) -> Properties:
    timeout_ms = min(INT_MAX, max(1, int(cluster.timeout_s * 1000)))
    return {
        "client.id": cluster.client_id,
        "request.timeout.ms": timeout_ms,
        "socket.connection.setup.timeout.ms": timeout_ms,
    }
