"""The controller's side of the command streams: one to each life of a broker, opened when there is something
to send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Final, TypeAlias

import grpc
import grpc.aio
import structlog

from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import (
    BrokerCommands,
    CommandResult,
    LeaderAndIsr,
    StopReplica,
    UpdateMetadata,
)
from tidelog.rpc.cluster_messages import refusal
from tidelog.rpc.command_messages import BrokerCommand, command_message, command_result
from tidelog.rpc.generated import broker_commands_pb2 as pb
from tidelog.rpc.grpc_transport import MAX_MESSAGE_BYTES, open_channel
from tidelog.rpc.peer_tls import PeerTls

_COMMANDS: Final = f"/{pb.DESCRIPTOR.services_by_name['BrokerCommands'].full_name}/Commands"
# Id and addressee of a command, which come on top of what is measured.
_ENVELOPE_BYTES: Final = 64

_Stream: TypeAlias = "grpc.aio.StreamStreamCall[bytes, pb.CommandAnswer]"
_Method: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, pb.CommandAnswer]"

_log = structlog.get_logger(__name__)


class GrpcBrokerChannels:
    """`BrokerChannels` over gRPC, by the brokers' `rpc_address`. Make one for a process, close it at its end.

    Commands are numbered here, over all brokers and streams, so that a broker can tell one that comes late
    (see broker_commands.proto).
    """

    def __init__(self, tls: PeerTls | None = None) -> None:
        self._tls = tls
        self._lives: dict[int, _LifeChannel] = {}
        self._numbers = count(1)
        self._encoded = _LastEncoded()
        self._closing: set[asyncio.Task[None]] = set()

    def channel(self, broker: BrokerRegistration) -> BrokerCommands:
        """Raises ConnectionError for a broker without an address."""
        if not broker.rpc_address:
            raise ConnectionError(f"broker {broker.broker_id} names no address for commands")
        known = self._lives.get(broker.broker_id)
        if known is not None and known.is_to(broker):
            return known
        if known is not None:
            closing = asyncio.create_task(known.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        made = self._lives[broker.broker_id] = _LifeChannel(broker, self._numbers, self._encoded, self._tls)
        return made

    async def close(self) -> None:
        """Commands under way fail with ConnectionError."""
        lives = list(self._lives.values())
        self._lives.clear()
        await asyncio.gather(*self._closing, *(life.close() for life in lives))


class _LastEncoded:
    """An UpdateMetadata goes to all brokers alike: the bytes of the last command are kept for the next."""

    def __init__(self) -> None:
        self._command: BrokerCommand | None = None
        self._bytes = b""

    def encode(self, order: BrokerCommand) -> bytes:
        """Raises KafkaError(MESSAGE_TOO_LARGE)."""
        if order is self._command:
            return self._bytes
        encoded = command_message(order).SerializeToString()
        if len(encoded) > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE, f"{type(order).__name__} of {len(encoded)} bytes can't be sent"
            )
        if isinstance(order, UpdateMetadata):
            self._command, self._bytes = order, encoded
        return encoded


class _LifeChannel:
    """`BrokerCommands` of one life of a broker. One command at a time; each waits for its answer as long as
    the connection lives. A stream that broke is opened anew by the next command.
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

    def is_to(self, broker: BrokerRegistration) -> bool:
        """Of this life, at this address."""
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
            body = self._encoded.encode(order)
            if self._is_closed:
                raise ConnectionError(f"the channel to broker {self._broker.broker_id} is closed")
            if self._connection is None or self._connection.is_broken:
                self._connection = _Connection(self._broker.rpc_address, self._tls)
            number = next(self._numbers)
            envelope = pb.Command(
                id=number, broker_id=self._broker.broker_id, broker_epoch=self._broker.broker_epoch
            )
            # Protobuf reads messages one after the other as one: the body need not be encoded again.
            answer = await self._connection.ask(number, envelope.SerializeToString() + body)
        return self._result(answer)

    def _result(self, answer: pb.CommandAnswer) -> CommandResult:
        match answer.WhichOneof("outcome"):
            case "result":
                return command_result(answer.result)
            case "failure":
                raise refusal(answer.failure)
            case "not_carried_out":
                raise ConnectionError(f"broker {self._broker.broker_id}: {answer.not_carried_out}")
            case _:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION, f"broker {self._broker.broker_id} gave an unknown answer"
                )


class _Connection:
    """One channel with one stream on it; after any failure it is closed and of no more use."""

    def __init__(self, address: str, tls: PeerTls | None) -> None:
        self._address = address
        self._channel = open_channel(address, tls)
        method: _Method = self._channel.stream_stream(
            _COMMANDS,
            request_serializer=None,  # the bytes as they are
            response_deserializer=pb.CommandAnswer.FromString,
        )
        self._stream: _Stream = method()
        self._expected = 0
        self._answered: asyncio.Future[pb.CommandAnswer] | None = None
        self._reader = asyncio.create_task(self._read(), name=f"command-answers-from-{address}")
        self.is_broken = False

    async def ask(self, number: int, encoded: bytes) -> pb.CommandAnswer:
        """Raises ConnectionError if the stream breaks before the answer."""
        self._expected = number
        answered: asyncio.Future[pb.CommandAnswer] = asyncio.get_running_loop().create_future()
        self._answered = answered
        writing = asyncio.create_task(self._stream.write(encoded))
        try:
            # A write to a stream that is cancelled before it is connected never returns (grpc.aio 1.85).
            await asyncio.wait((writing, self._reader), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                raise ConnectionError(f"{self._address}: closed before it was connected")
            await writing
            return await answered
        except (grpc.RpcError, asyncio.InvalidStateError) as error:  # writing failed
            self._break_off()
            raise ConnectionError(f"{self._address}: {_reason(error)}") from error
        except BaseException:
            # Given up by the caller: an answer that still comes must not be taken for the next command's.
            self._break_off()
            raise
        finally:
            self._answered = None
            answered.cancel()
            writing.cancel()

    async def _read(self) -> None:
        """Ends with the stream, and closes the channel then: nothing is held open to a broker that went."""
        reason = "the broker ended the stream"
        try:
            async for answer in self._stream:
                if self._answered is None or answer.id != self._expected:
                    reason = f"an answer to {answer.id}, expected was {self._expected}"
                    break
                if not self._answered.done():
                    self._answered.set_result(answer)
        except grpc.RpcError as error:
            reason = _reason(error)
        finally:  # also when it is cancelled, which breaking off the stream does
            self._break_off()
            if self._answered is not None and not self._answered.done():
                self._answered.set_exception(ConnectionError(f"{self._address}: {reason}"))
            await self._channel.close()

    def _break_off(self) -> None:
        """The reader then ends."""
        self.is_broken = True
        self._stream.cancel()

    async def close(self) -> None:
        """A command under way fails with ConnectionError."""
        self._break_off()
        await asyncio.wait([self._reader])


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name} {error.details()}"
    return str(error) or type(error).__name__
