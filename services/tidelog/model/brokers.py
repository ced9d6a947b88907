"""A broker as the rest of the cluster knows it: its id, its epoch and where it listens."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.model.topics import TopicPartition


class Endpoint(NamedTuple):
    """One advertised listener, as `advertised.listeners` and `listener.security.protocol.map` give it."""

    listener_name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class BrokerRegistration(NamedTuple):
    """A broker that is alive.

    `broker_epoch` is the create_revision of its `/brokers/ids/<id>` key; another value means that it died
    and was born again, even if nobody saw the key vanish (KIP-903).
    """

    broker_id: int
    broker_epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    rpc_address: str = ""  # "host:port" of its gRPC door; "" where broker and controller share a process
    is_log_suspect: bool = False  # it stopped uncleanly with its machine: ends of its logs may be gone
    # Replicas that recovered below their checkpointed high watermark, or were damaged before their end.
    suspect_partitions: tuple[TopicPartition, ...] = ()

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """The endpoint of that listener, or None where this broker hasn't got it."""
        for endpoint in self.endpoints:
            if endpoint.listener_name == listener_name:
                return endpoint
        return None
