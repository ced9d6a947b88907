"""`tidelog group-coordinator`: one group coordinator as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import click
from tidelog.cli.service_options import service_options, settings_from
from tidelog.cli.service_process import Started, run_service
from tidelog.group_coordinator.server import GroupCoordinator
from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
from tidelog.metadata.store import StoreError
from tidelog.rpc.session_stream import StreamSessionConnector
from tidelog.runtime.broker_settings import BrokerSettings
from tidelog.runtime.telemetry import Telemetry


@click.command()
@service_options
def command(config: Path | None, assignments: tuple[str, ...]) -> None:
    """One group coordinator: groups and transactions; brokers pass on to it what clients ask."""
    run_service(settings_from(config, assignments), _start)


async def _start(
    settings: BrokerSettings, store: EtcdMetadataStore, stack: contextlib.AsyncExitStack
) -> Started:
    failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def fail(error: StoreError) -> None:
        if not failed.done():
            failed.set_result(error)

    connector = StreamSessionConnector()
    stack.push_async_callback(connector.close)
    coordinator = await GroupCoordinator.start(store, settings, connector, on_failed=fail)
    stack.push_async_callback(coordinator.stop)
    if settings.tidelog_metrics_listener:
        telemetry = Telemetry()
        telemetry.observe_coordinator(coordinator.lag)
        telemetry.serve(settings.tidelog_metrics_listener)
        stack.callback(telemetry.close)
    return Started(f"group-coordinator-{settings.node_id}", failed)
