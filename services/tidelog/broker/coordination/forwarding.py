"""Passes clients' requests about one group or transaction on to its coordinator.

The broker decodes neither the request nor the answer. It only reads the group id or the transactional id,
from which the shard follows.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from tidelog.broker.coordination.attachment import Asker, Call, PassedOnRequest
from tidelog.broker.coordination.coordination import Coordination
from tidelog.broker.coordination.refusals import refuse
from tidelog.broker.request import PARKED, Answer, EncodedBody, RequestContext
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import api_spec
from tidelog.wire.malformed import MalformedMessageError
from tidelog.wire.primitives import read_uvarint
from tidelog.wire.schema import Buffer

_INT16: Final = struct.Struct(">h")


class NamedRequest(NamedTuple):
    """A request of which only the group id or the transactional id is decoded."""

    name: str
    body: bytes


class WholeRequest(NamedTuple):
    """A decoded request and its body."""

    message: Any  # a class of tidelog.wire.messages, by the request's API
    body: bytes


def named_decoder(api_key: int, version: int) -> codec.Decoder:
    """Returns a decoder that reads the first string of the body: the group id or transactional id."""
    is_flexible = version >= api_spec(api_key).flexible_from

    def decode(buffer: Buffer, position: int) -> tuple[NamedRequest, int]:
        body = bytes(buffer[position:])
        try:
            start, end = _string(body, 0, is_flexible)
            name = body[start:end].decode()
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise MalformedMessageError(f"{api_spec(api_key).name} v{version}: {error}") from error
        return NamedRequest(name, body), len(buffer)

    return decode


def _string(body: bytes, position: int, is_flexible: bool) -> tuple[int, int]:
    if is_flexible:
        length, start = read_uvarint(body, position)
        length -= 1
    else:
        (length,), start = _INT16.unpack_from(body, position), position + 2
    if length < 0 or start + length > len(body):
        raise MalformedMessageError("the name is null or longer than the request")
    return start, start + length


def whole_decoder(api_key: int, version: int) -> codec.Decoder:
    """Returns a decoder that decodes the whole request and keeps its body."""
    decode_message = codec.request_decoder(api_key, version)

    def decode(buffer: Buffer, position: int) -> tuple[WholeRequest, int]:
        message, end = decode_message(buffer, position)
        return WholeRequest(message, bytes(buffer[position:])), end

    return decode


def asker(context: RequestContext) -> Asker:
    """Returns the client of a request, as its coordinator learns it."""
    return Asker(client_id=context.client_id, host=context.host, traceparent=context.traceparent)


def forward_named(
    coordination: Coordination, kind: ShardKind, request: NamedRequest, context: RequestContext
) -> Answer:
    """Passes the request on. Returns a handler's result: PARKED, or the refusal."""
    return forward_body(coordination, kind, request.name, request.body, context)


def forward_body(
    coordination: Coordination, kind: ShardKind, name: str, body: bytes, context: RequestContext
) -> Answer:
    """Passes on a request whose group id or transactional id the caller knows. Returns a handler's result."""
    call = client_call(body, context)
    refused = coordination.pass_on(coordination.shard_of(kind, name), call)
    if refused:
        return refuse(int(context.route.api_key), context.api_version, body, refused)
    context.park(on_abandoned=call.abandon)
    return PARKED


def client_call(body: bytes, context: RequestContext) -> Call:
    """Returns a call whose answer goes to the client."""
    route = context.route
    api_key, version = int(route.api_key), context.api_version

    def on_answered(answer: bytes | None, error: ErrorCode) -> None:
        if answer is not None:
            context.reply(EncodedBody((answer,)))
            return
        try:
            context.reply(refuse(api_key, version, body, error))
        except MalformedMessageError as malformed:
            context.connection.refuse(str(malformed))

    return Call(PassedOnRequest(api_key, version, body, asker(context)), on_answered)
