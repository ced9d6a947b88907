"""Settings of tracing: where spans go, and of how many requests."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from tidelog.runtime.cluster_settings import ClusterSettings
from tidelog.runtime.setting import LOW, MEDIUM, at_least, between, double, integer, optional_string, string


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
    """`tidelog.tracing.*`; a link of BrokerSettings' chain."""

    tidelog_tracing_otlp_endpoint: str = string(
        "",
        MEDIUM,
        "Where spans of sampled requests are sent (OpenTelemetry's OTLP over gRPC): http://host:port, or "
        "https:// for TLS. Empty: there is no tracing, and it costs nothing.",
        _endpoint,
    )
    tidelog_tracing_otlp_ca_file: str | None = optional_string(
        LOW,
        "PEM file of the authority that the collector's certificate is checked by; the system's if unset.",
    )
    tidelog_tracing_sampling_ratio: float = double(
        0.01, MEDIUM, "The share of clients' requests that are traced, 0 to 1.", between(0, 1)
    )
    tidelog_tracing_max_traces_per_second: int = integer(
        100, LOW, "No more of them than this, whatever their share.", at_least(1)
    )
    tidelog_tracing_max_queued_spans: int = integer(
        4096, LOW, "Spans that may wait to be sent; what comes beyond is dropped, and counted.", at_least(1)
    )
