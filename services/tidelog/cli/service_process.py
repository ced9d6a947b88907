"""The life of a process that runs one service.

The process answers probes, connects to etcd, starts the service, prints `ready:`, and stops at SIGTERM.
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
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import structlog
import uvloop

from tidelog.broker.log.errors import LogDirectoryInUseError
from tidelog.cli.rpc_door import is_loopback, peer_tls
from tidelog.cli.service_options import fail
from tidelog.log_format.directory import CorruptFileError
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.etcd.options import EtcdAddressError, EtcdOptions
from tidelog.metadata.store import StoreError
from tidelog.metadata.store_wait import until_store_answers
from tidelog.metrics.certificates import CertificateExpiry
from tidelog.metrics.health import Health
from tidelog.metrics.process_metrics import ProcessMetrics
from tidelog.model.errors import KafkaError
from tidelog.process.garbage_collection import bound_collection_pauses
from tidelog.process.private_files import keep_files_private
from tidelog.rpc.peer_tls import PeerTls
from tidelog.settings.broker_settings import BrokerSettings, certificate_files
from tidelog.settings.setting import Password, SettingError
from tidelog.tracing.start import start_tracing

if TYPE_CHECKING:
    from tidelog.tracing.tracer import Tracing

_log = structlog.get_logger(__name__)

EXPECTED_ERRORS = (
    OSError,
    KafkaError,
    StoreError,
    CorruptFileError,
    LogDirectoryInUseError,
    SettingError,
)
"""The exceptions of a failed start. The message of each is one sentence that describes the problem."""


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


def etcd_options(settings: BrokerSettings) -> EtcdOptions:
    """Returns the options for etcd. Ends the process with one line if an endpoint is invalid, or if the
    password would travel to another machine without encryption.
    """
    password = settings.tidelog_etcd_password
    options = EtcdOptions(
        endpoints=settings.tidelog_etcd_endpoints,
        username=settings.tidelog_etcd_username or "",
        password=password.reveal() if isinstance(password, Password) else "",
        ca_file=settings.tidelog_etcd_tls_ca_file or "",
        cert_file=settings.tidelog_etcd_tls_cert_file or "",
        key_file=settings.tidelog_etcd_tls_key_file or "",
        prefix=settings.tidelog_etcd_prefix,
    )
    try:
        endpoints = options.parsed_endpoints()
    except EtcdAddressError as error:
        fail(f"tidelog.etcd.endpoints: {error}")
    if options.password and not settings.tidelog_etcd_allow_plaintext:
        for endpoint in endpoints:
            if not endpoint.is_tls and not is_loopback(endpoint.target):
                fail(
                    f"tidelog.etcd.endpoints: {endpoint.target} is not encrypted, and others could read "
                    "tidelog.etcd.password on the network; use https://, or set "
                    "tidelog.etcd.allow.plaintext=true"
                )
    return options


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
        if settings.tidelog_metrics_listener:
            metrics.watch_loop()
            certificates = certificate_files(settings)
            metrics.register(CertificateExpiry(lambda: certificates))
            metrics.serve(settings.tidelog_metrics_listener)
        if settings.tidelog_probes_listener:
            metrics.serve_probes(settings.tidelog_probes_listener)
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
