"""`tidelog group-coordinator`: one group coordinator as a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from tidelog.cli.service_options import service_options, settings_from
from tidelog.cli.service_process import Started, Surroundings, run_service
from tidelog.group_coordinator.runtime.request_tracing import RequestTracing
from tidelog.group_coordinator.server import GroupCoordinator
from tidelog.metadata.store import StoreError
from tidelog.rpc.session_stream import StreamSessionConnector


@click.command()
@service_options
def command(configs: tuple[Path, ...], assignments: tuple[str, ...]) -> None:
    """One group coordinator: groups and transactions; brokers pass on to it what clients ask."""
    run_service("group-coordinator", settings_from(configs, assignments), _start)


async def _start(around: Surroundings) -> Started:
    settings, store, stack = around.settings, around.store, around.stack
    failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def fail(error: StoreError) -> None:
        if not failed.done():
            failed.set_result(error)

    connector = StreamSessionConnector(around.tls)
    stack.push_async_callback(connector.close)
    coordinator = await GroupCoordinator.start(store, settings, connector, on_failed=fail)
    stack.push_async_callback(coordinator.stop)
    around.telemetry.observe_coordinator(coordinator.lag)
    if around.telemetry.tracing is not None:
        coordinator.runtime.tracing = RequestTracing(around.telemetry.tracing)
    around.telemetry.observe_lease(coordinator)
    around.health.ready_when(coordinator.why_not_ready)
    return Started(f"group-coordinator-{settings.node_id}", failed)
