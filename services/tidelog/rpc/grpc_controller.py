"""The calls of brokers to the active controller over gRPC: where it is, the caller, and the service.

A call is repeated as long as the controller certainly did nothing: there is no active controller, the
connection to it fails, or it answers NOT_CONTROLLER. If a call was sent but not answered, the controller may
have executed it. The call is then repeated only if the repetition changes nothing. Otherwise it fails with
REQUEST_TIMED_OUT, Kafka's error for a change with an unknown outcome, and the client decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import grpc
import grpc.aio
import structlog

from tidelog.kernel.slices import TaskSet
from tidelog.metadata.entries import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    ControllerEntry,
    ControllerEpochEntry,
    InvalidEntryError,
    decode_entry,
)
from tidelog.metadata.store import CompactedError, MetadataStore, StoreUnavailableError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.model.trace_context import TRACEPARENT, CallTrace, CallTracing, outgoing_metadata, part_of
from tidelog.rpc.cluster_messages import partition_message, refusal, refusal_message, topic_partition
from tidelog.rpc.controller_api import (
    PRODUCER_ID_BLOCK_SIZE,
    ControllerApi,
    ForwardedRequest,
    ProducerIdBlock,
)
from tidelog.rpc.generated import cluster_pb2
from tidelog.rpc.generated import controller_api_pb2 as pb
from tidelog.rpc.generated.controller_api_pb2_grpc import (
    ControllerApiStub,
    add_ControllerApiServicer_to_server,
)
from tidelog.rpc.grpc_transport import MAX_MESSAGE_BYTES, open_channel
from tidelog.rpc.peer_tls import Identity, PeerTls, ServiceRole, check_speaks_for
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import (
    MalformedMessageError,
    UnsupportedVersionError,
    request_decoder,
    request_encoder,
    response_decoder,
    response_encoder,
)
from tidelog.wire.schema import Message

if TYPE_CHECKING:
    from tidelog.rpc.generated.controller_api_pb2_grpc import ControllerApiAsyncStub

FOLLOW_RETRY_MS: Final = 500
RETRY_MS: Final = 100
# Bounds of the time of a call. Between them, the request's own timeout applies. The controller waits for
# brokers no longer than that.
MIN_TIMEOUT_MS: Final = 1_000
MAX_TIMEOUT_MS: Final = 30_000
# The controller also answers when the request has timed out. This is the additional time for its answer to
# arrive.
ANSWER_SLACK_MS: Final = 2_000
# Time for which a stopping broker looks for an active controller. After an orderly stop of a controller,
# another one is active within this time. After a crash of a controller, its lease must expire first.
SHUTDOWN_SEARCH_MS: Final = 1_500
# Time to wait for the answer of a controller after another one has become active.
LAST_ANSWER_MS: Final = 500
_ENVELOPE_BYTES: Final = 64 * 1024
# Requests that change nothing and may be repeated. Requests with `validate_only` may also be repeated.
_READ_ONLY: Final = frozenset({ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_CLIENT_QUOTAS})
_Answer = TypeVar("_Answer", pb.HandleResponse, pb.AllocateProducerIdsResponse, pb.ControlledShutdownResponse)
_T = TypeVar("_T")
_Ask: TypeAlias = "Callable[[ControllerApiAsyncStub, float], Coroutine[object, None, _Answer]]"
_Context: TypeAlias = "grpc.aio.ServicerContext[pb.HandleRequest, pb.HandleResponse]"
_Result = TypeVar("_Result")

_log = structlog.get_logger(__name__)


class ActiveController(NamedTuple):
    """An active controller. `term` is the create_revision of `/controller`."""

    controller_id: int
    rpc_address: str
    term: int


class ControllerLocation:
    """The active controller according to the store. While the store is unavailable, it is the last
    known one.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.active: ActiveController | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="controller-location")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def until_other_than(self, active: ActiveController | None) -> None:
        """Returns when another controller, or none, is active."""
        while self.active == active:
            await self._changed.wait()

    async def _follow(self) -> None:
        while True:
            try:
                await self._list_and_watch()
            except (CompactedError, StoreUnavailableError, InvalidEntryError) as error:
                _log.warning("can't follow the active controller; retrying", reason=str(error))
            await asyncio.sleep(FOLLOW_RETRY_MS / 1000)

    async def _list_and_watch(self) -> None:
        listing = await self._store.list_prefix(CONTROLLER_KEY)
        found = next((item for item in listing.items if item.key == CONTROLLER_KEY), None)
        self._set(None if found is None else _active_controller(found.value, found.create_revision))
        watch = self._store.watch(CONTROLLER_KEY, listing.revision + 1)
        try:
            async for batch in watch:
                for event in batch.events:
                    if event.key == CONTROLLER_KEY:
                        gone = event.value is None
                        self._set(
                            None if gone else _active_controller(event.value or b"", event.create_revision)
                        )
        finally:
            await watch.aclose()

    def _set(self, active: ActiveController | None) -> None:
        if active != self.active:
            self.active = active
            self._changed.set()
            self._changed = asyncio.Event()


