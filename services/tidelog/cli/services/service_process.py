"""The life of a process that runs one service.

The process answers probes, connects to etcd, starts the service, prints `ready:`, and stops at SIGTERM. Its
gRPC server and TLS are those that the settings configure.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
import structlog
import uvloop

from tidelog.broker.log.previous_life import LogDirectoryInUseError
from tidelog.cli.services.service_options import etcd_options, fail, is_loopback
from tidelog.log_format.directory import CorruptFileError
from tidelog.metadata.cluster_identity import until_store_answers
from tidelog.metadata.etcd.connection import EtcdOptions
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.store import StoreError
from tidelog.metrics.health import Health
from tidelog.metrics.process_metrics import ProcessMetrics
from tidelog.model.errors import KafkaError
from tidelog.process.startup import bound_collection_pauses, keep_files_private
from tidelog.rpc.grpc_transport import RpcServer, RpcService
from tidelog.rpc.peer_tls import PeerTls
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError
from tidelog.tracing.start import start_tracing

if TYPE_CHECKING:
    from tidelog.tracing.tracer import Tracing


EXPECTED_ERRORS = (OSError, KafkaError, StoreError, CorruptFileError, LogDirectoryInUseError, SettingError)
"""The exceptions of a failed start. The message of each is one sentence that describes the problem."""
F = TypeVar("F", bound=Callable[..., object])

_log = structlog.get_logger(__name__)


class Started(NamedTuple):
    """A started service. `failed` completes, with the reason, when the service can't continue."""

    address: str
    failed: asyncio.Future[Exception]


class Surroundings(NamedTuple):
    """The objects that a service finds when it starts.

    The service pushes onto `stack` how it is stopped; a failed start unwinds the stack, too. The endpoint
    already serves `metrics`; the service registers its own there and tells `health` when it is ready.
    """

    settings: BrokerSettings
    store: EtcdMetadataStore
    stack: contextlib.AsyncExitStack
    metrics: ProcessMetrics
    health: Health
    tracing: Tracing | None
    tls: PeerTls | None


StartService = Callable[[Surroundings], Awaitable[Started]]


def run_service(service: str, settings: BrokerSettings, start: StartService) -> None:
    """Runs a service until SIGTERM or SIGINT.

    If the service can't start or continue, the process ends with one line. `service` is the subcommand's
    name.
    """
    options = etcd_options(settings)
    keep_files_private(Path(settings.data_dirs[0]) if service == "broker" else None)
    try:
        uvloop.run(_live(service, settings, options, start))
    except EXPECTED_ERRORS as error:
        fail(str(error))


async def _live(service: str, settings: BrokerSettings, options: EtcdOptions, start: StartService) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    # Only now, because a signal handler's exception would be lost in the collector's callback.
    bound_collection_pauses()
    stopped = asyncio.ensure_future(stopping.wait())
    async with contextlib.AsyncExitStack() as stack:
        health = Health()
        stack.callback(health.close)
        metrics = ProcessMetrics(service, settings.node_id, health)
        tracing = start_tracing(settings, service, settings.node_id)
        if tracing is not None:
            metrics.spans = tracing
            stack.callback(tracing.close)
        metrics.serve_at_listeners(settings)
        stack.callback(metrics.close)
        stopped.add_done_callback(lambda _: health.not_ready("stopping"))
        stopped.add_done_callback(lambda _: _end_in_time(settings.tidelog_shutdown_timeout_ms))
        store = EtcdMetadataStore(options)
        stack.push_async_callback(store.close)
        surroundings = Surroundings(settings, store, stack, metrics, health, tracing, peer_tls(settings))
        starting = asyncio.ensure_future(_start(surroundings, start))
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return
        started = starting.result()
        click.echo(f"ready: {started.address}")
        sys.stdout.flush()
        ends: list[asyncio.Future[Any]] = [stopped, started.failed]  # of different results
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if started.failed.done() and not stopping.is_set():
        raise started.failed.result()


async def _start(surroundings: Surroundings, start: StartService) -> Started:
    endpoints = ",".join(surroundings.settings.tidelog_etcd_endpoints)
    surroundings.health.not_ready(f"waiting for etcd at {endpoints}")
    await until_store_answers(surroundings.store, endpoints)
    surroundings.health.not_ready("starting")
    return await start(surroundings)


def _end_in_time(timeout_ms: int) -> None:
    """Ends the process with a log line if the stop takes too long, for example because a disk hangs.

    Unsynced data is then in the page cache, as after a SIGKILL.
    """

    def end() -> None:
        _log.error("the stop takes too long, so the process ends", shutdown_timeout_ms=timeout_ms)
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(timeout_ms / 1000, end)
    timer.daemon = True
    timer.start()


def peer_tls(settings: BrokerSettings) -> PeerTls | None:
    """Returns the certificates for TLS between services, or None if the settings name none.

    Raises OSError if a file cannot be used, SettingError if one of the three settings is missing.
    """
    named = {
        "tidelog.rpc.tls.ca.file": settings.tidelog_rpc_tls_ca_file,
        "tidelog.rpc.tls.cert.file": settings.tidelog_rpc_tls_cert_file,
        "tidelog.rpc.tls.key.file": settings.tidelog_rpc_tls_key_file,
    }
    if not any(named.values()):
        return None
    for name, path in named.items():
        if not path:
            raise SettingError(name, f"{name}: is missing; set all three tidelog.rpc.tls files, or none")
    try:
        return PeerTls(
            *map(str, named.values()),
            server_name=settings.tidelog_rpc_tls_server_name,
            checks_roles=settings.tidelog_rpc_tls_check_roles,
        )
    except OSError as error:
        raise OSError(f"tidelog.rpc.tls: {error}") from error


async def open_rpc_door(
    settings: BrokerSettings, stack: contextlib.AsyncExitStack, *services: RpcService, tls: PeerTls | None
) -> str:
    """Starts the process's gRPC server and stops it when `stack` is closed.

    Returns the address at which other services call it. Raises OSError and SettingError, which name the
    setting.
    """
    server = RpcServer(*services, tls=tls)
    listen = settings.tidelog_rpc_listener
    if tls is None and not settings.tidelog_rpc_allow_plaintext and not is_loopback(listen):
        raise SettingError(
            "tidelog.rpc.listener",
            f"tidelog.rpc.listener: {listen} is not a loopback address, and calls would not be encrypted or "
            "authenticated; set the tidelog.rpc.tls files, or tidelog.rpc.allow.plaintext=true",
        )
    try:
        listening = await server.start(listen)
    except OSError as error:
        raise OSError(
            f"tidelog.rpc.listener: cannot listen on {listen}: the address is in use or does not belong to "
            "this machine"
        ) from error
    stack.push_async_callback(server.stop)
    advertised = settings.tidelog_rpc_advertised_address
    if not advertised:
        return listening
    host, _, port = advertised.rpartition(":")
    return f"{host}:{listening.rpartition(':')[2]}" if port == "0" else advertised
