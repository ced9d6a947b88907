"""The gRPC service of the controller."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeAlias, TypeVar

import grpc.aio
import structlog

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.model.trace_context import TRACEPARENT, CallTrace, CallTracing, part_of
from tidelog.rpc.callers import ServiceRole, check_speaks_for
from tidelog.rpc.cluster_messages import partition_message, refusal, refusal_message
from tidelog.rpc.controller_api import ControllerApi, ForwardedRequest, ProducerIdBlock
from tidelog.rpc.generated import cluster_pb2
from tidelog.rpc.generated import controller_api_pb2 as pb
from tidelog.rpc.generated.controller_api_pb2_grpc import add_ControllerApiServicer_to_server
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import (
    MalformedMessageError,
    UnsupportedVersionError,
    request_decoder,
    response_encoder,
)

_Context: TypeAlias = "grpc.aio.ServicerContext[pb.HandleRequest, pb.HandleResponse]"
_Answer = TypeVar("_Answer")

_log = structlog.get_logger(__name__)


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


async def _outcome(asked: Awaitable[_Answer]) -> _Answer | cluster_pb2.Refusal:
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
