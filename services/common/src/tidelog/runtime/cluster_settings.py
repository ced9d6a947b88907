"""Settings of the services as a cluster: where etcd is, where a service is called by the others, how long a
stop may take to hand leadership over.

They have no effect in `tidelog dev`, where everything is one process.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.runtime.network_settings import NetworkSettings
from tidelog.runtime.setting import (
    HIGH,
    LOW,
    MEDIUM,
    at_least,
    integer,
    not_empty,
    optional_password,
    optional_string,
    string,
    strings,
)

MAX_PORT = 65_535
WILDCARD_HOSTS = frozenset({"0.0.0.0", "[::]"})


def host_and_port(value: str) -> str | None:
    """A rule: `host:port`, or nothing."""
    host, _, port = value.rpartition(":")
    is_port = port.isdecimal() and port.isascii() and int(port) <= MAX_PORT
    return None if not value or (host and is_port) else "Value must be host:port"


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class ClusterSettings(NetworkSettings):
    """`tidelog.etcd.*`, `tidelog.rpc.*` and the controlled shutdown; a link of BrokerSettings' chain."""

    # --- etcd ---
    tidelog_etcd_endpoints: tuple[str, ...] = strings(
        ("http://127.0.0.1:2379",),
        HIGH,
        "etcd's client addresses, http:// or https://, comma-separated; each is tried in turn.",
        not_empty,
    )
    tidelog_etcd_prefix: str = string(
        "", MEDIUM, "Put in front of every key, so that several clusters can share an etcd."
    )
    tidelog_etcd_username: str | None = optional_string(MEDIUM, "User to sign in to etcd as, if any.")
    tidelog_etcd_password: str | None = optional_password(MEDIUM, "The user's password.")
    tidelog_etcd_tls_ca_file: str | None = optional_string(
        MEDIUM, "PEM file of the authority that etcd's certificate is checked by; the system's if unset."
    )
    tidelog_etcd_tls_cert_file: str | None = optional_string(
        MEDIUM, "PEM file of this service's own certificate, where etcd asks for one."
    )
    tidelog_etcd_tls_key_file: str | None = optional_string(MEDIUM, "PEM file of that certificate's key.")

    # --- calls between services ---
    tidelog_rpc_listener: str = string(
        "127.0.0.1:0",
        MEDIUM,
        "host:port where the other services call this one (gRPC); port 0 takes a free one.",
        host_and_port,
    )
    tidelog_rpc_advertised_address: str = string(
        "",
        MEDIUM,
        "host:port that they are told, port 0 for the one that was taken; the listener's if empty.",
        host_and_port,
    )

    tidelog_rpc_tls_ca_file: str | None = optional_string(
        MEDIUM,
        "PEM file of the authority of all services' certificates: calls and sessions between them are TLS "
        "then, and both sides show one. With cert.file and key.file, or not at all.",
    )
    tidelog_rpc_tls_cert_file: str | None = optional_string(
        MEDIUM, "PEM file of this service's certificate; read again when it changes, as the other two."
    )
    tidelog_rpc_tls_key_file: str | None = optional_string(MEDIUM, "PEM file of that certificate's key.")
    tidelog_rpc_tls_server_name: str = string(
        "tidelog",
        LOW,
        "Name (DNS) that the certificates of all services must be for, beside their own names.",
        not_empty,
    )

    tidelog_session_listener: str = string(
        "127.0.0.1:0",
        MEDIUM,
        "host:port where a broker takes coordinators' sessions; port 0 takes a free one.",
        host_and_port,
    )
    tidelog_session_advertised_address: str = string(
        "",
        MEDIUM,
        "host:port that coordinators are told, port 0 for the one that was taken; the listener's if empty.",
        host_and_port,
    )

    # --- stopping ---
    controlled_shutdown_max_retries: int = integer(
        3,
        MEDIUM,
        "How often a broker that stops asks the controller again after a failure. As in Kafka before 4.0.",
        at_least(0),
    )
    controlled_shutdown_retry_backoff_ms: int = integer(
        5_000, MEDIUM, "Pause before it asks again. As in Kafka before 4.0.", at_least(0)
    )

    tidelog_shutdown_timeout_ms: int = integer(
        25_000,
        MEDIUM,
        "How long a stop may take in all; a process that has not ended by then is ended, with a word in its "
        "log. A little less than what the platform gives it (terminationGracePeriodSeconds).",
        at_least(1_000),
    )

    @property
    def has_rpc_address(self) -> bool:
        """Whether others can be told where to call: a wildcard is no address."""
        return _is_address(self.tidelog_rpc_advertised_address or self.tidelog_rpc_listener)

    @property
    def has_session_address(self) -> bool:
        """Whether coordinators can be told where to come."""
        return _is_address(self.tidelog_session_advertised_address or self.tidelog_session_listener)


def _is_address(told: str) -> bool:
    return told.rpartition(":")[0] not in WILDCARD_HOSTS