async def elected_controller_epoch(store: MetadataStore) -> int:
    """Returns the epoch of the last election, or -1 if there was none.

    Raises StoreError and InvalidEntryError.
    """
    found = await store.get(CONTROLLER_EPOCH_KEY)
    if found is None:
        return -1
    entry = decode_entry(found.key, found.value)
    if not isinstance(entry, ControllerEpochEntry):
        raise InvalidEntryError(f"{CONTROLLER_EPOCH_KEY} holds {found.value!r}")
    return entry.controller_epoch


def _active_controller(value: bytes, create_revision: int) -> ActiveController:
    entry = decode_entry(CONTROLLER_KEY, value)
    if not isinstance(entry, ControllerEntry):
        raise InvalidEntryError(f"{CONTROLLER_KEY} holds {value!r}")
    return ActiveController(entry.controller_id, entry.rpc_address, create_revision)


class _Connection(NamedTuple):
    active: ActiveController
    channel: grpc.aio.Channel
    stub: ControllerApiAsyncStub
    identity: Identity | None


class _UnknownOutcomeError(Exception):
    """The call was sent, and it is unknown whether the controller executed it."""


class RemoteController:
    """A `ControllerApi` that calls the active controller, wherever it runs.

        controller = RemoteController(store)
        controller.start()
        ...
        await controller.stop()

    A call waits for an active controller until it times out. `start` needs a running event loop.
    """

    def __init__(self, store: MetadataStore, tls: PeerTls | None = None) -> None:
        self._tls = tls
        self._location = ControllerLocation(store)
        self._connection: _Connection | None = None
        self._closing: TaskSet[None] = TaskSet()
        self._is_stopped = False

    def start(self) -> None:
        self._location.start()

    async def stop(self) -> None:
        """Lets new calls fail with NOT_CONTROLLER. Calls in progress may finish within LAST_ANSWER_MS."""
        self._is_stopped = True
        await self._location.stop()
        self._disconnect()
        await asyncio.gather(*self._closing)

    async def handle(self, api_key: int, request: ForwardedRequest) -> Message:
        """Raises KafkaError, also if the version of the API can't express the request."""
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
        response: Message = response_decoder(api_key, version)(answer.body, 0)[0]
        return response

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        asked = pb.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        answer = await self._call(
            lambda stub, timeout_s: _one(stub.AllocateProducerIds(asked, timeout=timeout_s)),
            timeout_ms=MAX_TIMEOUT_MS + ANSWER_SLACK_MS,
            is_repeatable=True,  # at worst, a block is wasted
        )
        first, count = answer.block.first, answer.block.count
        if first < 0 or not 0 < count <= PRODUCER_ID_BLOCK_SIZE:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"The controller sent an invalid block of {count} producer ids from {first}.",
            )
        return ProducerIdBlock(first, count)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> tuple[TopicPartition, ...]:
        asked = pb.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        answer = await self._call(
            lambda stub, timeout_s: _one(stub.ControlledShutdown(asked, timeout=timeout_s)),
            timeout_ms=MAX_TIMEOUT_MS + ANSWER_SLACK_MS,
            is_repeatable=True,
            search_ms=SHUTDOWN_SEARCH_MS,
        )
        try:
            return tuple(topic_partition(partition) for partition in answer.remaining.partitions)
        except ValueError as error:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"The controller sent an invalid answer: {error}"
            ) from error

    async def _call(
        self, ask: _Ask[_Answer], *, timeout_ms: int, is_repeatable: bool, search_ms: int | None = None
    ) -> _Answer:
        """`search_ms` bounds each search for an active controller that accepts connections."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        failure = KafkaError(ErrorCode.NOT_CONTROLLER, "No controller is active at the moment.")
        while True:
            search_s = deadline if search_ms is None else min(deadline, loop.time() + search_ms / 1000)
            connection = await self._connected(search_s, failure)
            try:
                answer = await self._ask(ask, connection, deadline)
            except KafkaError as error:  # the call was refused before it was executed
                failure = error
                if failure.code is not ErrorCode.NOT_CONTROLLER:
                    raise
            except _UnknownOutcomeError as error:
                failure = KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"The controller did not answer ({error}); it is unknown whether it made the change.",
                )
                if not is_repeatable:
                    raise failure from error
            else:
                if answer.WhichOneof("outcome") != "refusal":
                    return answer
                failure = refusal(answer.refusal)
                if failure.code is not ErrorCode.NOT_CONTROLLER:
                    raise failure
            await self._pause(connection.active, deadline)

    async def _connected(self, deadline: float, failure: KafkaError) -> _Connection:
        """Returns a connection to the active controller. Raises `failure` at the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                while not self._is_stopped:
                    active = self._location.active
                    if active is None or not active.rpc_address:
                        await self._location.until_other_than(active)
                        continue
                    connection = self._connection_to(active)
                    await _first_of(_ready(connection.channel), self._location.until_other_than(active))
                    if self._location.active == active:
                        return connection
        except TimeoutError:
            raise failure from None
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "This process is stopping.")

    def _connection_to(self, active: ActiveController) -> _Connection:
        known = self._connection
        identity = None if self._tls is None else self._tls.identity()
        if known is not None and known.active == active:
            # An open connection remains usable after its certificates have been renewed, but a new one would
            # not.
            is_connected = known.channel.get_state() is grpc.ChannelConnectivity.READY
            if is_connected or known.identity is identity:
                return known
        self._disconnect()
        _log.info(
            "connecting to the active controller",
            controller_id=active.controller_id,
            address=active.rpc_address,
        )
        channel = open_channel(active.rpc_address, self._tls, ServiceRole.CONTROLLER)
        stub: ControllerApiAsyncStub = ControllerApiStub(channel)
        made = self._connection = _Connection(active, channel, stub, identity)
        return made

    def _disconnect(self) -> None:
        """Closes the connection. Calls in progress may finish within LAST_ANSWER_MS."""
        known, self._connection = self._connection, None
        if known is not None:
            self._closing.start(known.channel.close(LAST_ANSWER_MS / 1000))

    async def _ask(self, ask: _Ask[_Answer], connection: _Connection, deadline: float) -> _Answer:
        remaining_s = max(0.0, deadline - asyncio.get_running_loop().time())
        asked = asyncio.create_task(ask(connection.stub, remaining_s))
        try:
            await _first_of(asyncio.wait([asked]), self._location.until_other_than(connection.active))
            if not asked.done():
                # A controller that is frozen or cut off would keep the client waiting until its deadline.
                await asyncio.wait([asked], timeout=LAST_ANSWER_MS / 1000)
            if not asked.done():
                raise _UnknownOutcomeError("another controller became active")
            return asked.result()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    "The controller has an older version and does not know this call.",
                ) from error
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                raise self._denied(connection, error.details() or "") from error
            raise _UnknownOutcomeError(f"{error.code().name}: {error.details()}") from error
        finally:
            asked.cancel()

    def _denied(self, connection: _Connection, details: str) -> KafkaError:
        """Returns the error of a call that the controller refused because of this process's certificate.

        The call may be repeated if the certificate was renewed after the connection had been made.
        """
        if self._tls is not None and self._tls.identity() is not connection.identity:
            if self._connection is connection:
                self._disconnect()
            return KafkaError(ErrorCode.NOT_CONTROLLER, details)
        return KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, details)

    async def _pause(self, active: ActiveController, deadline: float) -> None:
        """Returns when another controller is active, or after RETRY_MS."""
        try:
            async with asyncio.timeout_at(min(deadline, asyncio.get_running_loop().time() + RETRY_MS / 1000)):
                await self._location.until_other_than(active)
        except TimeoutError:
            return


