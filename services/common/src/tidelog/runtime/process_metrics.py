"""What every service shows of its process: who it is, its event loop, its lease in the metadata store."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tidelog.runtime.sample_families import Families
    from tidelog.runtime.telemetry import Telemetry


class Identity(NamedTuple):
    """`service` is the name of its subcommand, such as `broker`."""

    service: str
    node_id: int


class LeaseView(Protocol):
    """What is shown of a service's lease in the metadata store. Any thread."""

    @property
    def lease_renewed_s(self) -> float | None:
        """When it was last renewed, by the monotonic clock; None while there is none."""
        ...

    @property
    def leases_lost(self) -> int: ...


class SpanCounts(Protocol):
    """What is shown of tracing."""

    @property
    def ended_total(self) -> int: ...

    @property
    def dropped_total(self) -> int: ...


def add_process(
    families: Families, telemetry: Telemetry, monotonic_s: Callable[[], float] = time.monotonic
) -> None:
    identity, lease, loop = telemetry.identity, telemetry.lease, telemetry.loop
    if identity is not None:
        labels = {"version": tidelog_version(), "service": identity.service, "node_id": str(identity.node_id)}
        families.gauge("tidelog_build_info", "Who this is", 1, **labels)
    if loop is not None:
        prefix, lag = "tidelog_event_loop", loop.lag
        doc = "How much later than asked for the event loop comes to a thing"
        families.histogram(f"{prefix}_lag_seconds", doc, lag.bucket_counts(), lag.seconds)
        doc = "The greatest of it in the last minutes"
        families.gauge(f"{prefix}_lag_max_seconds", doc, loop.max_lag_s)
        doc = "CPU time of the event loop's thread"
        families.counter(f"{prefix}_busy_seconds", doc, loop.busy_seconds)
    if lease is not None:
        renewed_s = lease.lease_renewed_s
        if renewed_s is not None:
            doc = "Since the lease in the metadata store was last renewed"
            elapsed_s = max(0.0, monotonic_s() - renewed_s)
            families.gauge("tidelog_metadata_lease_renewed_seconds", doc, elapsed_s)
        doc = "Leases in the metadata store that ended by themselves"
        name = "kafka_server_sessionexpirelistener_zookeeperexpires"
        families.counter(name, doc, lease.leases_lost)
    spans = telemetry.spans
    if spans is not None:
        families.counter("tidelog_trace_spans", "Spans made of sampled requests", spans.ended_total)
        doc = "Spans thrown away as the exporter did not keep up"
        families.counter("tidelog_trace_spans_dropped", doc, spans.dropped_total)


@lru_cache(maxsize=1)
def tidelog_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # 10 ms that not every process needs

    try:
        return version("tidelog")
    except PackageNotFoundError:
        return "unknown"
