"""The controller's command streams over gRPC: the channels of the controller, one for each registration of a
broker, and the service of the broker, which takes the commands in order, for this broker epoch.

A stream is opened for the first command.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Final, TypeAlias

import grpc
import grpc.aio
import structlog

from tidelog.kernel.slices import TaskSet, run_in_slices
from tidelog.metadata.entries import InvalidEntryError
from tidelog.metadata.store import MetadataStore, StoreError
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import (
    BrokerCommands,
    CommandResult,
    LeaderAndIsr,
    StopReplica,
    UpdateMetadata,
)
from tidelog.rpc.cluster_messages import refusal, refusal_message
from tidelog.rpc.command_messages import (
    BrokerCommand,
    command,
    command_message,
    command_result,
    result_message,
)
from tidelog.rpc.generated import broker_commands_pb2 as pb
from tidelog.rpc.generated.broker_commands_pb2_grpc import add_BrokerCommandsServicer_to_server
from tidelog.rpc.grpc_controller import elected_controller_epoch
from tidelog.rpc.grpc_transport import MAX_MESSAGE_BYTES, open_channel
from tidelog.rpc.peer_tls import PeerTls, ServiceRole, check_speaks_for

_COMMANDS: Final = f"/{pb.DESCRIPTOR.services_by_name['BrokerCommands'].full_name}/Commands"
# Size of a command's id and addressee, which are not part of the measured bytes.
_ENVELOPE_BYTES: Final = 64

_Stream: TypeAlias = "grpc.aio.StreamStreamCall[bytes, pb.CommandAnswer]"
_Method: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, pb.CommandAnswer]"
# Time for which a command waits if its broker epoch is newer than the known one. The controller may learn of
# a registration before the broker has received the store's answer.
EPOCH_WAIT_MS: Final = 5_000
# Time for which a stop waits for a command in progress.
STOP_WAIT_MS: Final = 5_000

_log = structlog.get_logger(__name__)


class GrpcBrokerChannels:
    """`BrokerChannels` over gRPC, to the brokers' `rpc_address`. A process has one and closes it at its end.

    It numbers the commands over all brokers and streams, so that a broker can detect a late command (see
    broker_commands.proto).
    """

    def __init__(self, tls: PeerTls | None = None) -> None:
        self._tls = tls
        self._lives: dict[int, _LifeChannel] = {}
        self._numbers = count(1)
        self._encoded = _LastEncoded()
        self._closing: TaskSet[None] = TaskSet()

    def channel(self, broker: BrokerRegistration) -> BrokerCommands:
        """Raises ConnectionError if the broker has no gRPC address."""
        if not broker.rpc_address:
            raise ConnectionError(f"broker {broker.broker_id} has registered no gRPC address")
        known = self._lives.get(broker.broker_id)
        if known is not None and known.leads_to(broker):
            return known
        if known is not None:
            self._closing.start(known.close())
        made = self._lives[broker.broker_id] = _LifeChannel(broker, self._numbers, self._encoded, self._tls)
        return made

    async def close(self) -> None:
        """Closes all channels. Commands in progress fail with ConnectionError."""
        lives = list(self._lives.values())
        self._lives.clear()
        await asyncio.gather(*self._closing, *(life.close() for life in lives))


class _LastEncoded:
    """The bytes of the last UpdateMetadata, because all brokers get the same one."""

    def __init__(self) -> None:
        self._command: BrokerCommand | None = None
        self._bytes = b""
        self._one_at_a_time = asyncio.Lock()

    async def encode(self, order: BrokerCommand) -> bytes:
        """Raises KafkaError(MESSAGE_TOO_LARGE)."""
        async with self._one_at_a_time:  # so that the first of the brokers encodes for all
            if order is self._command:
                return self._bytes
            return await self._encode(order)

    async def _encode(self, order: BrokerCommand) -> bytes:
        encoded = (await run_in_slices(command_message(order))).SerializeToString()
        if len(encoded) > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{type(order).__name__} has {len(encoded)} bytes, too many for one message",
            )
        if isinstance(order, UpdateMetadata):
            self._command, self._bytes = order, encoded
        return encoded


class _LifeChannel:
    """`BrokerCommands` for one registration of a broker.

    It sends one command at a time. A command waits for its answer as long as the connection exists. After a
    failure the next command opens a new stream.
    """

    def __init__(
        self,
        broker: BrokerRegistration,
        numbers: Iterator[int],
        encoded: _LastEncoded,
        tls: PeerTls | None,
    ) -> None:
        self._broker = broker
        self._tls = tls
        self._numbers = numbers
        self._encoded = encoded
        self._one_at_a_time = asyncio.Lock()
        self._connection: _Connection | None = None
        self._is_closed = False

    def leads_to(self, broker: BrokerRegistration) -> bool:
        """Returns true if the channel leads to this broker epoch at this address."""
        known = self._broker
        return known.broker_epoch == broker.broker_epoch and known.rpc_address == broker.rpc_address

    async def leader_and_isr(self, command: LeaderAndIsr) -> CommandResult:
        return await self._send(command)

    async def update_metadata(self, command: UpdateMetadata) -> CommandResult:
        return await self._send(command)

    async def stop_replica(self, command: StopReplica) -> CommandResult:
        return await self._send(command)

    async def close(self) -> None:
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _send(self, order: BrokerCommand) -> CommandResult:
        async with self._one_at_a_time:
            body = await self._encoded.encode(order)
            if self._is_closed:
                raise ConnectionError(f"the channel to broker {self._broker.broker_id} is closed")
            if self._connection is None or self._connection.is_broken:
                self._connection = _Connection(self._broker.rpc_address, self._tls)
            number = next(self._numbers)
            envelope = pb.Command(
                id=number, broker_id=self._broker.broker_id, broker_epoch=self._broker.broker_epoch
            )
            # Protobuf merges messages that are concatenated, so the body is not encoded again.
            answer = await self._connection.ask(number, envelope.SerializeToString() + body)
        return self._result(answer)

    def _result(self, answer: pb.CommandAnswer) -> CommandResult:
        match answer.WhichOneof("outcome"):
            case "result":
                try:
                    return command_result(answer.result)
                except ValueError as error:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                        f"broker {self._broker.broker_id} sent an invalid result: {error}",
                    ) from error
            case "failure":
                raise refusal(answer.failure)
            case "not_carried_out":
                raise ConnectionError(f"broker {self._broker.broker_id}: {answer.not_carried_out}")
            case _:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"broker {self._broker.broker_id} sent an answer of an unknown kind",
                )


class _Connection:
    """A channel with one stream. After a failure it is closed and can't be used again."""

    def __init__(self, address: str, tls: PeerTls | None) -> None:
        self._address = address
        self._channel = open_channel(address, tls, ServiceRole.BROKER)
        method: _Method = self._channel.stream_stream(
            _COMMANDS,
            request_serializer=None,  # the bytes are already serialized
            response_deserializer=pb.CommandAnswer.FromString,
        )
        self._stream: _Stream = method()
        self._expected = 0
        self._answered: asyncio.Future[pb.CommandAnswer] | None = None
        self._reader = asyncio.create_task(self._read(), name=f"command-answers-from-{address}")
        self.is_broken = False

    async def ask(self, number: int, encoded: bytes) -> pb.CommandAnswer:
        """Sends a command and returns its answer. Raises ConnectionError if the stream fails first."""
        self._expected = number
        answered: asyncio.Future[pb.CommandAnswer] = asyncio.get_running_loop().create_future()
        self._answered = answered
        writing = asyncio.create_task(self._stream.write(encoded))
        try:
            # A write to a stream that is cancelled before it is connected never returns (grpc.aio 1.85).
            await asyncio.wait((writing, self._reader), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                raise ConnectionError(f"{self._address}: the stream was closed before it was connected")
            await writing
            return await answered
        except (grpc.RpcError, asyncio.InvalidStateError) as error:  # the write failed
            self._break_off()
            raise ConnectionError(f"{self._address}: {_reason(error)}") from error
        except BaseException:
            # The caller was cancelled. A late answer must not be taken for the answer to the next command.
            self._break_off()
            raise
        finally:
            self._answered = None
            answered.cancel()
            writing.cancel()

    async def _read(self) -> None:
        """Reads answers until the stream ends, and then closes the channel."""
        reason = "the broker ended the stream"
        try:
            async for answer in self._stream:
                if self._answered is None or answer.id != self._expected:
                    reason = f"the answer is to command {answer.id} instead of {self._expected}"
                    break
                if not self._answered.done():
                    self._answered.set_result(answer)
        except grpc.RpcError as error:
            reason = _reason(error)
        finally:  # also after a cancellation, which is the effect of _break_off
            self._break_off()
            if self._answered is not None and not self._answered.done():
                self._answered.set_exception(ConnectionError(f"{self._address}: {reason}"))
            await self._channel.close()

    def _break_off(self) -> None:
        """Cancels the stream, which ends the reader."""
        self.is_broken = True
        self._stream.cancel()

    async def close(self) -> None:
        """Closes the channel. A command in progress fails with ConnectionError."""
        self._break_off()
        await asyncio.wait([self._reader])


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name} {error.details()}"
    return str(error) or type(error).__name__


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
        self._in_work: TaskSet[pb.CommandAnswer] = TaskSet()

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
            task = self._in_work.start(self.answer(message))
            yield await asyncio.shield(task)

    async def answer(self, message: pb.Command) -> pb.CommandAnswer:
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
