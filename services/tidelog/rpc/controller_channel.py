"""The controller as brokers see it over gRPC, wherever it is.

What a broker asks is asked again for as long as it surely did nothing: nobody is in office, the one in office
can't be connected to, or it answers NOT_CONTROLLER. A call that was sent and whose answer didn't come may
have been carried out; it is repeated only where that changes nothing, else it fails with REQUEST_TIMED_OUT,
as Kafka says of a change of unknown outcome, and the client decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import grpc
import grpc.aio
import structlog

from tidelog.metadata.store import MetadataStore
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.model.trace_context import outgoing_metadata
from tidelog.rpc.cluster_messages import refusal, topic_partition
from tidelog.rpc.controller_api import ForwardedRequest, ProducerIdBlock
from tidelog.rpc.controller_location import ControllerLocation, Officeholder
from tidelog.rpc.generated import controller_api_pb2 as pb
from tidelog.rpc.generated.controller_api_pb2_grpc import ControllerApiStub
from tidelog.rpc.grpc_transport import MAX_MESSAGE_BYTES, open_channel
from tidelog.rpc.peer_tls import Identity, PeerTls
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import UnsupportedVersionError, request_encoder, response_decoder

if TYPE_CHECKING:
    from tidelog.rpc.generated.controller_api_pb2_grpc import ControllerApiAsyncStub

RETRY_MS: Final = 100
# The bounds of a call's time: the request's own time-out between them. The controller lets no answer wait
# for brokers longer than that either.
MIN_TIMEOUT_MS: Final = 1_000
MAX_TIMEOUT_MS: Final = 30_000
# The controller answers when the request's time is over, too; its answer is given so long to arrive.
ANSWER_SLACK_MS: Final = 2_000
# How long a broker that stops looks for a controller to hand over to. One that ends in order is followed by
# the next within that time; after one that died nobody is in office until its lease ends.
SHUTDOWN_SEARCH_MS: Final = 1_500
# Once another is in office, how long the answer of the one before is still waited for.
LAST_ANSWER_MS: Final = 500
_ENVELOPE_BYTES: Final = 64 * 1024

# Requests that change nothing, so that they may be made twice. Any request that is to be validated only is
# another.
_READ_ONLY: Final = frozenset({ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_CLIENT_QUOTAS})

_Answer = TypeVar("_Answer", pb.HandleResponse, pb.AllocateProducerIdsResponse, pb.ControlledShutdownResponse)
_Ask: TypeAlias = "Callable[[ControllerApiAsyncStub, float], Coroutine[Any, Any, _Answer]]"

_log = structlog.get_logger(__name__)


class _Connection(NamedTuple):
    holder: Officeholder
    channel: grpc.aio.Channel
    stub: ControllerApiAsyncStub
    identity: Identity | None


class _UnknownOutcomeError(Exception):
    """The call was sent; whether it was carried out is not known."""


class RemoteController:
    """`ControllerApi` of whoever is in office.

        controller = RemoteController(store)
        controller.start()
        ...
        await controller.stop()

    Calls wait for a controller, within their time. Made for one event loop; `start` needs it running.
    """

    def __init__(self, store: MetadataStore, tls: PeerTls | None = None) -> None:
        self._tls = tls
        self._location = ControllerLocation(store)
        self._connection: _Connection | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def start(self) -> None:
        self._location.start()

    async def stop(self) -> None:
        """Calls from now on fail with NOT_CONTROLLER, those under way have a moment left."""
        self._is_stopped = True
        await self._location.stop()
        self._disconnect()
        await asyncio.gather(*self._closing)

    async def handle(self, api_key: int, request: ForwardedRequest) -> Any:
        """Raises KafkaError, also for a request that the API's version can't express."""
        message, version = request.message, request.api_version
        forwarded = pb.HandleRequest(
            api_key=api_key,
            api_version=version,
            body=_encoded(api_key, request),
            principal=request.principal,
            client_id=request.client_id,
            host=request.host,
        )
        metadata = outgoing_metadata()
        answer = await self._call(
            lambda stub, timeout_s: _one(stub.Handle(forwarded, timeout=timeout_s, metadata=metadata)),
            timeout_ms=_timeout_ms(message),
            is_repeatable=api_key in _READ_ONLY or getattr(message, "validate_only", False),
        )
        response, _ = response_decoder(api_key, version)(answer.body, 0)
        return response

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        asked = pb.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        answer = await self._call(
            lambda stub, timeout_s: _one(stub.AllocateProducerIds(asked, timeout=timeout_s)),
            timeout_ms=MAX_TIMEOUT_MS + ANSWER_SLACK_MS,
            is_repeatable=True,  # at worst a block is wasted
        )
        return ProducerIdBlock(answer.block.first, answer.block.count)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> tuple[TopicPartition, ...]:
        asked = pb.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        answer = await self._call(
            lambda stub, timeout_s: _one(stub.ControlledShutdown(asked, timeout=timeout_s)),
            timeout_ms=MAX_TIMEOUT_MS + ANSWER_SLACK_MS,
            is_repeatable=True,
            search_ms=SHUTDOWN_SEARCH_MS,
        )
        return tuple(topic_partition(partition) for partition in answer.remaining.partitions)

    async def _call(
        self, ask: _Ask[_Answer], *, timeout_ms: int, is_repeatable: bool, search_ms: int | None = None
    ) -> _Answer:
        """`search_ms` bounds how long a controller that can be connected to is looked for each time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        failure = KafkaError(ErrorCode.NOT_CONTROLLER, "There is no controller at the moment.")
        while True:
            search_s = deadline if search_ms is None else min(deadline, loop.time() + search_ms / 1000)
            connection = await self._connected(search_s, failure)
            try:
                answer = await self._ask(ask, connection, deadline)
            except _UnknownOutcomeError as error:
                failure = KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"The controller gave no answer ({error}); whether the change was made is unknown.",
                )
                if not is_repeatable:
                    raise failure from error
            else:
                if answer.WhichOneof("outcome") != "refusal":
                    return answer
                failure = refusal(answer.refusal)
                if failure.code is not ErrorCode.NOT_CONTROLLER:
                    raise failure
            await self._pause(connection.holder, deadline)

    async def _connected(self, deadline: float, failure: KafkaError) -> _Connection:
        """A connection to the one in office. Raises `failure` if there is none until the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                while not self._is_stopped:
                    holder = self._location.holder
                    if holder is None or not holder.rpc_address:
                        await self._location.until_other_than(holder)
                        continue
                    connection = self._connection_to(holder)
                    await _first_of(_ready(connection.channel), self._location.until_other_than(holder))
                    if self._location.holder == holder:
                        return connection
        except TimeoutError:
            raise failure from None
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "This process is stopping.")

    def _connection_to(self, holder: Officeholder) -> _Connection:
        known = self._connection
        identity = None if self._tls is None else self._tls.identity()
        if known is not None and known.holder == holder:
            # A connection that stands outlives the certificates that it was made with, a new one does not.
            is_connected = known.channel.get_state() is grpc.ChannelConnectivity.READY
            if is_connected or known.identity is identity:
                return known
        self._disconnect()
        _log.info(
            "calls go to the controller", controller_id=holder.controller_id, address=holder.rpc_address
        )
        channel = open_channel(holder.rpc_address, self._tls)
        stub: ControllerApiAsyncStub = ControllerApiStub(channel)
        made = self._connection = _Connection(holder, channel, stub, identity)
        return made

    def _disconnect(self) -> None:
        """Calls under way over the connection have a moment for their answers."""
        known, self._connection = self._connection, None
        if known is not None:
            closing = asyncio.create_task(known.channel.close(LAST_ANSWER_MS / 1000))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _ask(self, ask: _Ask[_Answer], connection: _Connection, deadline: float) -> _Answer:
        remaining_s = max(0.0, deadline - asyncio.get_running_loop().time())
        asked = asyncio.create_task(ask(connection.stub, remaining_s))
        try:
            await _first_of(asyncio.wait([asked]), self._location.until_other_than(connection.holder))
            if not asked.done():
                # A controller that is frozen, or cut off, would keep the client waiting to its deadline.
                await asyncio.wait([asked], timeout=LAST_ANSWER_MS / 1000)
            if not asked.done():
                raise _UnknownOutcomeError("another controller is in office")
            return asked.result()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION, "The controller is of an older version."
                ) from error
            raise _UnknownOutcomeError(f"{error.code().name}: {error.details()}") from error
        finally:
            asked.cancel()

    async def _pause(self, holder: Officeholder, deadline: float) -> None:
        """Until there is another controller, or it is time to try again."""
        try:
            async with asyncio.timeout_at(min(deadline, asyncio.get_running_loop().time() + RETRY_MS / 1000)):
                await self._location.until_other_than(holder)
        except TimeoutError:
            return


def _encoded(api_key: int, request: ForwardedRequest) -> bytes:
    try:
        body = b"".join(request_encoder(api_key, request.api_version)(request.message))
    except UnsupportedVersionError as error:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
    if len(body) > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a request of {len(body)} bytes is too large")
    return body


def _timeout_ms(message: object) -> int:
    asked: int = getattr(message, "timeout_ms", MAX_TIMEOUT_MS)
    return max(MIN_TIMEOUT_MS, min(asked, MAX_TIMEOUT_MS)) + ANSWER_SLACK_MS


async def _ready(channel: grpc.aio.Channel) -> None:
    try:
        await channel.channel_ready()
    except grpc.aio.UsageError:
        return  # closed meanwhile, for there is another controller


async def _one(call: Any) -> Any:
    """The answer of a gRPC call, which is awaitable without being a coroutine."""
    return await call


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Returns when one of them does; the others are cancelled. Raises what that one raised."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
