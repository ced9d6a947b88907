"""The controller's command streams, one to each registration of a broker. A stream is opened for the first
command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Final, TypeAlias

import grpc
import grpc.aio

from tidelog.kernel.slices import run_in_slices
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import (
    BrokerCommands,
    CommandResult,
    LeaderAndIsr,
    StopReplica,
    UpdateMetadata,
)
from tidelog.rpc.callers import ServiceRole
from tidelog.rpc.cluster_messages import refusal
from tidelog.rpc.command_messages import BrokerCommand, command_message, command_result
from tidelog.rpc.generated import broker_commands_pb2 as pb
from tidelog.rpc.grpc_transport import MAX_MESSAGE_BYTES, open_channel
from tidelog.rpc.peer_tls import PeerTls

_COMMANDS: Final = f"/{pb.DESCRIPTOR.services_by_name['BrokerCommands'].full_name}/Commands"
# Size of a command's id and addressee, which are not part of the measured bytes.
_ENVELOPE_BYTES: Final = 64

_Stream: TypeAlias = "grpc.aio.StreamStreamCall[bytes, pb.CommandAnswer]"
_Method: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, pb.CommandAnswer]"


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
        self._closing: set[asyncio.Task[None]] = set()

    def channel(self, broker: BrokerRegistration) -> BrokerCommands:
        """Raises ConnectionError if the broker has no gRPC address."""
        if not broker.rpc_address:
            raise ConnectionError(f"broker {broker.broker_id} has registered no gRPC address")
        known = self._lives.get(broker.broker_id)
        if known is not None and known.leads_to(broker):
            return known
        if known is not None:
            closing = asyncio.create_task(known.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
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
