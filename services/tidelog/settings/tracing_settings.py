"""Settings of tracing: the collector of the spans, and the share of requests that are traced; and of the
metrics that clients push.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from tidelog.settings.cluster_settings import ClusterSettings
from tidelog.settings.setting import (
    LOW,
    MEDIUM,
    at_least,
    between,
    boolean,
    double,
    integer,
    optional_string,
    string,
)


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
