"""Producers and consumers of the cluster that a `Cluster` is connected to.

They have its bootstrap addresses, security, client id and timeout, so that a command describes them once.
"""

from __future__ import annotations

from tidelog.client.cluster import Cluster
from tidelog.client.core.properties import Properties
from tidelog.client.partitioners import Partitioner, by_key
from tidelog.client.threads.consumer import Consumer
from tidelog.client.threads.producer import Producer
from tidelog.settings.setting import INT_MAX


def consumer_of(cluster: Cluster, settings: Properties) -> Consumer[bytes, bytes]:
    """Returns a consumer that is not started. Starting it raises SettingsError, ClientError."""
    return Consumer(
        cluster.bootstrap, {**_connection_settings(cluster), **settings}, security=cluster.security
    )


def producer_of(
    cluster: Cluster, settings: Properties, *, partitioner: Partitioner = by_key
) -> Producer[bytes, bytes]:
    """Returns a producer that is not started. Raises SettingsError; starting it raises ClientError."""
    return Producer(
        cluster.bootstrap,
        {**_connection_settings(cluster), **settings},
        partitioner=partitioner,
        security=cluster.security,
    )


def _connection_settings(cluster: Cluster) -> Properties:
    timeout_ms = min(INT_MAX, max(1, int(cluster.timeout_s * 1000)))
    return {
        "client.id": cluster.client_id,
        "request.timeout.ms": timeout_ms,
        "socket.connection.setup.timeout.ms": timeout_ms,
    }
