"""The life of a process that runs one service: answer probes, connect to etcd, start, say `ready:`, stop at
SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import click
import structlog
import uvloop
from tidelog.broker.log.errors import CorruptFileError, LogDirectoryInUseError
from tidelog.cli.rpc_door import peer_tls
from tidelog.cli.service_options import fail
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.etcd.options import EtcdAddressError, EtcdOptions
from tidelog.metadata.store import StoreError
from tidelog.metadata.store_wait import until_store_answers
from tidelog.model.errors import KafkaError
from tidelog.rpc.peer_tls import PeerTls
from tidelog.runtime.broker_settings import BrokerSettings
from tidelog.runtime.health import Health
from tidelog.runtime.setting import Password, SettingError
from tidelog.runtime.telemetry import Telemetry

_log = structlog.get_logger(__name__)

EXPECTED_ERRORS = (
    OSError,
    KafkaError,
    StoreError,
    CorruptFileError,
    LogDirectoryInUseError,
    SettingError,
)
"""What a start may end with; each says in one sentence what is wrong."""


class Started(NamedTuple):
    """`failed` is done, with the reason, when the service can't go on."""

    address: str
    failed: asyncio.Future[Exception]


class Surroundings(NamedTuple):
    """What a service finds when it starts. On the `stack` it leaves how it is stopped; what stands there is
    undone at any failure. The `telemetry` is served already, `health` is told when the service is ready.
    """

    settings: BrokerSettings
    store: EtcdMetadataStore
    stack: contextlib.AsyncExitStack
    telemetry: Telemetry
    health: Health
    tls: PeerTls | None


StartService = Callable[[Surroundings], Awaitable[Started]]


def run_service(service: str, settings: BrokerSettings, start: StartService) -> None:
    """Until SIGTERM or SIGINT; ends the process with one line if it can't start or go on. `service` is the
    subcommand's name.
    """
    options = etcd_options(settings)
    try:
        uvloop.run(_live(service, settings, options, start))
    except EXPECTED_ERRORS as error:
        fail(str(error))


def etcd_options(settings: BrokerSettings) -> EtcdOptions:
    """Ends the process with one line if an endpoint makes no sense."""
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
        options.parsed_endpoints()
    except EtcdAddressError as error:
        fail(f"tidelog.etcd.endpoints: {error}")
    return options


async def _live(service: str, settings: BrokerSettings, options: EtcdOptions, start: StartService) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    stopped = asyncio.ensure_future(stopping.wait())
    async with contextlib.AsyncExitStack() as stack:
        health = Health()
        stack.callback(health.close)
        telemetry = Telemetry()
        telemetry.health = health
        telemetry.identify(service, settings.node_id)
        telemetry.trace(settings, service, settings.node_id)
        stack.callback(telemetry.close_tracing)
        if settings.tidelog_metrics_listener:
            telemetry.watch_loop()
            telemetry.serve(settings.tidelog_metrics_listener)
            stack.callback(telemetry.close)
        stopped.add_done_callback(lambda _: health.not_ready("stopping"))
        stopped.add_done_callback(lambda _: _end_in_time(settings.tidelog_shutdown_timeout_ms))
        store = EtcdMetadataStore(options)
        stack.push_async_callback(store.close)
        surroundings = Surroundings(settings, store, stack, telemetry, health, peer_tls(settings))
        starting = asyncio.ensure_future(_start(surroundings, start))
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return
        started = starting.result()
        # What was made at the start lives as long as the process: keep it out of every later collection.
        gc.collect()
        gc.freeze()
        click.echo(f"ready: {started.address}")
        sys.stdout.flush()
        ends: list[asyncio.Future[Any]] = [stopped, started.failed]
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
    """A disk or a lock that hangs must not leave the end to a SIGKILL that says nothing. What is unsynced
    then is in the page cache, as after any SIGKILL.
    """

    def end() -> None:
        _log.error("the stop takes too long, the process ends", shutdown_timeout_ms=timeout_ms)
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(timeout_ms / 1000, end)
    timer.daemon = True
    timer.start()
