"""Asks the share coordinator for the states of share partitions, and changes these states (KIP-932).

A share partition's state belongs to a shard of `__share_group_state`, which follows from the group, the
topic and the partition. A request that names several share partitions is split by shard, and the answers are
merged. The five APIs have the same form, and one code handles them, so their messages are `Any` there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from tidelog.broker.coordination.attachment import ShardCall
from tidelog.broker.coordination.internal_topics import InternalTopics
from tidelog.broker.share.deliveries import StateWrite
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.slices import TurnBudget
from tidelog.kernel.timer import Timer
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import SharePartitionKey
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey, api_spec
from tidelog.wire.malformed import MalformedMessageError, UnsupportedVersionError
from tidelog.wire.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)

TIMEOUT_MS: Final = 30_000
"""The time after which an unanswered request fails with REQUEST_TIMED_OUT. It may have taken effect."""
FIRST_CLAIM_MS: Final = 2_000
"""The longest time that a request waits for a coordinator to claim the shards of the new topic."""

WORK_OF_A_TURN: Final = 100
"""The requests that are sent, and the answers that are taken, in one turn of the event loop. Each of them,
with the work that it causes for a share partition, takes about 0.05 ms.
"""
BYTES_OF_AN_ANSWER: Final = 500
"""A longer answer counts as several."""

UNINITIALIZED_OFFSET: Final = -1
"""The start offset of a state that was never written."""
RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""The errors after which the outcome is unknown, or nothing has happened."""
FENCING: Final = frozenset(
    {
        ErrorCode.INVALID_REQUEST,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""The errors that show that the state belongs to another leader, was reset, or does not exist."""


class _Api(NamedTuple):
    """The classes of one API's response. All requests have a `group_id` and `topics` with `partitions`."""

    module: ModuleType
    response: Any
    topic_result: Any


_APIS: Final[dict[int, _Api]] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _Api(
        initialize_share_group_state,
        initialize_share_group_state.InitializeShareGroupStateResponse,
        initialize_share_group_state.InitializeStateResult,
    ),
    ApiKey.READ_SHARE_GROUP_STATE: _Api(
        read_share_group_state,
        read_share_group_state.ReadShareGroupStateResponse,
        read_share_group_state.ReadStateResult,
    ),
    ApiKey.WRITE_SHARE_GROUP_STATE: _Api(
        write_share_group_state,
        write_share_group_state.WriteShareGroupStateResponse,
        write_share_group_state.WriteStateResult,
    ),
    ApiKey.DELETE_SHARE_GROUP_STATE: _Api(
        delete_share_group_state,
        delete_share_group_state.DeleteShareGroupStateResponse,
        delete_share_group_state.DeleteStateResult,
    ),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _Api(
        read_share_group_state_summary,
        read_share_group_state_summary.ReadShareGroupStateSummaryResponse,
        read_share_group_state_summary.ReadStateSummaryResult,
    ),
}


def refusal(error: ErrorCode, message: str | None) -> KafkaError:
    """Returns the error that clients get (Kafka's `SharePartition.fetchPersisterError`)."""
    if error is ErrorCode.FENCED_LEADER_EPOCH:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message or "another broker leads the partition")
    known = error in FENCING and error is not ErrorCode.INVALID_REQUEST
    code = error if known else ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaError(code, message or "the share coordinator refused the request")


def read_request(
    key: SharePartitionKey, leader_epoch: int
) -> read_share_group_state.ReadShareGroupStateRequest:
    """Returns the request with which a leader reads the state of one share partition."""
    data = read_share_group_state.PartitionData(key.partition, leader_epoch)
    topic = read_share_group_state.ReadStateData(key.topic_id, [data])
    return read_share_group_state.ReadShareGroupStateRequest(key.group_id, [topic])


def write_request(
    key: SharePartitionKey, write: StateWrite, stored_time: Callable[[MonotonicMs], int]
) -> write_share_group_state.WriteShareGroupStateRequest:
    """Returns the request for a write. `stored_time` returns the time of day of a monotonic time."""
    batches = [
        write_share_group_state.StateBatch(*found[:4], stored_time(found.available_at_ms))
        for found in write.ranges
    ]
    data = write_share_group_state.PartitionData(
        key.partition,
        write.state_epoch,
        write.leader_epoch,
        write.start_offset,
        write.delivery_complete_count,
        batches,
        stored_time(write.paused_until_ms),
    )
    topic = write_share_group_state.WriteStateData(key.topic_id, [data])
    return write_share_group_state.WriteShareGroupStateRequest(key.group_id, [topic])


class ShardOwners(Protocol):
    """The way to the owners of shards (`Coordination`)."""

    topics: InternalTopics

    def share_shard(self, group_id: str, topic_id: UUID, partition: int) -> ShardId | None: ...

    def ask_shard_owner(self, shard: ShardId | None, call: ShardCall) -> ErrorCode: ...

    async def until_served(self, shards: Collection[ShardId], timeout_ms: int) -> None: ...


