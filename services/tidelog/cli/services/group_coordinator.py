"""`tidelog group-coordinator`: runs one group coordinator as a process."""

from __future__ import annotations

import asyncio

import click

from tidelog.cli.services.service_options import command_settings, service_options
from tidelog.cli.services.service_process import Started, Surroundings, run_service
from tidelog.controller.metrics import ControllerMetrics
from tidelog.group_coordinator.server import GroupCoordinator
from tidelog.metadata.store import StoreError
from tidelog.process.command_help import DescribedCommand
from tidelog.rpc.grpc_sessions import GrpcSessionConnector


@click.command(cls=DescribedCommand, examples=("tidelog group-coordinator --config server.properties",))
@service_options
def command() -> None:
    """Run one group coordinator.

    It makes the decisions for groups and transactions. Brokers forward the clients' requests to it.
    """
    run_service("group-coordinator", command_settings(), _start)


async def _start(around: Surroundings) -> Started:
    settings, store, stack = around.settings, around.store, around.stack
    around.metrics.register(ControllerMetrics())  # every process reports that it is not the controller
    failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def fail(error: StoreError) -> None:
        if not failed.done():
            failed.set_result(error)

    connector = GrpcSessionConnector(around.tls)
    stack.push_async_callback(connector.close)
    coordinator = await GroupCoordinator.start(
        store, settings, connector, tracing=around.tracing, on_failed=fail
    )
    stack.push_async_callback(coordinator.stop)
    around.metrics.register(coordinator.metrics)
    around.metrics.lease = coordinator
    around.health.ready_when(coordinator.why_not_ready)
    return Started(f"group-coordinator-{settings.node_id}", failed)
