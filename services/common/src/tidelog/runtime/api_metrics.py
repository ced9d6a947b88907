"""Requests as Prometheus samples: how many, how long they took, what of that they waited for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.runtime.request_metrics import RequestMetrics, add_up

if TYPE_CHECKING:
    from tidelog.runtime.sample_families import Families
    from tidelog.runtime.telemetry import Telemetry

_PREFIX = "kafka_network_requestmetrics"
# Fetch is shown under the name of who fetches, too: dashboards ask for that one.
_ALSO_KNOWN_AS = {"Fetch": "FetchConsumer"}


def add_requests(families: Families, telemetry: Telemetry) -> None:
    now_ms = telemetry.clock.monotonic_ms()
    for api_name, by_version in sorted(telemetry.requests.items()):
        versions = [metrics for _, metrics in sorted(by_version.items())]
        counts = add_up([metrics.bucket_counts() for metrics in versions])
        seconds = sum(metrics.seconds for metrics in versions)
        waits = add_up([metrics.waits.bucket_counts() for metrics in versions])
        waited_s = sum(metrics.waits.seconds for metrics in versions)
        recent = telemetry.windows[api_name].recent(counts, now_ms)
        recent_waits = telemetry.wait_windows[api_name].recent(waits, now_ms)
        for name in (api_name, *filter(None, [_ALSO_KNOWN_AS.get(api_name)])):
            _add_traffic(families, name, versions)
            total, remote, local = (
                f"{_PREFIX}_totaltimems",
                f"{_PREFIX}_remotetimems",
                f"{_PREFIX}_localtimems",
            )
            doc = "Milliseconds from arrival to answer, over the last minutes"
            families.summary_ms(total, doc, recent, sum(counts), seconds, request=name)
            doc = "Of them those that requests waited for others"
            families.summary_ms(remote, doc, recent_waits, sum(waits), waited_s, request=name)
            doc, local_ms = "The rest of them", max(0.0, seconds - waited_s) * 1000
            families.summary(local, doc, "_count", sum(counts), request=name)
            families.summary(local, doc, "_sum", local_ms, request=name)
        doc = "From a request's arrival to its answer"
        families.histogram("tidelog_request_duration_seconds", doc, counts, seconds, request=api_name)
        doc = "What requests waited for others"
        families.histogram("tidelog_request_wait_seconds", doc, waits, waited_s, request=api_name)
    for (api_name, code), count in sorted(telemetry.errors.items()):
        doc, error = "Partitions refused", ErrorCode(code).name
        families.counter(f"{_PREFIX}_errors", doc, count, request=api_name, error=error)


def _add_traffic(families: Families, name: str, versions: list[RequestMetrics]) -> None:
    for metrics in versions:
        version = str(metrics.version)
        families.counter(f"{_PREFIX}_requests", "Requests", metrics.count, request=name, version=version)
    sent = sum(metrics.response_bytes for metrics in versions)
    families.counter(f"{_PREFIX}_responsebytes", "Bytes of answers", sent, request=name)
