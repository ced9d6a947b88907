"""A broker's life: open the data directory, register, take the controller's first commands, listen; and all
of it backwards at the end.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Mapping
from pathlib import Path

import structlog
from tidelog.broker import hosting
from tidelog.broker.broker import Broker
from tidelog.broker.commands import CommandReceiver
from tidelog.broker.dispatch import Dispatcher
from tidelog.broker.housekeeping import Housekeeping
from tidelog.broker.listener import ConnectionLimits, Listener
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.metadata_view import MetadataView
from tidelog.metadata.entries import BrokerEntry
from tidelog.metadata.lease_keeper import LeaseKeeper
from tidelog.metadata.registration import register_broker, unregister_broker
from tidelog.metadata.store import MetadataStore, StoreError
from tidelog.model.brokers import Endpoint
from tidelog.rpc.controller_api import ControllerApi
from tidelog.runtime.broker_settings import BrokerSettings
from tidelog.runtime.clock import SystemClock
from tidelog.runtime.metric_families import ControllerView
from tidelog.runtime.telemetry import ControllerCounts, Telemetry
from tidelog.runtime.timer import LoopTimer

FIRST_COMMANDS_TIMEOUT_MS = 30_000
"""How long a start waits for the controller to say what the broker hosts."""

_log = structlog.get_logger(__name__)


class BrokerServer:
    """Made by `open`; `start` returns when clients can connect; `stop` flushes and marks the directory
    clean.
    """

    def __init__(self, broker: Broker, store: MetadataStore, telemetry: Telemetry, timer: LoopTimer) -> None:
        self.broker = broker
        self.commands = CommandReceiver(broker)
        self._store = store
        self._telemetry = telemetry
        self._timer = timer
        self._dispatcher = Dispatcher(broker)
        self._housekeeping = Housekeeping(broker)
        self._listeners: list[Listener] = []
        self._lease: LeaseKeeper | None = None

    @classmethod
    def open(
        cls,
        settings: BrokerSettings,
        directory: Path,
        store: MetadataStore,
        cluster_id: str,
        controller: ControllerApi,
    ) -> BrokerServer:
        """Raises LogDirectoryInUseError, CorruptFileError, OSError; a directory of another cluster or
        broker is refused.
        """
        for name in settings.without_effect:
            _log.warning("a setting of Kafka's has no effect here", setting=name)
        clock = SystemClock()
        timer = LoopTimer(asyncio.get_running_loop())
        telemetry = Telemetry()
        log_directory = LogDirectory.open(directory, cluster_id=cluster_id, node_id=settings.node_id)
        broker = Broker(
            settings,
            MetadataView(cluster_id),
            log_directory,
            controller,
            telemetry,
            clock,
            timer,
            random.Random(),
        )
        return cls(broker, store, telemetry, timer)

    def show_controller(self, counts: ControllerCounts, controller: ControllerView) -> None:
        """Have this process's metrics tell of the controller that lives in it, too."""
        self._telemetry.controller_counts = counts
        self._telemetry.observe_controller(controller)

    async def start(self) -> None:
        """Raises OSError if an address can't be had, TimeoutError without a controller, KafkaError if the id
        is held by a live broker.
        """
        broker, settings = self.broker, self.broker.settings
        plan = settings.listener_plan()
        limits = ConnectionLimits(broker)
        for endpoint in plan.bind:
            listener = Listener(endpoint, broker, self._dispatcher, limits)
            listener.bind()
            self._listeners.append(listener)
        ports = {listener.name: listener.port for listener in self._listeners}
        self._lease = await LeaseKeeper.start(
            self._store,
            ttl_ms=settings.broker_session_timeout_ms,
            interval_ms=settings.broker_heartbeat_interval_ms,
            on_lost=lambda: _log.error("the broker's lease is lost"),
        )
        entry = BrokerEntry(settings.node_id, _advertised(plan.advertised, ports), settings.broker_rack)
        broker.broker_epoch = await register_broker(self._store, self._lease.lease, entry)
        try:
            await asyncio.wait_for(self.commands.first_metadata.wait(), FIRST_COMMANDS_TIMEOUT_MS / 1000)
        except TimeoutError as error:
            raise TimeoutError(
                f"the controller gave no commands within {FIRST_COMMANDS_TIMEOUT_MS // 1000} s"
            ) from error
        self._telemetry.observe_broker(broker)
        if settings.tidelog_metrics_listener:
            self._telemetry.serve(settings.tidelog_metrics_listener)
        self._housekeeping.start()
        for listener in self._listeners:
            await listener.serve()

    @property
    def addresses(self) -> Mapping[str, int]:
        """The port of each listener by name."""
        return {listener.name: listener.port for listener in self._listeners}

    async def stop(self) -> None:
        """Finish or fail what waits, flush, write the clean-shutdown marker, give up the registration."""
        for listener in self._listeners:
            listener.stop_accepting()
        await self._housekeeping.stop()
        self.broker.fetch_purgatory.expire_all()
        self.broker.produce_purgatory.expire_all()
        await self._dispatcher.stop()
        await asyncio.sleep(0)  # the answers leave at the end of this turn
        for listener in self._listeners:
            listener.close()
        if self._lease is not None:
            try:
                await unregister_broker(self._store, self.broker.broker_id, self.broker.broker_epoch)
            except StoreError as error:
                _log.warning("the registration could not be given up", reason=str(error))
            await self._lease.stop()
        await hosting.close_all(self.broker)
        self._telemetry.close()
        self._timer.close()


def _advertised(endpoints: tuple[Endpoint, ...], ports: Mapping[str, int]) -> tuple[Endpoint, ...]:
    """Port 0 becomes the port that was had, an empty host the machine's name."""
    return tuple(
        endpoint._replace(
            host=endpoint.host or socket.gethostname(), port=endpoint.port or ports[endpoint.listener_name]
        )
        for endpoint in endpoints
    )