class ShareStateClient:
    """Sends requests about the states of share partitions to the owners of their shards.

    The methods raise nothing that an owner or a lost session could cause: each failure is the error code of a
    partition. COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR and REQUEST_TIMED_OUT
    are retriable.
    """

    def __init__(self, owners: ShardOwners, timer: Timer) -> None:
        self._owners = owners
        self._timer = timer
        self._budget = TurnBudget(WORK_OF_A_TURN)

    async def read(
        self, request: read_share_group_state.ReadShareGroupStateRequest
    ) -> read_share_group_state.ReadShareGroupStateResponse:
        """Returns the states of share partitions, and raises their leader epochs to those of the request."""
        response: read_share_group_state.ReadShareGroupStateResponse
        response = await self.ask(ApiKey.READ_SHARE_GROUP_STATE, request)
        return response

    async def write(
        self, request: write_share_group_state.WriteShareGroupStateRequest
    ) -> write_share_group_state.WriteShareGroupStateResponse:
        """Changes the states of share partitions. Returns when the changes are replicated."""
        response: write_share_group_state.WriteShareGroupStateResponse
        response = await self.ask(ApiKey.WRITE_SHARE_GROUP_STATE, request)
        return response

    async def ask(self, api_key: int, request: Any) -> Any:
        """Returns the response to a request of one of the five APIs, in the order of the request."""
        await self._budget.take()
        topics = self._owners.topics
        if not topics.exists(ShardKind.SHARE):
            await topics.make(ShardKind.SHARE)
            shards = [shard for shard in self._split(request) if shard is not None]
            await self._owners.until_served(shards, FIRST_CLAIM_MS)
        parts = self._split(request)
        if len(parts) == 1:
            ((shard, part),) = parts.items()
            return await self._ask_owner(shard, api_key, part)
        answers = await asyncio.gather(
            *(self._ask_owner(shard, api_key, part) for shard, part in parts.items())
        )
        return _merged(api_key, request, answers)

    async def pass_on(self, api_key: int, version: int, body: bytes) -> bytes:
        """Returns the response to a coordinator's request. It is b"" if the request can't be decoded."""
        if api_key not in _APIS:
            return b""
        try:
            request = codec.request_decoder(api_key, version)(body, 0)[0]
        except (MalformedMessageError, UnsupportedVersionError):
            return b""
        response = await self.ask(api_key, request)
        return b"".join(map(bytes, codec.response_encoder(api_key, version)(response)))

    def _split(self, request: Any) -> dict[ShardId | None, Any]:
        """Returns the part of the request for each shard. The shard is None if the topic does not exist."""
        wanted: dict[ShardId | None, dict[UUID, list[Any]]] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                shard = self._owners.share_shard(request.group_id, topic.topic_id, partition.partition)
                wanted.setdefault(shard, {}).setdefault(topic.topic_id, []).append(partition)
        classes = {topic.topic_id: topic for topic in request.topics}
        return {
            shard: replace(
                request,
                topics=[
                    replace(classes[topic_id], partitions=partitions)
                    for topic_id, partitions in topics.items()
                ],
            )
            for shard, topics in wanted.items()
        }

    async def _ask_owner(self, shard: ShardId | None, api_key: int, request: Any) -> Any:
        if shard is None:
            return _refused_all(api_key, request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        version = api_spec(api_key).max_version
        body = b"".join(map(bytes, codec.request_encoder(api_key, version)(request)))
        pass_on = partial(self._owners.ask_shard_owner, shard)
        answer, error = await ShardCall(api_key, version, body).ask_within(pass_on, self._timer, TIMEOUT_MS)
        await self._budget.take(1 if answer is None else 1 + len(answer) // BYTES_OF_AN_ANSWER)
        if answer is None:
            return _refused_all(api_key, request, error)
        try:
            return codec.response_decoder(api_key, version)(answer, 0)[0]
        except MalformedMessageError:
            return _refused_all(api_key, request, ErrorCode.UNKNOWN_SERVER_ERROR)


def _refused_all(api_key: int, request: Any, error: ErrorCode) -> Any:
    api = _APIS[api_key]
    return api.response(
        [
            api.topic_result(
                topic.topic_id,
                [
                    api.module.PartitionResult(partition=partition.partition, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _merged(api_key: int, request: Any, answers: list[Any]) -> Any:
    """Returns one response with the results of all answers, in the order of the request."""
    api = _APIS[api_key]
    found = {
        (topic.topic_id, result.partition): result
        for answer in answers
        for topic in answer.results
        for result in topic.partitions
    }
    missing = _refused_all(api_key, request, ErrorCode.UNKNOWN_SERVER_ERROR)
    return api.response(
        [
            api.topic_result(
                topic.topic_id,
                [found.get((topic.topic_id, result.partition), result) for result in topic.partitions],
            )
            for topic in missing.results
        ]
    )
