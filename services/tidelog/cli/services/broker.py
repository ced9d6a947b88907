"""`tidelog broker`: one broker as a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click
import structlog

from tidelog.broker.hosting.life import GRACE_MS
from tidelog.broker.log.directory_files import read_meta_properties
from tidelog.broker.log.previous_life import LogDirectoryInUseError
from tidelog.broker.metrics import BrokerMetrics
from tidelog.broker.server import BrokerServer
from tidelog.cli.services.service_options import command_settings, service_options
from tidelog.cli.services.service_process import Started, Surroundings, open_rpc_door, run_service
from tidelog.controller.metrics import ControllerMetrics
from tidelog.log_format.directory import CorruptFileError
from tidelog.metadata.cluster_identity import stored_cluster_id
from tidelog.metadata.store import MetadataStore
from tidelog.metrics.process_metrics import REPLICAS_PAGE
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.brokers import host_and_port
from tidelog.process.command_help import DescribedCommand
from tidelog.rpc.controller_api import ControllerApi
from tidelog.rpc.grpc_broker_commands import BrokerCommandsService
from tidelog.rpc.grpc_controller import RemoteController
from tidelog.rpc.grpc_sessions import CoordinatorSessionsService

LOCK_POLL_MS: Final = 100
CLUSTER_ID_POLL_MS: Final = 200

_log = structlog.get_logger(__name__)


@click.command(cls=DescribedCommand, examples=("tidelog broker --config server.properties --set node.id=1",))
@service_options
def command() -> None:
    """Run one broker.

    The controller and etcd run in other processes.
    """
    run_service("broker", command_settings(), _start)


async def _start(around: Surroundings) -> Started:
    settings, store, stack = around.settings, around.store, around.stack
    metrics = BrokerMetrics(Telemetry(), around.metrics.loop)
    around.metrics.register(metrics)
    around.metrics.pages[REPLICAS_PAGE] = metrics.replica_stories
    around.metrics.register(ControllerMetrics())
    directory = Path(settings.data_dirs[0])
    cluster_id = await _cluster_id(around, store, directory)
    controller = RemoteController(store, around.tls)
    controller.start()
    stack.push_async_callback(controller.stop)
    server = await _open_when_free(around, directory, cluster_id, controller, metrics)
    around.metrics.lease = server.lease
    stack.push_async_callback(server.stop)
    commands = BrokerCommandsService(server.commands, settings.node_id, store)
    sessions = CoordinatorSessionsService(server.coordination)
    rpc_address = await open_rpc_door(settings, stack, commands, sessions, tls=around.tls)
    around.health.ready_when(server.why_not_ready)
    await server.start(rpc_address=rpc_address, on_epoch=commands.set_broker_epoch)
    endpoint = settings.listener_plan().bind[0]
    return Started(
        host_and_port(endpoint.host or "0.0.0.0", server.addresses[endpoint.listener_name]), server.failed
    )


async def _cluster_id(around: Surroundings, store: MetadataStore, directory: Path) -> str:
    """Returns the cluster id. If the directory is new, waits until a controller has created it.

    Raises CorruptFileError if the directory belongs to a cluster that etcd does not know.
    """
    meta = await asyncio.to_thread(read_meta_properties, directory)
    while (cluster_id := await stored_cluster_id(store)) is None:
        if meta is not None:
            raise CorruptFileError(
                f"log.dirs: {directory} belongs to cluster {meta.cluster_id}, but etcd holds no cluster. "
                "If etcd's data was lost, 'tidelog cluster recover' rebuilds it from the brokers' directories"
            )
        around.health.not_ready("waiting for a controller to create the cluster id")
        await asyncio.sleep(CLUSTER_ID_POLL_MS / 1000)
    return cluster_id


async def _open_when_free(
    around: Surroundings, directory: Path, cluster_id: str, controller: ControllerApi, metrics: BrokerMetrics
) -> BrokerServer:
    """Opens the directory, and waits while a process of this broker that is stopping still holds the lock."""
    settings, store = around.settings, around.store
    max_wait_ms = settings.broker_session_timeout_ms + GRACE_MS
    waited_ms = 0
    while True:
        try:
            return BrokerServer.open(
                settings,
                directory,
                store,
                cluster_id,
                controller,
                metrics,
                is_alone=False,
                tracing=around.tracing,
            )
        except LogDirectoryInUseError as error:
            if waited_ms >= max_wait_ms:
                raise
            if not waited_ms:
                around.health.not_ready(f"waiting for the data directory: {error}")
                _log.warning("waiting for the data directory", reason=str(error), max_wait_ms=max_wait_ms)
            await asyncio.sleep(LOCK_POLL_MS / 1000)
            waited_ms += LOCK_POLL_MS
