"""The receiver of clients' metrics: it follows the subscriptions and keeps what clients push.

It exists only with `tidelog.client.metrics.enable`. Kafka, too, lists the APIs of client metrics only if a
reporter can receive them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tidelog.broker.client_telemetry.instances import SILENT_INTERVALS, ClientInstance, ClientInstances
from tidelog.broker.client_telemetry.series import ClientSeries, PushedMetrics
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.client_metrics import MetricsSubscription, parse_subscription
from tidelog.model.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.broker.security.security_snapshot import SecuritySnapshot
    from tidelog.metadata.entries import ClientMetricsEntry
    from tidelog.metrics.families import Families
    from tidelog.metrics.generated.metrics_pb2 import MetricsData
    from tidelog.model.fair_budget import BudgetUse

SWEEP_INTERVAL_MS: Final = 10_000

_log = structlog.get_logger(__name__)


class MetricsForwarder(Protocol):
    """Sends metrics on to a collector."""

    def forward(self, data: MetricsData, attributes: Mapping[str, str]) -> None:
        """Queues the metrics of one push. `attributes` describe the client."""
        ...


class ClientTelemetry:
    """The clients of one broker that push metrics, and their newest values."""

    def __init__(self, max_bytes: int) -> None:
        self.instances = ClientInstances(max_bytes)
        self.series = ClientSeries()
        self.forwarder: MetricsForwarder | None = None
        """The way to the collector, if tracing is set up."""
        self._entries: Mapping[str, ClientMetricsEntry] | None = None
        self._next_sweep_ms = MonotonicMs(0)

    def security_changed(self, snapshot: SecuritySnapshot) -> None:
        """Takes the subscriptions of a snapshot, if they have changed."""
        if snapshot.client_metrics is self._entries:
            return
        self._entries = snapshot.client_metrics
        subscriptions: list[MetricsSubscription] = []
        for entry in snapshot.client_metrics.values():
            try:
                subscriptions.append(parse_subscription(entry.name, entry.configs))
            except KafkaError as error:  # a newer controller may know more settings
                _log.warning(
                    "a subscription to clients' metrics is skipped", name=entry.name, reason=str(error)
                )
        self.instances.set_subscriptions(subscriptions)

    def keep(self, instance: ClientInstance, client: str, pushed: PushedMetrics, now_ms: MonotonicMs) -> None:
        """Shows the metrics of a push until the client counts as silent, and sends them on. `client` is the
        client's key in fair budgets.
        """
        until_ms = MonotonicMs(now_ms + SILENT_INTERVALS * instance.plan.interval_ms)
        self.series.replace(instance.instance_id, client, pushed, until_ms)
        if self.forwarder is not None:
            self.forwarder.forward(pushed.data, instance.attributes)

    def forget_silent(self, now_ms: MonotonicMs) -> None:
        """Forgets the clients that are silent. It looks for them every SWEEP_INTERVAL_MS."""
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = MonotonicMs(now_ms + SWEEP_INTERVAL_MS)
            self.instances.forget_silent(now_ms)
            self.series.forget_old(now_ms)

    @property
    def budget_uses(self) -> dict[str, BudgetUse]:
        """The use of the budgets of clients that push, by name. Any thread may read it."""
        return {
            "client_metrics_clients": self.instances.places.use,
            "client_metrics_series": self.series.numbers.use,
            "client_metrics_bytes": self.series.memory.use,
        }

    def collect(self, families: Families, now_ms: MonotonicMs) -> None:
        """Adds the current samples. Any thread may call it."""
        self.series.collect(families, len(self.instances), now_ms)
