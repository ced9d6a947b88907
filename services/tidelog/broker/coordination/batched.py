"""Passes requests that name several groups or transactions on to their coordinators.

Such a request is split by shard, and the answers are merged. The requests of nine APIs go through the same
code. It reads and creates their messages by the names of fields in `error_responses.ITEMS`, so the types of
these messages are `Any`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from tidelog.broker.coordination.attachment import ShardCall
from tidelog.broker.coordination.coordination import Coordination, NamedRequest, forward_body
from tidelog.broker.requests.error_responses import Items, item_error, items_of, refusal
from tidelog.broker.requests.request import Answer, EncodedBody, Reply, RequestContext
from tidelog.broker.security.judging import GROUP_OPERATIONS
from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import Steps
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.malformed import MalformedMessageError
from tidelog.wire.schema import Buffer

MAX_CHARS_AT_ONCE: Final = 16_384
"""The characters of ids whose shards are found at once, in about a millisecond."""


class WholeRequest(NamedTuple):
    """A decoded request and its body."""

    message: Any  # a class of tidelog.wire.messages, by the request's API
    body: bytes


def whole_decoder(api_key: int, version: int) -> codec.Decoder:
    """Returns a decoder that decodes the whole request and keeps its body."""
    decode_message = codec.request_decoder(api_key, version)

    def decode(buffer: Buffer, position: int) -> tuple[WholeRequest, int]:
        message, end = decode_message(buffer, position)
        return WholeRequest(message, bytes(buffer[position:])), end

    return decode


REPEATED_APIS: Final = frozenset({ApiKey.ADD_PARTITIONS_TO_TXN})
"""The APIs of which all items of a repeated name count.

In the other APIs, a name that a request repeats has one item in the response, the answer to its first item.
Otherwise a request of 100 KB could ask for the same large description thousands of times. Clients look for
answers by their names.
"""


def named_items(api_key: int, version: int) -> Items:
    """Returns the fields of the items of a request that are groups or transactions."""
    items = items_of(api_key, version)
    assert items is not None
    return items


def without_repetitions(request: WholeRequest, api_key: int, version: int) -> WholeRequest:
    """Returns the request with the first item of each name, if its API answers a repeated name once."""
    fields = named_items(api_key, version)
    items = getattr(request.message, fields.asked)
    if api_key in REPEATED_APIS or len(items) < 2:
        return request
    first: dict[str, Any] = {}
    for item in items:
        first.setdefault(fields.name_of(item), item)
    if len(first) == len(items):
        return request
    message = replace(request.message, **{fields.asked: list(first.values())})
    return WholeRequest(message, b"".join(map(bytes, codec.request_encoder(api_key, version)(message))))


def forward_batched(
    coordination: Coordination, kind: ShardKind, request: WholeRequest, context: RequestContext
) -> Answer:
    """Passes the request on to each coordinator that it concerns. Returns a handler's result."""
    api_key = int(context.route.api_key)
    fields = named_items(api_key, context.api_version)
    request = without_repetitions(request, api_key, context.api_version)
    names = [fields.name_of(item) for item in getattr(request.message, fields.asked)]
    if not names:
        return codec.response_class(api_key)()
    shard_of = coordination.shard_of
    if len(names) == 1 or (
        sum(map(len, names)) <= MAX_CHARS_AT_ONCE and len({shard_of(kind, name) for name in names}) == 1
    ):
        return forward_body(coordination, kind, names[0], request.body, context)  # nearly always
    return ask_each(coordination, kind, request, context)


def forward_described(
    coordination: Coordination, kind: ShardKind, request: WholeRequest, context: RequestContext
) -> Answer:
    """Passes on a request for descriptions of groups. If it asks for them, the broker adds the operations
    that the client may do with each group (KIP-430). Returns a handler's result.
    """
    if request.message.include_authorized_operations:
        return _with_operations(coordination, kind, request, context)
    return forward_batched(coordination, kind, request, context)


async def _with_operations(
    coordination: Coordination, kind: ShardKind, request: WholeRequest, context: RequestContext
) -> Any:
    distinct = without_repetitions(request, int(context.route.api_key), context.api_version)
    response = await ask_each(coordination, kind, distinct, context)
    for group in response.groups:
        if not group.error_code:
            group.authorized_operations = GROUP_OPERATIONS
    return response


