"""`tidelog controller`: runs one controller as a process. If there are several, one is active."""

from __future__ import annotations

import uuid

import click

from tidelog.cli.services.service_options import command_settings, service_options
from tidelog.cli.services.service_process import Started, Surroundings, open_rpc_door, run_service
from tidelog.controller.metrics import ControllerMetrics
from tidelog.controller.server import Controller
from tidelog.metadata.cluster_identity import ensure_cluster_id
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition, topic_id_text
from tidelog.process.command_help import DescribedCommand
from tidelog.rpc.controller_api import ControllerApi, ForwardedRequest, ProducerIdBlock
from tidelog.rpc.grpc_broker_commands import GrpcBrokerChannels
from tidelog.rpc.grpc_controller import ControllerApiService
from tidelog.wire.schema import Message


@click.command(cls=DescribedCommand, examples=("tidelog controller --config server.properties",))
@service_options
def command() -> None:
    """Run one controller.

    Brokers and etcd run in other processes. If there are several controllers, one is active.
    """
    run_service("controller", command_settings(), _start)


class _OpenedLater:
    """A controller that starts after the gRPC server, whose address it needs for the election."""

    def __init__(self) -> None:
        self.controller: ControllerApi | None = None

    def _opened(self) -> ControllerApi:
        if self.controller is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This controller is starting.")
        return self.controller

    async def handle(self, api_key: int, request: ForwardedRequest) -> Message:
        return await self._opened().handle(api_key, request)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> tuple[TopicPartition, ...]:
        return await self._opened().controlled_shutdown(broker_id, broker_epoch)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        return await self._opened().allocate_producer_ids(broker_id, broker_epoch)


async def _start(around: Surroundings) -> Started:
    settings, store, stack = around.settings, around.store, around.stack
    controller_metrics = ControllerMetrics()
    around.metrics.register(controller_metrics)
    await ensure_cluster_id(store, topic_id_text(uuid.uuid4()))
    channels = GrpcBrokerChannels(around.tls)
    stack.push_async_callback(channels.close)
    api = _OpenedLater()
    rpc_address = await open_rpc_door(
        settings, stack, ControllerApiService(api, around.tracing), tls=around.tls
    )
    controller = await Controller.start(store, channels, settings, rpc_address=rpc_address)
    stack.push_async_callback(controller.stop)
    api.controller = controller
    controller_metrics.observe(controller)
    around.metrics.lease = controller
    around.health.ready_when(controller.why_not_ready)
    return Started(rpc_address, controller.failed)