def _encoded(api_key: int, request: ForwardedRequest) -> bytes:
    try:
        body = b"".join(request_encoder(api_key, request.api_version)(request.message))
    except UnsupportedVersionError as error:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
    if len(body) > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The request has {len(body)} bytes, too many to forward it to the controller.",
        )
    return body


def _timeout_ms(message: object) -> int:
    asked: int = getattr(message, "timeout_ms", MAX_TIMEOUT_MS)
    return max(MIN_TIMEOUT_MS, min(asked, MAX_TIMEOUT_MS)) + ANSWER_SLACK_MS


async def _ready(channel: grpc.aio.Channel) -> None:
    try:
        await channel.channel_ready()
    except grpc.aio.UsageError:
        return  # another controller became active and the channel was closed


async def _one(call: Awaitable[_T]) -> _T:
    """Returns the answer of a gRPC call, which is awaitable but not a coroutine."""
    return await call


async def _first_of(*waits: Coroutine[object, None, object]) -> None:
    """Returns when one of the coroutines returns, and cancels the others. Raises the exception of the first
    one.
    """
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


class ControllerApiService:
    """gRPC's `ControllerApi`, which calls the controller of this process.

    Refusals are part of the answers, so a gRPC status other than OK always means that the transport failed.
    """

    def __init__(self, controller: ControllerApi, tracing: CallTracing | None = None) -> None:
        self._controller = controller
        self._tracing = tracing

    def add_to(self, server: grpc.aio.Server) -> None:
        add_ControllerApiServicer_to_server(self, server)  # type: ignore[arg-type]  # no base class needed

    async def stop(self) -> None:
        """Does nothing: a call that is aborted has an unknown outcome for its caller."""

    async def Handle(  # noqa: N802  the name in the .proto
        self, message: pb.HandleRequest, context: _Context
    ) -> pb.HandleResponse:
        trace = None if self._tracing is None else _trace_of(self._tracing, message.api_key, context)
        if trace is None:
            body = await _outcome(self._handle(message))
        else:
            with part_of(trace):
                body = await _outcome(self._handle(message))
            if isinstance(body, cluster_pb2.Refusal):
                trace.fail(refusal(body).code.name)
            trace.end()
        if isinstance(body, cluster_pb2.Refusal):
            return pb.HandleResponse(refusal=body)
        return pb.HandleResponse(body=body)

    async def AllocateProducerIds(  # noqa: N802
        self, message: pb.AllocateProducerIdsRequest, _context: object
    ) -> pb.AllocateProducerIdsResponse:
        block = await _outcome(self._allocate(message))
        if isinstance(block, cluster_pb2.Refusal):
            return pb.AllocateProducerIdsResponse(refusal=block)
        return pb.AllocateProducerIdsResponse(block=pb.ProducerIdBlock(first=block.first, count=block.count))

    async def ControlledShutdown(  # noqa: N802
        self, message: pb.ControlledShutdownRequest, _context: object
    ) -> pb.ControlledShutdownResponse:
        partitions = await _outcome(self._shut_down(message))
        if isinstance(partitions, cluster_pb2.Refusal):
            return pb.ControlledShutdownResponse(refusal=partitions)
        remaining = pb.RemainingPartitions(partitions=[partition_message(p) for p in partitions])
        return pb.ControlledShutdownResponse(remaining=remaining)

    async def _allocate(self, message: pb.AllocateProducerIdsRequest) -> ProducerIdBlock:
        check_speaks_for(ServiceRole.BROKER, message.broker_id)
        return await self._controller.allocate_producer_ids(message.broker_id, message.broker_epoch)

    async def _shut_down(self, message: pb.ControlledShutdownRequest) -> tuple[TopicPartition, ...]:
        check_speaks_for(ServiceRole.BROKER, message.broker_id)
        return await self._controller.controlled_shutdown(message.broker_id, message.broker_epoch)

    async def _handle(self, message: pb.HandleRequest) -> bytes:
        api_key, version = message.api_key, message.api_version
        request, _ = request_decoder(api_key, version)(message.body, 0)
        forwarded = ForwardedRequest(
            version,
            request,
            message.principal,
            message.client_id if message.HasField("client_id") else None,
            message.host,
        )
        response = await self._controller.handle(api_key, forwarded)
        return b"".join(response_encoder(api_key, version)(response))


def _trace_of(tracing: CallTracing, api_key: int, context: _Context) -> CallTrace | None:
    """Continues the broker's trace, if the broker traces this request."""
    for key, value in context.invocation_metadata() or ():
        if key == TRACEPARENT:
            attributes = {"rpc.system": "grpc", "rpc.service": "tidelog.rpc.v1.ControllerApi"}
            name = f"controller {ApiKey(api_key).name_in_kafka}"
            return tracing.go_on(str(value), name, attributes | {"rpc.method": "Handle"})
    return None


async def _outcome(asked: Awaitable[_Result]) -> _Result | cluster_pb2.Refusal:
    try:
        return await asked
    except KafkaError as error:
        return refusal_message(error)
    except UnsupportedVersionError as error:
        return refusal_message(KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error)))
    except MalformedMessageError as error:
        return refusal_message(KafkaError(ErrorCode.INVALID_REQUEST, str(error)))
    except Exception as error:  # noqa: BLE001 - the caller is to know that it isn't the transport
        _log.exception("a call failed")
        return refusal_message(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
