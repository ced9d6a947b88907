"""A broker's life: open the data directory, register, take the controller's first commands, listen; and all
of it backwards at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidelog.broker.broker import Broker
from tidelog.broker.dispatch import Dispatcher
from tidelog.broker.handlers.wiring import HandlerWiring
from tidelog.broker.life import BrokerLife
from tidelog.broker.listener import ConnectionLimits, Listener
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.log.lost_tails import find_lost_tails
from tidelog.broker.metadata_view import MetadataView
from tidelog.broker.metrics import BrokerMetrics
from tidelog.broker.readiness import BrokerReadiness
from tidelog.broker.replication.leader.isr_maintenance import IsrMaintenance
from tidelog.broker.topic_rules import log_config
from tidelog.metadata.entries import BrokerEntry
from tidelog.metadata.store import MetadataStore
from tidelog.metrics.process_metrics import LeaseView
from tidelog.metrics.telemetry import (
    BROKER_HANDING_OVER,
    BROKER_RECOVERING,
    BROKER_RUNNING,
    BROKER_STARTING,
    BROKER_STOPPING,
)
from tidelog.model.brokers import Endpoint
from tidelog.model.topics import TopicPartition
from tidelog.rpc.controller_api import ControllerApi
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.timing.clock import SystemClock
from tidelog.timing.timer import LoopTimer

if TYPE_CHECKING:
    from tidelog.tracing.tracer import Tracing

FIRST_COMMANDS_TIMEOUT_MS: Final = 30_000
"""How long a start waits for the controller of its own process to say what the broker hosts."""
REMIND_MS: Final = 10_000
"""How often a start says that it still waits for a controller elsewhere."""

_log = structlog.get_logger(__name__)


class BrokerServer:
    """Made by `open`; `start` returns when clients can connect; `stop` hands leadership over, flushes and
    marks the directory clean. `failed` is done, with the reason, when the broker can't live on.
    """

    def __init__(
        self,
        broker: Broker,
        store: MetadataStore,
        metrics: BrokerMetrics,
        timer: LoopTimer,
        tracing: Tracing | None,
        *,
        is_alone: bool,
    ) -> None:
        self.broker = broker
        self.commands = broker.commands
        self.coordination = broker.coordination
        """Where coordinators' sessions are taken."""
        broker.isr_maintenance = self._isr_maintenance = IsrMaintenance(
            broker.hosted, broker.current_settings, broker.clock, broker.telemetry, store
        )
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._is_alone = is_alone
        self._phase: str | None = "recovering logs"
        self._readiness = BrokerReadiness(broker.identity, broker.metadata, store)
        self._metrics = metrics
        self._telemetry = metrics.telemetry
        self._timer = timer
        self._dispatcher = _new_dispatcher(broker, tracing)
        self._housekeeping = broker.housekeeping()
        self._listeners: list[Listener] = []
        self._life = BrokerLife(
            broker.identity,
            broker.current_settings,
            broker.log_directory,
            broker.controller_connection,
            store,
            remembers=not is_alone,
            on_failed=self._fail,
        )

    @classmethod
    def open(
        cls,
        settings: BrokerSettings,
        directory: Path,
        store: MetadataStore,
        cluster_id: str,
        controller: ControllerApi,
        metrics: BrokerMetrics,
        *,
        is_alone: bool,
        tracing: Tracing | None = None,
    ) -> BrokerServer:
        """Opens the data directory.

        `is_alone` means that this is the only broker there can be, with the controller in its own process.
        Raises LogDirectoryInUseError, CorruptFileError (also for a directory of another cluster or broker)
        and OSError.
        """
        for name in settings.without_effect:
            _log.warning("a setting of Kafka's has no effect here", setting=name)
        clock = SystemClock()
        timer = LoopTimer(asyncio.get_running_loop())
        log_directory = LogDirectory.open(directory, cluster_id=cluster_id, node_id=settings.node_id)
        broker = Broker(
            settings,
            MetadataView(cluster_id),
            log_directory,
            controller,
            metrics.telemetry,
            clock,
            timer,
            random.Random(),
        )
        return cls(broker, store, metrics, timer, tracing, is_alone=is_alone)

    @property
    def lease(self) -> LeaseView:
        """The broker's lease in the metadata store, for metrics."""
        return self._life

    async def start(
        self,
        *,
        rpc_address: str = "",
        on_epoch: Callable[[int], None] | None = None,
    ) -> None:
        """Starts the broker. Other services call it at `rpc_address`, which is empty if they share its
        process. `on_epoch` is called with the broker epoch after each registration.

        Raises OSError if an address can't be had, TimeoutError without a controller in this process,
        KafkaError if the id is held by a live broker.
        """
        broker, settings = self.broker, self.broker.settings
        self._telemetry.broker_state = BROKER_STARTING
        plan = settings.listener_plan()
        limits = ConnectionLimits(broker.current_settings)
        for endpoint in plan.bind:
            listener = Listener(
                endpoint,
                broker.current_settings,
                broker.telemetry,
                broker.timer,
                self._dispatcher.dispatch,
                limits,
            )
            listener.bind()
            self._listeners.append(listener)
        ports = {listener.name: listener.port for listener in self._listeners}
        entry = BrokerEntry(
            settings.node_id,
            _advertised(plan.advertised, ports),
            settings.broker_rack,
            rpc_address,
        )
        if not self._is_alone:
            # If this start comes to nothing, the next one must not take the directory for sound.
            broker.log_directory.has_untold_damage = broker.log_directory.is_suspect
            entry = entry._replace(
                is_log_suspect=broker.log_directory.is_suspect,
                suspect_partitions=await self._find_lost_tails(),
            )
        self._phase = "registering"
        self._telemetry.broker_state = BROKER_RECOVERING
        await self._life.begin(entry, on_epoch)
        self._phase = "registered, waiting for a controller"
        await self._until_told()
        await self._life.logs_are_known()
        self._metrics.observe(broker.view())
        self._housekeeping.start()
        self._isr_maintenance.start()
        for listener in self._listeners:
            await listener.serve()
            self._metrics.listeners.append(listener)
        self._phase = None
        self._telemetry.broker_state = BROKER_RUNNING

    def why_not_ready(self) -> str | None:
        """None once clients can be sent here: started, registered, caught up."""
        return self._phase or self._readiness.why_not()

    async def _find_lost_tails(self) -> tuple[TopicPartition, ...]:
        broker = self.broker
        return await asyncio.to_thread(
            find_lost_tails,
            broker.log_directory,
            log_config(broker.topic_settings({})),
            threads=broker.settings.num_recovery_threads_per_data_dir,
            now_ms=broker.clock.wall_ms(),
        )

    async def _until_told(self) -> None:
        """By the controller, what this broker hosts. One elsewhere may take as long as it likes to come."""
        timeout_ms = FIRST_COMMANDS_TIMEOUT_MS if self._is_alone else REMIND_MS
        while True:
            try:
                return await asyncio.wait_for(self._first_metadata(), timeout_ms / 1000)
            except TimeoutError as error:
                if self._is_alone:
                    raise TimeoutError(
                        f"the controller gave no commands within {timeout_ms // 1000} s"
                    ) from error
                _log.warning("registered, waiting for a controller", broker_id=self.broker.broker_id)

    async def _first_metadata(self) -> None:
        waits = asyncio.ensure_future(self.commands.first_metadata.wait())
        try:
            ends: list[asyncio.Future[Any]] = [waits, self.failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits.cancel()
        if self.failed.done():
            raise self.failed.result()

    def _fail(self, reason: Exception) -> None:
        if not self.failed.done():
            self.failed.set_result(reason)

    @property
    def addresses(self) -> Mapping[str, int]:
        """The port of each listener by name."""
        return {listener.name: listener.port for listener in self._listeners}

    async def stop(self) -> None:
        """Hand leadership over, finish or fail what waits, flush, write the clean-shutdown marker, give up
        the registration: in this order, each whatever became of those before.
        """
        async with contextlib.AsyncExitStack() as last:
            last.callback(self._timer.close)
            last.push_async_callback(self._life.end)
            last.push_async_callback(self.broker.hosting.close_all)
            last.push_async_callback(self.commands.stop)
            last.push_async_callback(self._stop_serving)
            self._telemetry.broker_state = BROKER_HANDING_OVER
            if not self._is_alone and self.commands.first_metadata.is_set():
                await self._life.hand_over()

    async def _stop_serving(self) -> None:
        self._telemetry.broker_state = BROKER_STOPPING
        self._metrics.listeners.clear()
        for listener in self._listeners:
            listener.stop_accepting()
        await self._readiness.stop()
        await self._housekeeping.stop()
        await self._isr_maintenance.stop()
        self.broker.answer_waiting()
        await self._dispatcher.stop()
        await asyncio.sleep(0)  # the answers leave at the end of this turn
        for listener in self._listeners:
            listener.close()


def _new_dispatcher(broker: Broker, tracing: Tracing | None) -> Dispatcher:
    handlers = HandlerWiring(broker)
    if tracing is None:
        return Dispatcher(handlers, broker.telemetry)
    from tidelog.broker.tracing import RequestTracer  # only a broker with tracing needs it

    return Dispatcher(handlers, broker.telemetry, RequestTracer(tracing, broker.metadata.topic_names))


def _advertised(endpoints: tuple[Endpoint, ...], ports: Mapping[str, int]) -> tuple[Endpoint, ...]:
    """Port 0 becomes the port that was had, an empty host the machine's name."""
    return tuple(
        endpoint._replace(
            host=endpoint.host or socket.gethostname(), port=endpoint.port or ports[endpoint.listener_name]
        )
        for endpoint in endpoints
    )
