"""The broker's side of the command stream. It takes the controller's commands in order, for this broker epoch
only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import grpc.aio
import structlog

from tidelog.kernel.slices import run_in_slices
from tidelog.metadata.entries import InvalidEntryError
from tidelog.metadata.store import MetadataStore, StoreError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import (
    BrokerCommands,
    CommandResult,
    LeaderAndIsr,
    StopReplica,
    UpdateMetadata,
)
from tidelog.rpc.callers import ServiceRole, check_speaks_for
from tidelog.rpc.cluster_messages import refusal_message
from tidelog.rpc.command_messages import BrokerCommand, command, result_message
from tidelog.rpc.controller_location import elected_controller_epoch
from tidelog.rpc.generated import broker_commands_pb2 as pb
from tidelog.rpc.generated.broker_commands_pb2_grpc import add_BrokerCommandsServicer_to_server

# Time for which a command waits if its broker epoch is newer than the known one. The controller may learn of
# a registration before the broker has received the store's answer.
EPOCH_WAIT_MS: Final = 5_000
# Time for which a stop waits for a command in progress.
STOP_WAIT_MS: Final = 5_000

_log = structlog.get_logger(__name__)


class BrokerCommandsService:
    """gRPC's `BrokerCommands`, which calls the broker's own.

    A command is executed completely even if its stream breaks. Only one command is executed at a time, so a
    repeated command waits for the first one.

    The first command with a higher controller epoch is executed only after `store` has confirmed that epoch
    (ADR 0029). While the store is unavailable, such a command is not executed and its sender repeats it;
    commands of the controller that is already known are executed. Without a store nothing is confirmed.
    """

    def __init__(self, commands: BrokerCommands, broker_id: int, store: MetadataStore | None = None) -> None:
        self._commands = commands
        self._broker_id = broker_id
        self._store = store
        self._confirmed_controller_epoch = -1
        self._broker_epoch = -1
        self._epoch_changed = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._last_carried_out = (-1, -1)  # (controller_epoch, id)
        self._in_work: set[asyncio.Task[pb.CommandAnswer]] = set()

    def set_broker_epoch(self, broker_epoch: int) -> None:
        """Sets the broker epoch after each registration. Before the first registration, commands wait."""
        self._broker_epoch = broker_epoch
        self._epoch_changed.set()
        self._epoch_changed = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        add_BrokerCommandsServicer_to_server(self, server)  # type: ignore[arg-type]  # no base class needed

    async def stop(self) -> None:
        if self._in_work:
            await asyncio.wait(self._in_work, timeout=STOP_WAIT_MS / 1000)
        for task in self._in_work:
            _log.warning("aborting a command that did not finish in time", broker_id=self._broker_id)
            task.cancel()

    async def Commands(  # noqa: N802  the name in the .proto
        self, requests: AsyncIterator[pb.Command], _context: object
    ) -> AsyncIterator[pb.CommandAnswer]:
        async for message in requests:
            task = asyncio.create_task(self._answer(message))
            self._in_work.add(task)
            task.add_done_callback(self._in_work.discard)
            yield await asyncio.shield(task)

    async def _answer(self, message: pb.Command) -> pb.CommandAnswer:
        if not await self._is_for_us(message):
            return _not_carried_out(message, self._address_problem(message))
        async with self._one_at_a_time:
            if message.broker_epoch < self._broker_epoch:
                # The command was meant for an earlier registration.
                return _answered(message, CommandResult(ErrorCode.STALE_BROKER_EPOCH))
            try:
                order = await run_in_slices(command(message))
            except ValueError as error:
                return _failed(message, KafkaError(ErrorCode.INVALID_REQUEST, str(error)))
            if order is None:
                return _failed(
                    message,
                    KafkaError(
                        ErrorCode.UNSUPPORTED_VERSION, "This version of tidelog does not know the command."
                    ),
                )
            try:
                check_speaks_for(ServiceRole.CONTROLLER, order.controller_id)
            except KafkaError as error:
                return _failed(message, error)
            place = (order.controller_epoch, message.id)
            if order.controller_epoch == self._last_carried_out[0] and place <= self._last_carried_out:
                return _not_carried_out(
                    message, f"a command with an id of at least {message.id} was already executed"
                )
            if order.controller_epoch > self._confirmed_controller_epoch:
                refused = await self._confirm(message, order.controller_epoch)
                if refused is not None:
                    return refused
            self._last_carried_out = max(self._last_carried_out, place)
            return await self._carry_out(message, order)

    async def _confirm(self, message: pb.Command, controller_epoch: int) -> pb.CommandAnswer | None:
        """Compares a higher controller epoch with the store's. Returns the answer if it is refused."""
        if self._store is not None:
            try:
                elected = await elected_controller_epoch(self._store)
            except (StoreError, InvalidEntryError) as error:
                return _not_carried_out(
                    message, f"controller epoch {controller_epoch} could not be confirmed: {error}"
                )
            if elected > controller_epoch:
                return _answered(message, CommandResult(ErrorCode.STALE_CONTROLLER_EPOCH))
            if elected < controller_epoch:
                _log.error(
                    "a command names a controller epoch that no controller was elected with",
                    controller_epoch=controller_epoch,
                    elected_controller_epoch=elected,
                )
                return _failed(
                    message,
                    KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"no controller was elected with epoch {controller_epoch}; the last was {elected}",
                    ),
                )
        self._confirmed_controller_epoch = controller_epoch
        return None

    async def _is_for_us(self, message: pb.Command) -> bool:
        """Returns true if the command is for this broker epoch. It waits up to EPOCH_WAIT_MS for the
        registration.
        """
        if message.broker_id != self._broker_id:
            return False
        try:
            async with asyncio.timeout(EPOCH_WAIT_MS / 1000):
                while message.broker_epoch > self._broker_epoch:
                    await self._epoch_changed.wait()
        except TimeoutError:
            return False
        return True

    def _address_problem(self, message: pb.Command) -> str:
        return (
            f"the command is for broker {message.broker_id} of epoch {message.broker_epoch}, "
            f"but this is broker {self._broker_id} of epoch {self._broker_epoch}"
        )

    async def _carry_out(self, message: pb.Command, order: BrokerCommand) -> pb.CommandAnswer:
        try:
            return _answered(message, await _call(self._commands, order))
        except KafkaError as error:
            return _failed(message, error)
        except OSError as error:
            _log.error("a command failed", command=type(order).__name__, reason=str(error))
            return _failed(message, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
        except Exception as error:  # noqa: BLE001 - a fault in one command must not end the stream
            _log.exception("a command failed", command=type(order).__name__)
            return _failed(message, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))


async def _call(commands: BrokerCommands, order: BrokerCommand) -> CommandResult:
    match order:
        case LeaderAndIsr():
            return await commands.leader_and_isr(order)
        case UpdateMetadata():
            return await commands.update_metadata(order)
        case StopReplica():
            return await commands.stop_replica(order)


def _answered(message: pb.Command, result: CommandResult) -> pb.CommandAnswer:
    return pb.CommandAnswer(id=message.id, result=result_message(result))


def _failed(message: pb.Command, error: KafkaError) -> pb.CommandAnswer:
    return pb.CommandAnswer(id=message.id, failure=refusal_message(error))


def _not_carried_out(message: pb.Command, reason: str) -> pb.CommandAnswer:
    return pb.CommandAnswer(id=message.id, not_carried_out=reason)
