"""The registration of a broker in the cluster: its id, its epoch and its addresses."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.model.topics import TopicPartition


class Endpoint(NamedTuple):
    """An advertised listener, from `advertised.listeners` and `listener.security.protocol.map`."""

    listener_name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class BrokerRegistration(NamedTuple):
    """A live broker.

    `broker_epoch` is the create_revision of its key `/brokers/ids/<id>`. A different value means that the
    broker has lost its lease and registered again, even if nobody observed the key's deletion (KIP-903).
    """

    broker_id: int
    broker_epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    rpc_address: str = ""  # "host:port" of its gRPC server; "" if broker and controller share a process
    is_log_suspect: bool = False  # it stopped uncleanly with its machine, so the ends of its logs may be lost
    # Replicas that recovered below their checkpointed high watermark, or that are damaged before their end.
    suspect_partitions: tuple[TopicPartition, ...] = ()

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """Returns the endpoint of the listener, or None if the broker does not have that listener."""
        for endpoint in self.endpoints:
            if endpoint.listener_name == listener_name:
                return endpoint
        return None
