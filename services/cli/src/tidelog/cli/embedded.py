"""Broker, controller and group coordinator of one process over a file-backed metadata store: the same
services as in a cluster, wired directly.
"""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

from tidelog.broker.log.meta_properties import read_meta_properties
from tidelog.broker.server import BrokerServer
from tidelog.cli.adopt import adopt_topics
from tidelog.controller.server import Controller
from tidelog.group_coordinator.runtime.request_tracing import RequestTracing
from tidelog.group_coordinator.server import GroupCoordinator
from tidelog.metadata.cluster_identity import ensure_cluster_id
from tidelog.metadata.entries import encode_uuid
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.rpc.in_process import InProcessBrokerChannels, InProcessSessionConnector
from tidelog.runtime.broker_settings import BrokerSettings
from tidelog.runtime.clock import SystemClock

METADATA_DIRECTORY = "metadata"


class EmbeddedCluster:
    """`await start(...)`, then clients can connect to `address`; `await stop()` at the end."""

    def __init__(
        self,
        store: FileMetadataStore,
        controller: Controller,
        broker: BrokerServer,
        coordinator: GroupCoordinator,
        address: str,
    ) -> None:
        self._store = store
        self._controller = controller
        self._broker = broker
        self._coordinator = coordinator
        self.address = address

    @classmethod
    async def start(cls, settings: BrokerSettings, data_dir: Path) -> EmbeddedCluster:
        """Raises OSError, LogDirectoryInUseError, StoreError, KafkaError: each names what is wrong."""
        async with contextlib.AsyncExitStack() as undo:
            clock = SystemClock()
            store = FileMetadataStore.open(data_dir / METADATA_DIRECTORY, monotonic_ms=clock.monotonic_ms)
            undo.push_async_callback(store.close)
            log_dir = Path(settings.data_dirs[0])
            cluster_id = await ensure_cluster_id(
                store, _cluster_id_on_disk(log_dir) or encode_uuid(uuid.uuid4())
            )
            await adopt_topics(store, log_dir, settings.node_id)
            channels = InProcessBrokerChannels()
            controller = await Controller.start(store, channels, settings, clock=clock)
            undo.push_async_callback(controller.stop)
            broker = BrokerServer.open(settings, log_dir, store, cluster_id, controller)
            broker.show_controller(controller.counts, controller)
            channels.attach(settings.node_id, broker.commands)
            undo.push_async_callback(broker.stop)
            connector = InProcessSessionConnector()
            connector.attach(settings.node_id, broker.broker.coordination)
            await broker.start()
            coordinator = await GroupCoordinator.start(store, settings, connector, clock=clock)
            broker.show_coordinator(coordinator.lag)
            if broker.broker.telemetry.tracing is not None:
                coordinator.runtime.tracing = RequestTracing(broker.broker.telemetry.tracing)
            undo.pop_all()
        endpoint = settings.listener_plan().bind[0]
        address = f"{endpoint.host or '0.0.0.0'}:{broker.addresses[endpoint.listener_name]}"
        return cls(store, controller, broker, coordinator, address)

    async def stop(self) -> None:
        """Clean: what is buffered is on disk afterwards."""
        async with contextlib.AsyncExitStack() as stops:  # each, whatever becomes of those before
            stops.push_async_callback(self._store.close)
            stops.push_async_callback(self._controller.stop)
            stops.push_async_callback(self._broker.stop)
            stops.push_async_callback(self._coordinator.stop)


def _cluster_id_on_disk(log_dir: Path) -> str | None:
    """The cluster that a directory already belongs to, also if Apache Kafka wrote it."""
    meta = read_meta_properties(log_dir)
    return None if meta is None else meta.cluster_id
