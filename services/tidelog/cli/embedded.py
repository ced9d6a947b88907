"""Broker, controller and group coordinator in one process over a file-backed metadata store.

They are the same services as in a cluster, connected directly.
"""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

from tidelog.broker.log.meta_properties import read_meta_properties
from tidelog.broker.metrics import BrokerMetrics
from tidelog.broker.server import BrokerServer
from tidelog.cli.adopt import adopt_topics
from tidelog.controller.metrics import ControllerMetrics
from tidelog.controller.server import Controller
from tidelog.group_coordinator.server import GroupCoordinator
from tidelog.metadata.cluster_identity import ensure_cluster_id
from tidelog.metadata.entries import encode_uuid
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metrics.certificates import CertificateExpiry
from tidelog.metrics.health import Health
from tidelog.metrics.process_metrics import ProcessMetrics
from tidelog.metrics.telemetry import Telemetry
from tidelog.rpc.in_process import InProcessBrokerChannels, InProcessSessionConnector
from tidelog.settings.broker_settings import BrokerSettings, certificate_files
from tidelog.timing.clock import SystemClock
from tidelog.tracing.start import start_tracing

METADATA_DIRECTORY = "metadata"


class EmbeddedCluster:
    """A cluster within this process. After `start`, clients can connect to `address`; `stop` ends it."""

    def __init__(self, address: str, stops: contextlib.AsyncExitStack) -> None:
        self.address = address
        self._stops = stops

    @classmethod
    async def start(cls, settings: BrokerSettings, data_dir: Path) -> EmbeddedCluster:
        """Starts all services.

        Raises OSError, LogDirectoryInUseError, StoreError, KafkaError. Each describes the problem.
        """
        async with contextlib.AsyncExitStack() as undo:
            clock = SystemClock()
            health = Health()
            undo.callback(health.close)
            metrics = ProcessMetrics("dev", settings.node_id, health)
            undo.callback(metrics.close)
            if settings.tidelog_metrics_listener:
                metrics.watch_loop()
                certificates = certificate_files(settings)
                metrics.register(CertificateExpiry(lambda: certificates))
                metrics.serve(settings.tidelog_metrics_listener)
            if settings.tidelog_probes_listener:
                metrics.serve_probes(settings.tidelog_probes_listener)  # answered during the recovery, too
            store = FileMetadataStore.open(data_dir / METADATA_DIRECTORY, monotonic_ms=clock.monotonic_ms)
            undo.push_async_callback(store.close)
            log_dir = Path(settings.data_dirs[0])
            cluster_id = await ensure_cluster_id(
                store, _cluster_id_on_disk(log_dir) or encode_uuid(uuid.uuid4())
            )
            await adopt_topics(store, log_dir, settings.node_id)
            tracing = start_tracing(settings, "dev", settings.node_id)
            if tracing is not None:
                metrics.spans = tracing
                undo.callback(tracing.close)
            channels = InProcessBrokerChannels()
            controller = await Controller.start(store, channels, settings, clock=clock)
            undo.push_async_callback(controller.stop)
            broker_metrics = BrokerMetrics(Telemetry(clock), metrics.loop)
            broker = BrokerServer.open(
                settings,
                log_dir,
                store,
                cluster_id,
                controller,
                broker_metrics,
                is_alone=True,
                tracing=tracing,
            )
            metrics.lease = broker.lease
            channels.attach(settings.node_id, broker.commands)
            undo.push_async_callback(broker.stop)
            connector = InProcessSessionConnector()
            connector.attach(settings.node_id, broker.coordination)
            await broker.start()
            coordinator = await GroupCoordinator.start(
                store, settings, connector, clock=clock, tracing=tracing
            )
            undo.push_async_callback(coordinator.stop)
            controller_metrics = ControllerMetrics()
            controller_metrics.observe(controller)
            for collector in (broker_metrics, controller_metrics, coordinator.metrics):
                metrics.register(collector)
            health.ready_when(broker.why_not_ready)
            undo.callback(health.not_ready, "stopping")  # the first step of a stop
            stops = undo.pop_all()
        endpoint = settings.listener_plan().bind[0]
        address = f"{endpoint.host or '0.0.0.0'}:{broker.addresses[endpoint.listener_name]}"
        return cls(address, stops)

    async def stop(self) -> None:
        """Stops all services, even if one fails to stop. All data is on disk afterwards."""
        await self._stops.aclose()


def _cluster_id_on_disk(log_dir: Path) -> str | None:
    """Returns the id of the cluster that a directory belongs to, even if Apache Kafka wrote it."""
    meta = read_meta_properties(log_dir)
    return None if meta is None else meta.cluster_id
