"""Brokers, controller and group coordinator in one process over a file-backed metadata store.

They are the same services as in a cluster of several processes, connected directly. Brokers replicate over
their listeners, as everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.log.directory_files import read_meta_properties
from tidelog.broker.metrics import BrokerMetrics
from tidelog.broker.server import BrokerServer, Intercept
from tidelog.controller.metrics import ControllerMetrics
from tidelog.controller.server import Controller
from tidelog.embedded.adopt import adopt_topics, metadata_directory, require_adopted, require_own
from tidelog.group_coordinator.server import GroupCoordinator
from tidelog.kernel.clock import Clock, SystemClock
from tidelog.metadata.cluster_identity import ensure_cluster_id, stored_cluster_id
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metrics.health import Health
from tidelog.metrics.process_metrics import REPLICAS_PAGE, ProcessMetrics
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.brokers import host_and_port
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import topic_id_text
from tidelog.rpc.controller_api import ForwardedRequest
from tidelog.rpc.in_process import InProcessBrokerChannels, InProcessSessionConnector
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.tracing.start import start_tracing
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

if TYPE_CHECKING:
    from tidelog.tracing.tracer import Tracing  # loads OpenTelemetry


class _Around(NamedTuple):
    """The objects that the brokers of a cluster share."""

    store: FileMetadataStore
    cluster_id: str
    controller: Controller
    channels: InProcessBrokerChannels
    connector: InProcessSessionConnector
    metrics: ProcessMetrics
    clock: Clock
    tracing: Tracing | None
    intercept: Intercept | None


class EmbeddedCluster:
    """A cluster within this process. After `start`, clients can connect to `address`; `stop` ends it.

    Only `tidelog.testing` stops, kills and starts single brokers. The controller and the coordinator remain.
    """

    def __init__(self, settings: Sequence[BrokerSettings], around: _Around) -> None:
        self.brokers: dict[int, BrokerServer] = {}
        """The running brokers by id."""
        self._settings = {each.node_id: each for each in settings}
        self._around = around
        self._first_metrics: BrokerMetrics | None = None
        self._stops: contextlib.AsyncExitStack | None = None

    @classmethod
    async def start(
        cls,
        settings: BrokerSettings | Sequence[BrokerSettings],
        data_dir: Path,
        *,
        clock: Clock | None = None,
        intercept: Intercept | None = None,
    ) -> EmbeddedCluster:
        """Starts one broker for each of `settings`, which differ in `node.id`, `log.dirs` and `listeners`.
        The controller and the coordinator get the first of them, and the metrics show the first broker. The
        metadata is in `data_dir`. `intercept` is passed to `BrokerServer.open`.

        Raises OSError, LogDirectoryInUseError, StoreError, KafkaError. Each describes the problem.
        """
        each = (settings,) if isinstance(settings, BrokerSettings) else tuple(settings)
        first, clock = each[0], clock or SystemClock()
        async with contextlib.AsyncExitStack() as undo:
            log_dir = Path(first.data_dirs[0])
            require_adopted(data_dir, log_dir)
            health = Health()
            undo.callback(health.close)
            metrics = ProcessMetrics("dev", first.node_id, health)
            undo.callback(metrics.close)
            metrics.serve_at_listeners(first)  # probes are answered during the recovery, too
            # The machine's clock keeps the leases: a clock that a test moves must not end them.
            store = FileMetadataStore.open(
                metadata_directory(data_dir), monotonic_ms=SystemClock().monotonic_ms
            )
            undo.push_async_callback(store.close)
            if await stored_cluster_id(store) is None:  # an adoption may have been interrupted
                require_own(log_dir)
            cluster_id = await ensure_cluster_id(
                store, _cluster_id_on_disk(log_dir) or topic_id_text(uuid.uuid4())
            )
            if len(each) == 1:
                await adopt_topics(store, log_dir, first.node_id)
            tracing = start_tracing(first, "dev", first.node_id)
            if tracing is not None:
                metrics.spans = tracing
                undo.callback(tracing.close)
            channels, connector = InProcessBrokerChannels(), InProcessSessionConnector()
            controller = await Controller.start(store, channels, first, clock=clock)
            undo.push_async_callback(controller.stop)
            around = _Around(
                store, cluster_id, controller, channels, connector, metrics, clock, tracing, intercept
            )
            cluster = cls(each, around)
            undo.push_async_callback(cluster._stop_brokers)
            await cluster._start_brokers()
            coordinator = await GroupCoordinator.start(store, first, connector, clock=clock, tracing=tracing)
            undo.push_async_callback(coordinator.stop)
            controller_metrics = ControllerMetrics()
            controller_metrics.observe(controller)
            for collector in (controller_metrics, coordinator.metrics):
                metrics.register(collector)
            health.ready_when(cluster._why_not_ready)
            undo.callback(health.not_ready, "stopping")  # the first step of a stop
            cluster._stops = undo.pop_all()
        return cluster

    @property
    def address(self) -> str:
        """The address of the first listener of each running broker, separated by commas."""
        return ",".join(self.address_of(broker_id) for broker_id in sorted(self.brokers))

    def address_of(self, broker_id: int, listener: int = 0) -> str:
        """Returns the address of one of the listeners of a running broker. Raises KeyError."""
        endpoint = self._settings[broker_id].listener_plan().bind[listener]
        port = self.brokers[broker_id].addresses[endpoint.listener_name]
        return host_and_port(endpoint.host or "0.0.0.0", port)

    async def ensure_topic(self, name: str, partitions: int) -> None:
        """Creates a topic, unless it exists. With -1 partitions it has as many as `num.partitions` states.
        Raises KafkaError with the reason if the controller refuses it.
        """
        request = CreateTopicsRequest([CreatableTopic(name, partitions, -1)])
        version = CreateTopicsRequest.VERSIONS[1]
        answer = await self._around.controller.handle(
            ApiKey.CREATE_TOPICS, ForwardedRequest(version, request)
        )
        assert isinstance(answer, CreateTopicsResponse)
        result = answer.topics[0]
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(ErrorCode(result.error_code), f"topic {name}: {result.error_message}")

    async def start_broker(self, broker_id: int) -> None:
        """Starts a broker of the cluster that does not run. Raises what `start` raises."""
        settings, around = self._settings[broker_id], self._around
        broker_metrics = BrokerMetrics(Telemetry(around.clock), around.metrics.loop)
        broker = BrokerServer.open(
            settings,
            Path(settings.data_dirs[0]),
            around.store,
            around.cluster_id,
            around.controller,
            broker_metrics,
            is_alone=len(self._settings) == 1,
            tracing=around.tracing,
            clock=around.clock,
            intercept=around.intercept,
        )
        self.brokers[broker_id] = broker
        around.channels.attach(broker_id, broker.commands)
        around.connector.attach(broker_id, broker.coordination)
        if broker_id == next(iter(self._settings)):
            around.metrics.lease = broker.lease
            if self._first_metrics in around.metrics.collectors:
                around.metrics.collectors.remove(self._first_metrics)
            around.metrics.register(broker_metrics)
            around.metrics.pages[REPLICAS_PAGE] = broker_metrics.replica_stories
            self._first_metrics = broker_metrics
        await broker.start()

    async def kill_broker(self, broker_id: int) -> None:
        """Ends a running broker as if its process was killed: its clients lose their connections at once,
        and no leadership is handed over. Its files are closed properly, because the process goes on. Raises
        KeyError.
        """
        await self._stop_broker(broker_id, is_abrupt=True)

    async def stop(self) -> None:
        """Stops all services, even if one fails to stop. All data is on disk afterwards."""
        assert self._stops is not None, "the cluster has started"
        await self._stops.aclose()

    async def _start_brokers(self) -> None:
        """Starts all brokers together. If one fails, the others are stopped by `_stop_brokers`."""
        starts = [asyncio.ensure_future(self.start_broker(broker_id)) for broker_id in self._settings]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.wait(starts)
            raise

    async def _stop_brokers(self) -> None:
        async with contextlib.AsyncExitStack() as stops:
            for broker_id in list(self.brokers):
                stops.push_async_callback(self._stop_broker, broker_id)

    async def _stop_broker(self, broker_id: int, *, is_abrupt: bool = False) -> None:
        broker = self.brokers.pop(broker_id)
        try:
            await broker.stop(is_abrupt=is_abrupt)
        finally:
            self._around.channels.detach(broker_id)
            self._around.connector.detach(broker_id)

    def _why_not_ready(self) -> str | None:
        reasons = (broker.why_not_ready() for broker in self.brokers.values())
        return next((reason for reason in reasons if reason is not None), None)


def _cluster_id_on_disk(log_dir: Path) -> str | None:
    """Returns the id of the cluster that a directory belongs to, even if Apache Kafka wrote it."""
    meta = read_meta_properties(log_dir)
    return None if meta is None else meta.cluster_id
