"""Settings of the services as a cluster: the addresses of etcd and of the services, the duration of a
stop, and the collector of traces and of the metrics that clients push.

The addresses have no effect in `tidelog dev`, which runs all services in one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from tidelog.model.brokers import MAX_PORT
from tidelog.settings.setting import (
    HIGH,
    LOW,
    MAX_INTEGER_CHARS,
    MEDIUM,
    at_least,
    between,
    boolean,
    double,
    integer,
    not_empty,
    optional_password,
    optional_string,
    string,
    strings,
)
from tidelog.settings.tls_settings import TlsSettings

WILDCARD_HOSTS = frozenset({"0.0.0.0", "[::]"})


def host_and_port(value: str) -> str | None:
    """Accepts `host:port` or an empty string."""
    host, _, port = value.rpartition(":")
    is_port = port.isdecimal() and port.isascii() and len(port) <= MAX_INTEGER_CHARS and int(port) <= MAX_PORT
    return None if not value or (host and is_port) else "Value must be host:port"


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class ClusterSettings(TlsSettings):
    """`tidelog.etcd.*`, `tidelog.rpc.*` and the controlled shutdown. A base class of BrokerSettings."""

    # Etcd.
    tidelog_etcd_endpoints: tuple[str, ...] = strings(
        ("http://127.0.0.1:2379",),
        HIGH,
        "Client addresses of etcd with http:// or https://, separated by commas. They are tried in turn.",
        not_empty,
    )
    tidelog_etcd_prefix: str = string(
        "", MEDIUM, "Prefix of all keys, so that several clusters can share one etcd."
    )
    tidelog_etcd_username: str | None = optional_string(
        MEDIUM, "Name of the etcd user; none if etcd needs no authentication."
    )
    tidelog_etcd_password: str | None = optional_password(MEDIUM, "Password of the etcd user.")
    tidelog_etcd_tls_ca_file: str | None = optional_string(
        MEDIUM,
        "PEM file of the certificate authority of etcd's certificate. If not set, the system's "
        "authorities are used.",
    )
    tidelog_etcd_tls_cert_file: str | None = optional_string(
        MEDIUM, "PEM file of this service's certificate, if etcd requires client certificates."
    )
    tidelog_etcd_tls_key_file: str | None = optional_string(
        MEDIUM, "PEM file of the private key of that certificate."
    )

    tidelog_etcd_allow_plaintext: bool = boolean(
        False,
        MEDIUM,
        "Whether the services may send tidelog.etcd.password without encryption to an address that is not a "
        "loopback address. Anyone who reads the network then controls the cluster.",
    )

    # Calls between services.
    tidelog_rpc_listener: str = string(
        "127.0.0.1:0",
        MEDIUM,
        "Address (host:port) on which this service accepts gRPC calls of other services. Port 0 "
        "selects a free port.",
        host_and_port,
    )
    tidelog_rpc_advertised_address: str = string(
        "",
        MEDIUM,
        "Address (host:port) that other services use to call this one. Port 0 stands for the selected"
        " port. If empty, the address of tidelog.rpc.listener is used.",
        host_and_port,
    )

    tidelog_rpc_tls_ca_file: str | None = optional_string(
        MEDIUM,
        "PEM file of the certificate authority of all services. If set, all calls between services "
        "use TLS with certificates on both sides. It must be set together with cert.file and "
        "key.file.",
    )
    tidelog_rpc_tls_cert_file: str | None = optional_string(
        MEDIUM,
        "PEM file of this service's certificate. It is read again when it changes, as are the other "
        "two files.",
    )
    tidelog_rpc_tls_key_file: str | None = optional_string(
        MEDIUM, "PEM file of the private key of that certificate."
    )
    tidelog_rpc_tls_server_name: str = string(
        "tidelog",
        LOW,
        "DNS name that the certificates of all services must contain in addition to their own names.",
        not_empty,
    )
    tidelog_rpc_tls_check_roles: bool = boolean(
        True,
        MEDIUM,
        "Whether certificates must name the role of their service (broker.NAME, controller.NAME or "
        "group-coordinator.NAME, where NAME is tidelog.rpc.tls.server.name), so that each call is "
        "accepted only from the services that make it.",
    )
    tidelog_rpc_allow_plaintext: bool = boolean(
        False,
        MEDIUM,
        "Whether tidelog.rpc.listener may be an address that other machines reach although no "
        "certificates are set. Anyone who reaches the port then controls the service.",
    )

    # Stopping.
    controlled_shutdown_max_retries: int = integer(
        3,
        MEDIUM,
        "Number of times that a stopping broker repeats its request to the controller after a "
        "failure, as in Kafka before 4.0.",
        at_least(0),
    )
    controlled_shutdown_retry_backoff_ms: int = integer(
        5_000,
        MEDIUM,
        "Pause before the stopping broker repeats its request, as in Kafka before 4.0.",
        at_least(0),
    )

    tidelog_shutdown_timeout_ms: int = integer(
        25_000,
        MEDIUM,
        "Maximum duration of a shutdown. A process that has not ended by then logs an error and "
        "exits. The value must be a little lower than the time that the platform allows "
        "(terminationGracePeriodSeconds).",
        at_least(1_000),
    )

    @property
    def has_rpc_address(self) -> bool:
        """Whether other services can connect to the advertised address. They cannot connect to a wildcard."""
        return _is_address(self.tidelog_rpc_advertised_address or self.tidelog_rpc_listener)


def _is_address(told: str) -> bool:
    return told.rpartition(":")[0] not in WILDCARD_HOSTS


def _endpoint(value: str) -> str | None:
    if not value:
        return None
    try:
        url = urlsplit(value)
        is_address = url.scheme in ("http", "https") and bool(url.hostname) and url.port is not None
    except ValueError:
        is_address = False
    return None if is_address else "Value must be http://host:port or https://host:port"


@dataclass(frozen=True, slots=True)
class TracingSettings(ClusterSettings):
    """`tidelog.tracing.*` and `tidelog.client.metrics.enable`. A base class of BrokerSettings."""

    tidelog_tracing_otlp_endpoint: str = string(
        "",
        MEDIUM,
        "Address of the OpenTelemetry collector (OTLP over gRPC): http://host:port, or "
        "https://host:port for TLS. If empty, tracing is off and costs nothing.",
        _endpoint,
    )
    tidelog_client_metrics_enable: bool = boolean(
        False,
        MEDIUM,
        "Whether the broker receives the metrics that clients push (KIP-714). It shows them at "
        "tidelog.metrics.listener and sends them to the collector of tidelog.tracing.otlp.endpoint, if set.",
    )
    telemetry_max_bytes: int = integer(
        1_048_576,
        LOW,
        "Maximum size in bytes of the metrics that a client pushes at a time.",
        at_least(1),
    )
    tidelog_tracing_otlp_ca_file: str | None = optional_string(
        LOW,
        "PEM file of the certificate authority of the collector's certificate. If not set, the "
        "system's authorities are used.",
    )
    tidelog_tracing_sampling_ratio: float = double(
        0.01, MEDIUM, "Share of the clients' requests that are traced, from 0 to 1.", between(0, 1)
    )
    tidelog_tracing_max_traces_per_second: int = integer(
        100, LOW, "Maximum number of requests per second that are traced.", at_least(1)
    )
    tidelog_tracing_max_queued_spans: int = integer(
        4096,
        LOW,
        "Maximum number of spans that wait to be exported. Further spans are dropped and counted.",
        at_least(1),
    )
