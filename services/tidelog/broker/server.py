"""The start and stop of a broker."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from tidelog.broker.cluster.view import log_config, warn_of_settings_without_effect
from tidelog.broker.log.log_directory import LogDirectory, find_lost_tails
from tidelog.broker.metrics import BrokerMetrics, BrokerView
from tidelog.broker.net.authentication import Authenticator
from tidelog.broker.net.connection import Dispatch
from tidelog.broker.net.listener import ConnectionLimits, Listener
from tidelog.broker.net.tls import ServerCertificates, TlsFileError
from tidelog.broker.parts import BrokerParts, BrokerSurroundings
from tidelog.broker.requests.chain import RequestChain
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.kernel.clock import Clock, SystemClock
from tidelog.kernel.timer import LoopTimer
from tidelog.metadata.entries import BrokerEntry
from tidelog.metadata.store import MetadataStore
from tidelog.metrics.process_metrics import LeaseView
from tidelog.metrics.telemetry import (
    BROKER_HANDING_OVER,
    BROKER_RECOVERING,
    BROKER_RUNNING,
    BROKER_STARTING,
    BROKER_STOPPING,
    Telemetry,
)
from tidelog.model.brokers import Endpoint
from tidelog.model.topics import TopicPartition
from tidelog.rpc.controller_api import ControllerApi
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.tls_settings import plan_tls

if TYPE_CHECKING:
    from tidelog.broker.client_telemetry.forwarder import OtlpMetricsForwarder
    from tidelog.broker.client_telemetry.receiver import ClientTelemetry
    from tidelog.tracing.tracer import Tracing

FIRST_COMMANDS_TIMEOUT_MS: Final = 30_000
"""The time that a start waits for the commands of a controller in the same process."""
REMIND_MS: Final = 10_000
"""The interval at which a start logs that it still waits for a controller in another process."""

HANDSHAKE_THREADS: Final = 2
"""The threads that complete TLS handshakes. They start with the first handshake."""

Intercept: TypeAlias = Callable[[int, Dispatch, Telemetry], Dispatch]
"""Returns what the listeners of a broker call for each request, given the broker's id, the dispatcher's
`dispatch`, and the broker's telemetry. Only `tidelog.testing` has one. It may hold requests back, answer them
itself, or pass them on.
"""

_log = structlog.get_logger(__name__)


class BrokerServer:
    """One running broker. `failed` is done, with the reason, when the broker cannot continue."""

    def __init__(
        self,
        parts: BrokerParts,
        metrics: BrokerMetrics,
        timer: LoopTimer,
        tracing: Tracing | None,
        *,
        is_alone: bool,
        intercept: Intercept | None = None,
    ) -> None:
        self.commands = parts.commands
        self.coordination = parts.coordination
        """Accepts the sessions of coordinators."""
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._parts = parts
        self._is_alone = is_alone
        self._phase: str | None = "recovering logs"
        self._metrics = metrics
        self._telemetry = metrics.telemetry
        self._timer = timer
        self._dispatcher = _new_dispatcher(parts, tracing)
        self._dispatch: Dispatch = self._dispatcher.dispatch
        if intercept is not None:
            self._dispatch = intercept(parts.identity.broker_id, self._dispatch, self._telemetry)
        self._forwarder = _metrics_forwarder(parts.current_settings.broker, parts.client_telemetry)
        self._listeners: list[Listener] = []
        self._handshakes = ThreadPoolExecutor(HANDSHAKE_THREADS, "tls-handshake")

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
        clock: Clock | None = None,
        intercept: Intercept | None = None,
    ) -> BrokerServer:
        """Opens the data directory.

        `is_alone` means that the cluster has no other broker and that the controller runs in this process.
        `intercept` sees all requests before the dispatcher.
        Raises LogDirectoryInUseError, CorruptFileError (also if the directory belongs to another cluster or
        broker) and OSError.
        """
        warn_of_settings_without_effect(settings.without_effect)
        clock = clock or SystemClock()
        timer = LoopTimer(asyncio.get_running_loop())
        log_directory = LogDirectory.open(directory, cluster_id=cluster_id, node_id=settings.node_id)
        around = BrokerSurroundings(
            cluster_id, log_directory, store, controller, metrics.telemetry, clock, timer, random.Random()
        )
        parts = BrokerParts(settings, around)
        return cls(parts, metrics, timer, tracing, is_alone=is_alone, intercept=intercept)

    @property
    def lease(self) -> LeaseView:
        """The broker's lease in the metadata store, for metrics."""
        return self._parts.life

    async def start(
        self,
        *,
        rpc_address: str = "",
        on_epoch: Callable[[int], None] | None = None,
    ) -> None:
        """Starts the broker and returns when clients can connect. Other services call it at `rpc_address`,
        which is empty if they share its process. `on_epoch` is called with the broker epoch after each
        registration.

        Raises OSError if it cannot listen on an address, TimeoutError if the controller in this process sends
        no commands, and KafkaError if another live broker holds the id.
        """
        parts, settings = self._parts, self._parts.current_settings.broker
        self._telemetry.broker_state = BROKER_STARTING
        plan = settings.listener_plan()
        limits = ConnectionLimits(parts.current_settings, parts.quotas.quotas)
        self._metrics.budgets["request_memory"] = limits.buffer_pool.budget
        self._metrics.budgets["unread_answers"] = limits.unread_answers
        if (watched := parts.waiting.fetch.budget) is not None:
            self._metrics.budgets["watched_partitions"] = watched
        self._metrics.budgets["fetch_sessions"] = parts.fetch_sessions.slots
        self._metrics.budgets["fetch_session_partitions"] = parts.fetch_sessions.room
        for endpoint in plan.bind:
            listener = Listener(
                endpoint,
                parts.current_settings,
                self._telemetry,
                self._timer,
                self._dispatch,
                limits,
                self._authenticator(endpoint),
                self._certificates(endpoint),
                self._handshakes,
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
        # If this start fails, the next start must not trust the directory either.
        parts.log_directory.has_untold_damage = parts.log_directory.is_suspect
        if not self._is_alone:  # otherwise there is no other replica that could lead instead
            entry = entry._replace(
                is_log_suspect=parts.log_directory.is_suspect,
                suspect_partitions=await self._find_lost_tails(),
            )
        self._phase = "registering"
        self._telemetry.broker_state = BROKER_RECOVERING
        await parts.life.begin(entry, on_epoch, on_failed=self._fail)
        self._phase = "registered, waiting for a controller"
        await self._until_told()
        await parts.life.logs_are_known()
        self._metrics.observe(self._view())
        self._metrics.client_telemetry = parts.client_telemetry
        parts.start_duties()
        for listener in self._listeners:
            await listener.serve()
            self._metrics.listeners.append(listener)
        self._phase = None
        self._telemetry.broker_state = BROKER_RUNNING

    def why_not_ready(self) -> str | None:
        """Returns the reason why clients cannot be sent to this broker. Returns None if it has started, is
        registered and has caught up.
        """
        return self._phase or self._parts.readiness.why_not()

    async def _find_lost_tails(self) -> tuple[TopicPartition, ...]:
        parts, settings = self._parts, self._parts.current_settings
        return await asyncio.to_thread(
            find_lost_tails,
            parts.log_directory,
            log_config(settings.topic({})),
            threads=settings.broker.num_recovery_threads_per_data_dir,
            now_ms=parts.clock.wall_ms(),
        )

    def _certificates(self, endpoint: Endpoint) -> ServerCertificates | None:
        """Returns the certificates of a listener with TLS. They follow changes of the settings."""
        if not endpoint.security_protocol.endswith("SSL"):
            return None
        name, current = endpoint.listener_name, self._parts.current_settings
        certificates = ServerCertificates(plan_tls(name, current.broker.listener_value))

        def settings_changed(settings: BrokerSettings) -> None:
            plan = plan_tls(name, settings.listener_value)
            if plan == certificates.plan:
                return
            try:
                certificates.replace(plan)
            except TlsFileError as error:
                _log.error("keeps the earlier certificates", listener=name, reason=str(error))

        current.observe(settings_changed)
        return certificates

    def _authenticator(self, endpoint: Endpoint) -> Authenticator | None:
        """Returns what authenticates the clients of a listener with SASL, or None for another protocol."""
        if not endpoint.security_protocol.startswith("SASL_"):
            return None
        parts = self._parts
        return Authenticator(endpoint.listener_name, parts.current_settings, parts.metadata, parts.clock)

    def _view(self) -> BrokerView:
        """Returns the state that the broker's metrics show."""
        parts = self._parts
        return BrokerView(
            parts.identity.broker_id,
            parts.log_directory.path,
            parts.hosted,
            parts.waiting,
            parts.fetch_sessions,
            parts.follower_fetch_sessions,
            parts.fetchers,
            parts.coordination,
            parts.log_cleaner,
            parts.quotas.quotas,
            lambda: parts.share_partitions_if_used,
        )

    async def _until_told(self) -> None:
        """Waits for the controller's first commands, which open all logs. Waits without a limit for a
        controller in another process.
        """
        timeout_ms = FIRST_COMMANDS_TIMEOUT_MS if self._is_alone else REMIND_MS
        opened = -1
        while True:
            try:
                return await asyncio.wait_for(self._first_metadata(), timeout_ms / 1000)
            except TimeoutError as error:
                opened_before, opened = opened, len(self._parts.hosted.replicas)
                if self._is_alone:
                    if opened > max(opened_before, 0):
                        continue
                    raise TimeoutError(
                        f"the controller sent no commands within {timeout_ms // 1000} s"
                    ) from error
                _log.warning("registered, waiting for a controller", broker_id=self._parts.identity.broker_id)

    async def _first_metadata(self) -> None:
        waits = asyncio.ensure_future(self.commands.first_metadata.wait())
        try:
            ends: list[asyncio.Future[Any]] = [waits, self.failed]  # Any: their results differ
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

    async def stop(self, *, is_abrupt: bool = False) -> None:
        """Stops the broker. It hands over its leaderships, answers the waiting requests, flushes the logs,
        writes the clean-shutdown marker, and gives up its registration. If one step fails, the later ones run
        nevertheless.

        With `is_abrupt`, it first closes all connections without a response, and hands nothing over.
        """
        async with contextlib.AsyncExitStack() as last:
            last.callback(self._timer.close)
            last.callback(self._parts.record_walks.shutdown, wait=False, cancel_futures=True)
            last.callback(self._handshakes.shutdown, wait=False, cancel_futures=True)
            last.push_async_callback(self._parts.life.end)
            if self._forwarder is not None:
                last.push_async_callback(self._forwarder.close)
            last.push_async_callback(self._parts.hosting.close_all)
            last.push_async_callback(self.commands.stop)
            last.push_async_callback(self._stop_serving)
            if is_abrupt:
                for listener in self._listeners:
                    listener.close()
                return
            self._telemetry.broker_state = BROKER_HANDING_OVER
            if not self._is_alone and self.commands.first_metadata.is_set():
                await self._parts.life.hand_over()

    async def _stop_serving(self) -> None:
        self._telemetry.broker_state = BROKER_STOPPING
        self._metrics.listeners.clear()
        for listener in self._listeners:
            listener.stop_accepting()
        await self._parts.readiness.stop()
        await self._parts.stop_duties()
        await self._dispatcher.stop()
        await asyncio.sleep(0)  # the responses leave at the end of this iteration
        for listener in self._listeners:
            listener.close()


def _metrics_forwarder(
    settings: BrokerSettings, telemetry: ClientTelemetry | None
) -> OtlpMetricsForwarder | None:
    """Returns what sends clients' metrics to the collector of the traces, if both are set up."""
    if telemetry is None or not settings.tidelog_tracing_otlp_endpoint:
        return None
    from tidelog.broker.client_telemetry.forwarder import OtlpMetricsForwarder

    forwarder = OtlpMetricsForwarder(settings)
    telemetry.forwarder = forwarder
    return forwarder


def _new_dispatcher(parts: BrokerParts, tracing: Tracing | None) -> Dispatcher:
    handlers = RequestChain(parts)
    if tracing is None:
        return Dispatcher(handlers, parts.telemetry, parts.quotas)
    from tidelog.broker.requests.tracing import RequestTracer  # only a broker with tracing needs it

    tracer = RequestTracer(tracing, parts.metadata.topic_names)
    return Dispatcher(handlers, parts.telemetry, parts.quotas, tracer)


def _advertised(endpoints: tuple[Endpoint, ...], ports: Mapping[str, int]) -> tuple[Endpoint, ...]:
    """Replaces port 0 by the port that was bound, and an empty host by the name of the machine."""
    return tuple(
        endpoint._replace(
            host=endpoint.host or socket.gethostname(), port=endpoint.port or ports[endpoint.listener_name]
        )
        for endpoint in endpoints
    )
