"""Requests that name several groups or transactions: split by shard, merged again in their order."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.broker.coordination import refusals
from tidelog.broker.coordination.calls import Asker, Call, PassedOnRequest
from tidelog.broker.coordination.forwarding import WholeRequest, asker, forward_body
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.malformed import MalformedMessageError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


class Batched(NamedTuple):
    """How one API's requests name what they ask about, and its responses tell of it."""

    kind: ShardKind
    asked: str
    """The request's list."""
    asked_name: str | None
    """The name within an item of it; None if the item is the name."""
    told: str
    """The response's list."""
    told_name: str
    refuse: Callable[[Any, ErrorCode], Any]
    """(item asked, error) -> item told."""

    def name_asked(self, item: Any) -> str:
        name: str = item if self.asked_name is None else getattr(item, self.asked_name)
        return name


BATCHED: Final[dict[int, Batched]] = {
    ApiKey.DESCRIBE_GROUPS: Batched(
        ShardKind.GROUP, "groups", None, "groups", "group_id", refusals.refused_group
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Batched(
        ShardKind.GROUP, "group_ids", None, "groups", "group_id", refusals.refused_consumer_group
    ),
    ApiKey.DELETE_GROUPS: Batched(
        ShardKind.GROUP, "groups_names", None, "results", "group_id", refusals.refused_deletion
    ),
    ApiKey.OFFSET_FETCH: Batched(
        ShardKind.GROUP, "groups", "group_id", "groups", "group_id", refusals.refused_offsets
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Batched(
        ShardKind.TRANSACTION,
        "transactional_ids",
        None,
        "transaction_states",
        "transactional_id",
        refusals.refused_state,
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Batched(
        ShardKind.TRANSACTION,
        "transactions",
        "transactional_id",
        "results_by_transaction",
        "transactional_id",
        refusals.refused_transaction,
    ),
}


def forward_batched(broker: Broker, request: WholeRequest, context: RequestContext) -> object:
    """What a handler returns."""
    api_key = int(context.route.api_key)
    batched = BATCHED[api_key]
    names = [batched.name_asked(item) for item in getattr(request.message, batched.asked)]
    if not names:
        return codec.response_class(api_key)()
    shard_of = broker.coordination.shard_of
    if len(names) == 1 or len({shard_of(batched.kind, name) for name in names}) == 1:
        return forward_body(broker, batched.kind, names[0], request.body, context)  # nearly always
    return ask_each(broker, request, context)


async def ask_each(broker: Broker, request: WholeRequest, context: RequestContext) -> Any:
    """The decoded response, whoever had to be asked for it."""
    message = request.message
    batched = BATCHED[int(context.route.api_key)]
    by_shard: dict[ShardId | None, list[Any]] = defaultdict(list)
    for item in getattr(message, batched.asked):
        by_shard[broker.coordination.shard_of(batched.kind, batched.name_asked(item))].append(item)
    api_key, version = int(context.route.api_key), context.api_version
    encode = codec.request_encoder(api_key, version)
    parts = list(by_shard.items())
    answers = await asyncio.gather(
        *(
            ask_shard(
                broker,
                shard,
                api_key,
                version,
                b"".join(map(bytes, encode(replace(message, **{batched.asked: items})))),
                asker(context),
            )
            for shard, items in parts
        )
    )
    told: dict[str, deque[Any]] = defaultdict(deque)
    errors: dict[str, ErrorCode] = {}
    throttle_time_ms = 0
    for (_, items), (answer, error) in zip(parts, answers, strict=True):
        if answer is None:
            errors.update((batched.name_asked(item), error) for item in items)
            continue
        throttle_time_ms = max(throttle_time_ms, answer.throttle_time_ms)
        for item in getattr(answer, batched.told):
            told[getattr(item, batched.told_name)].append(item)
    merged = []
    for item in getattr(message, batched.asked):
        name = batched.name_asked(item)
        found = told.get(name)
        merged.append(
            found.popleft()
            if found
            else batched.refuse(item, errors.get(name, ErrorCode.UNKNOWN_SERVER_ERROR))
        )
    return codec.response_class(api_key)(throttle_time_ms=throttle_time_ms, **{batched.told: merged})


async def ask_shard(
    broker: Broker, shard: ShardId | None, api_key: int, version: int, body: bytes, who: Asker
) -> tuple[Any, ErrorCode]:
    """The decoded answer of the shard's owner; None and an error code if there is none."""
    answered: asyncio.Future[tuple[bytes | None, ErrorCode]] = asyncio.get_running_loop().create_future()

    def on_answered(answer: bytes | None, error: ErrorCode) -> None:
        if not answered.done():
            answered.set_result((answer, error))

    call = Call(PassedOnRequest(api_key, version, body, who), on_answered)
    refused = broker.coordination.pass_on(shard, call)
    if refused:
        return None, refused
    try:
        answer, error = await answered
    finally:
        call.abandon()
    if answer is None:
        return None, error
    try:
        return codec.response_decoder(api_key, version)(answer, 0)[0], ErrorCode.NONE
    except MalformedMessageError:
        return None, ErrorCode.UNKNOWN_SERVER_ERROR


async def ask_all_shards(
    broker: Broker, kind: ShardKind, body: bytes, context: RequestContext
) -> Sequence[tuple[Any, ErrorCode]]:
    """The same request to the owner of each shard whose partition this broker leads."""
    return await asyncio.gather(
        *(
            ask_shard(broker, shard, int(context.route.api_key), context.api_version, body, asker(context))
            for shard in broker.coordination.led_shards(kind)
        )
    )
