"""Clients' requests of one group or transaction: passed on as they came, answered as the coordinator says.

Neither the request nor its answer is decoded; of the request, only the name is read that its shard follows
from.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.broker.coordination.calls import Asker, Call, PassedOnRequest
from tidelog.broker.coordination.refusals import refuse
from tidelog.broker.request import PARKED, EncodedBody
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import api_spec
from tidelog.wire.malformed import MalformedMessageError
from tidelog.wire.primitives import read_uvarint
from tidelog.wire.schema import Buffer

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext
    from tidelog.model.coordinator_shards import ShardKind

_INT16: Final = struct.Struct(">h")


class NamedRequest(NamedTuple):
    """A request whose body is not decoded but for the group id or transactional id."""

    name: str
    body: bytes


class WholeRequest(NamedTuple):
    """A decoded request and its body."""

    message: Any
    body: bytes


def named_decoder(api_key: int, version: int) -> codec.Decoder:
    """Reads the one string that says whose the request is: the first of the body."""
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
        raise MalformedMessageError("a name that is null, or longer than the request")
    return start, start + length


def whole_decoder(api_key: int, version: int) -> codec.Decoder:
    """Decodes all, and keeps the body."""
    decode_message = codec.request_decoder(api_key, version)

    def decode(buffer: Buffer, position: int) -> tuple[WholeRequest, int]:
        message, end = decode_message(buffer, position)
        return WholeRequest(message, bytes(buffer[position:])), end

    return decode


def asker(context: RequestContext) -> Asker:
    return Asker(client_id=context.client_id, host=context.host, traceparent=context.traceparent)


def forward_named(broker: Broker, kind: ShardKind, request: NamedRequest, context: RequestContext) -> object:
    """What a handler returns."""
    return forward_body(broker, kind, request.name, request.body, context)


def forward_body(broker: Broker, kind: ShardKind, name: str, body: bytes, context: RequestContext) -> object:
    """The same with the name read already."""
    call = client_call(body, context)
    coordination = broker.coordination
    refused = coordination.pass_on(coordination.shard_of(kind, name), call)
    if refused:
        return refuse(int(context.route.api_key), context.api_version, body, refused)
    context.park(on_abandoned=call.abandon)
    return PARKED


def client_call(body: bytes, context: RequestContext) -> Call:
    """A client's request, to be passed on: what it is answered is the client's answer."""
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