def _by_shard(
    coordination: Coordination, kind: ShardKind, fields: Items, message: Any
) -> Steps[dict[ShardId | None, list[Any]]]:
    """Returns the items of the request by their shards."""
    by_shard: dict[ShardId | None, list[Any]] = defaultdict(list)
    for item in getattr(message, fields.asked):
        by_shard[coordination.shard_of(kind, fields.name_of(item))].append(item)
        yield
    return by_shard


async def ask_each(
    coordination: Coordination, kind: ShardKind, request: WholeRequest, context: RequestContext
) -> Any:
    """Returns the decoded response, merged from the answers of all coordinators."""
    message = request.message
    api_key, version = int(context.route.api_key), context.api_version
    fields = named_items(api_key, version)
    by_shard = await run_in_slices(_by_shard(coordination, kind, fields, message))
    encode = codec.request_encoder(api_key, version)
    parts = list(by_shard.items())
    answers = await asyncio.gather(
        *(
            ask_shard(
                coordination,
                shard,
                api_key,
                version,
                b"".join(map(bytes, encode(replace(message, **{fields.asked: items})))),
                context,
            )
            for shard, items in parts
        )
    )
    found: dict[str, deque[Any]] = defaultdict(deque)
    errors: dict[str, ErrorCode] = {}
    throttle_time_ms = 0
    for (_, items), (answer, error) in zip(parts, answers, strict=True):
        if answer is None:
            errors.update((fields.name_of(item), error) for item in items)
            continue
        throttle_time_ms = max(throttle_time_ms, answer.throttle_time_ms)
        for item in getattr(answer, fields.answered):
            found[fields.name_of(item)].append(item)
    merged = []
    for item in getattr(message, fields.asked):
        name = fields.name_of(item)
        of_name = found.get(name)
        merged.append(
            of_name.popleft()
            if of_name
            else item_error(api_key, version, item, errors.get(name, ErrorCode.UNKNOWN_SERVER_ERROR))
        )
    return codec.response_class(api_key)(throttle_time_ms=throttle_time_ms, **{fields.answered: merged})


async def forward_edited(
    coordination: Coordination, kind: ShardKind, request: NamedRequest, context: RequestContext
) -> Reply:
    """Passes on a request for one group or transaction whose response will be edited. A response that a
    coroutine returns is edited in slices, which that of a parked request is not.
    """
    api_key, version = int(context.route.api_key), context.api_version
    shard = coordination.shard_of(kind, request.name)
    answer, error = await ask_shard_for_bytes(coordination, shard, api_key, version, request.body, context)
    return refusal(api_key, version, request.body, error) if answer is None else EncodedBody((answer,))


async def ask_shard(
    coordination: Coordination,
    shard: ShardId | None,
    api_key: int,
    version: int,
    body: bytes,
    context: RequestContext,
) -> tuple[Any, ErrorCode]:
    """Returns the decoded answer of the shard's owner, or None and an error code."""
    answer, error = await ask_shard_for_bytes(coordination, shard, api_key, version, body, context)
    if answer is None:
        return None, error
    try:
        decode = codec.response_decoder_in_steps(api_key, version)
        return (await run_in_slices(decode(answer, 0)))[0], ErrorCode.NONE
    except MalformedMessageError:
        return None, ErrorCode.UNKNOWN_SERVER_ERROR


async def ask_shard_for_bytes(
    coordination: Coordination,
    shard: ShardId | None,
    api_key: int,
    version: int,
    body: bytes,
    context: RequestContext,
) -> tuple[bytes | None, ErrorCode]:
    """Returns the answer of the shard's owner as it is on the wire, or None and an error code."""
    return await ShardCall(api_key, version, body, context=context).ask(partial(coordination.pass_on, shard))


async def ask_all_shards(
    coordination: Coordination, kind: ShardKind, body: bytes, context: RequestContext
) -> Sequence[tuple[Any, ErrorCode]]:
    """Passes the request on to the owner of each shard whose partition this broker leads, to one after the
    other, so that a coordinator does not do the work of all its shards at once. Returns their answers.
    """
    api_key, version = int(context.route.api_key), context.api_version
    return [
        await ask_shard(coordination, shard, api_key, version, body, context)
        for shard in coordination.led_shards(kind)
    ]
