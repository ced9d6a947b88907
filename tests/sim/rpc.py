"""Calls between controllers and brokers: the real ends of gRPC channels with the simulated network between
them.
"""

from __future__ import annotations

from typing import Any, Final

from sim.loop import PROCESS, SimProcess
from sim.network import Network
from tidelog.metadata.entries import CONTROLLER_KEY, ControllerEntry, decode_entry
from tidelog.metadata.store import MetadataStore, StoreUnavailableError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.controller_api import ForwardedRequest, ProducerIdBlock
from tidelog.rpc.generated import broker_commands_pb2 as pb

COMMAND_TIMEOUT_S: Final = 8.0
CONTROLLER_TIMEOUT_S: Final = 3.0


def controller_name(controller_id: int) -> str:
    return f"controller-{controller_id}"


class SimCommandConnection:
    """Replaces `grpc_broker_commands._Connection`: the stream of commands to one broker."""

    def __init__(self, address: str, tls: object) -> None:
        self._address = address
        self.is_broken = False

    async def ask(self, number: int, encoded: bytes) -> Any:
        source = PROCESS.get()
        assert source is not None

        async def serve(process: SimProcess) -> Any:
            node = process.service
            if node is None or node.commands_service is None:
                raise ConnectionError(f"{process} takes no commands yet")
            return await node.commands_service.answer(pb.Command.FromString(encoded))

        try:
            return await source.network.call(
                self._address, serve, "command", timeout_s=COMMAND_TIMEOUT_S, stream=self
            )
        except ConnectionError:
            self.is_broken = True
            raise

    async def close(self) -> None:
        self.is_broken = True


class SimControllerApi:
    """The `ControllerApi` of a broker, which calls the controller that `/controller` names."""

    def __init__(self, network: Network, store: MetadataStore) -> None:
        self._network = network
        self._store = store

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            item = await self._store.get(CONTROLLER_KEY)
        except StoreUnavailableError as error:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error
        entry = None if item is None else decode_entry(item.key, item.value)
        if not isinstance(entry, ControllerEntry):
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "there is no controller")

        async def serve(process: SimProcess) -> Any:
            controller = None if process.service is None else process.service.controller
            if controller is None or not hasattr(controller, method):
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "not yet")
            return await getattr(controller, method)(*arguments)

        try:
            return await self._network.call(
                controller_name(entry.controller_id), serve, method, timeout_s=CONTROLLER_TIMEOUT_S
            )
        except ConnectionError as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error

    async def handle(self, api_key: int, request: ForwardedRequest) -> Any:
        return await self._call("handle", api_key, request)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Any:
        return await self._call("controlled_shutdown", broker_id, broker_epoch)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        block: ProducerIdBlock = await self._call("allocate_producer_ids", broker_id, broker_epoch)
        return block
