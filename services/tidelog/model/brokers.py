"""The registration of a broker in the cluster: its id, its epoch and its addresses."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tidelog.model.topics import TopicPartition

MAX_BROKER_ID: Final = 2**31 - 1
MAX_PORT: Final = 65_535
MAX_SHOWN_NAME_CHARS: Final = 100
"""The part of an invalid name that an error message shows."""
_DECIMAL_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")


def parse_broker_id(name: str) -> int | None:
    """Returns the broker id that a name of a broker means, or None if it is invalid. Only one form of each
    number is valid, because settings are stored by name.
    """
    if _DECIMAL_ID.fullmatch(name) is None:
        return None
    broker_id = int(name)
    return broker_id if broker_id <= MAX_BROKER_ID else None


def host_and_port(host: str, port: int | str) -> str:
    """Returns an address as clients and URLs write it, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Endpoint(NamedTuple):
    """An advertised listener, from `advertised.listeners` and `listener.security.protocol.map`."""

    listener_name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def address(self) -> str:
        """HOST:PORT, with an IPv6 address in brackets."""
        return host_and_port(self.host, self.port)


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
