"""A rebalance on request: a member joins a group, gets its share of the partitions, and leaves again.

It is a member like any other, so it works with each protocol and each assignor of the group's members. It
reads no record.
"""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Final

from tidelog.model.errors import ErrorCode
from tidelog.testing.blocking import loop_advice
from tidelog.testing.requests import RETRY_S, Requests
from tidelog.wire.messages import (
    consumer_group_describe,
    consumer_group_heartbeat,
    describe_groups,
    find_coordinator,
    join_group,
    leave_group,
    sync_group,
)

TIMEOUT_S: Final = 60.0
"""The time that the members have to join again."""
MAX_JOINS: Final = 2
"""A cooperative rebalance has two steps: partitions are given up, and then assigned."""
SECOND_REBALANCE_S: Final = 5.0
"""The additional member waits so long for the second step if partitions have been given up."""
_CONSUMER: Final = "consumer"
_PREPARING: Final = "PreparingRebalance"
_STABLE: Final = "Stable"
_JOIN_EPOCH, _LEAVE_EPOCH = 0, -1
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class Rebalance:
    """A rebalance that has begun. The members take part in it when they poll and send heartbeats."""

    def __init__(self, done: Future[None]) -> None:
        self._done = done

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until the additional member has left again. Raises TimeoutError, and RuntimeError if the
        members did not take part in time.
        """
        wait([self._done], timeout_s)
        if not self._done.done():
            raise TimeoutError(
                f"the rebalance did not end within {timeout_s:g} s; the members take part when they poll"
                f"{loop_advice()}"
            )
        self._done.result()


async def begin_rebalance(requests: Requests, group: str) -> asyncio.Task[None]:
    """Makes a member join the group. Returns when the group knows it; the task ends when it has left.

    Raises ValueError if the group has no member or is not a group of consumers.
    """
    coordinator = await _coordinator(requests, group)
    classic = await _classic(requests, coordinator, group)
    if classic is not None:
        joined = _classic_rebalance(requests, coordinator, classic)
    else:
        described = await _consumer_group(requests, coordinator, group)
        if described is None:
            raise ValueError(
                f"group {group} has no member, so it has nothing to rebalance; wait until the program has "
                "joined it, for example with wait_until_fetched"
            )
        return await _begin_consumer_rebalance(requests, coordinator, described)
    task = asyncio.create_task(joined, name=f"rebalance of {group}")
    while not task.done():
        now = await _classic(requests, coordinator, group)
        if now is None or now.group_state != classic.group_state:
            break
        await asyncio.sleep(RETRY_S)
    return task


async def _coordinator(requests: Requests, group: str) -> int:
    until_s = time.monotonic() + TIMEOUT_S
    while True:
        found = await requests.ask(
            find_coordinator.FindCoordinatorRequest(group), find_coordinator.FindCoordinatorResponse
        )
        if not found.error_code:
            return found.node_id
        if time.monotonic() > until_s:
            raise RuntimeError(f"group {group} has no coordinator: {ErrorCode(found.error_code).name}")
        await asyncio.sleep(RETRY_S)


# -- groups of the classic protocol


async def _classic(requests: Requests, coordinator: int, group: str) -> describe_groups.DescribedGroup | None:
    """Returns a group of the classic protocol with members, or None. Raises ValueError if its members are no
    consumers.
    """
    request = describe_groups.DescribeGroupsRequest([group])
    found = (await requests.ask(request, describe_groups.DescribeGroupsResponse, coordinator)).groups[0]
    if found.error_code or not found.members:
        return None
    if found.protocol_type != _CONSUMER:
        raise ValueError(f"the members of group {group} are not consumers, but of type {found.protocol_type}")
    return found


async def _classic_rebalance(
    requests: Requests, coordinator: int, group: describe_groups.DescribedGroup
) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not group.protocol_data:  # during a rebalance the group has no assignor
        if time.monotonic() > until_s:
            raise RuntimeError(f"group {group.group_id} did not become stable within {TIMEOUT_S:g} s")
        await asyncio.sleep(RETRY_S)
        now = await _classic(requests, coordinator, group.group_id)
        if now is None:
            return
        group = now
    topics = sorted({topic for member in group.members for topic in _topics(bytes(member.member_metadata))})
    member_id, protocol = "", join_group.JoinGroupRequestProtocol(group.protocol_data, _subscription(topics))
    for _ in range(MAX_JOINS):
        request = join_group.JoinGroupRequest(
            group.group_id,
            int(TIMEOUT_S * 1000),
            int(TIMEOUT_S * 1000),
            member_id,
            protocol_type=_CONSUMER,
            protocols=[protocol],
        )
        joined = await requests.ask(request, join_group.JoinGroupResponse, coordinator, wait_s=TIMEOUT_S)
        if joined.error_code:
            raise RuntimeError(f"group {group.group_id}: {ErrorCode(joined.error_code).name}")
        member_id = joined.member_id
        sync = sync_group.SyncGroupRequest(
            group.group_id,
            joined.generation_id,
            member_id,
            protocol_type=_CONSUMER,
            protocol_name=joined.protocol_name,
        )
        synced = await requests.ask(sync, sync_group.SyncGroupResponse, coordinator, wait_s=TIMEOUT_S)
        if synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            continue
        if synced.error_code:
            raise RuntimeError(f"group {group.group_id}: {ErrorCode(synced.error_code).name}")
        if _partitions(bytes(synced.assignment)):
            break
        # Cooperative members give partitions up first, and join again so that others get them.
        if not await _is_rebalancing_again(requests, coordinator, group.group_id, topics):
            break
    await requests.ask(
        leave_group.LeaveGroupRequest(group.group_id, member_id),
        leave_group.LeaveGroupResponse,
        coordinator,
    )


async def _is_rebalancing_again(
    requests: Requests, coordinator: int, group_id: str, topics: Sequence[str]
) -> bool:
    """Returns whether another rebalance begins within SECOND_REBALANCE_S. None does if all partitions of the
    topics are assigned.
    """
    counts = {topic.name: len(topic.partitions) for topic in await requests.topics()}
    all_partitions = {(topic, number) for topic in topics for number in range(counts.get(topic, 0))}
    until_s = time.monotonic() + SECOND_REBALANCE_S
    while time.monotonic() < until_s:
        now = await _classic(requests, coordinator, group_id)
        if now is None or now.group_state == _PREPARING:
            return now is not None
        if now.group_state == _STABLE and all_partitions <= {
            each for member in now.members for each in _partitions(bytes(member.member_assignment))
        }:
            return False
        await asyncio.sleep(RETRY_S)
    return False


def _partitions(assignment: bytes) -> list[tuple[str, int]]:
    """Returns the partitions of an assignment, with their topics (Kafka's ConsumerProtocolAssignment)."""
    if len(assignment) < _INT16.size + _INT32.size:
        return []  # a member that has no assignment yet
    (count,) = _INT32.unpack_from(assignment, _INT16.size)
    position = _INT16.size + _INT32.size
    found: list[tuple[str, int]] = []
    for _ in range(count):
        topic, position = _text(assignment, position)
        (size,) = _INT32.unpack_from(assignment, position)
        position += _INT32.size
        for _ in range(size):
            (number,) = _INT32.unpack_from(assignment, position)
            found.append((topic, number))
            position += _INT32.size
    return found


def _text(encoded: bytes, position: int) -> tuple[str, int]:
    """Returns the text at a position, and the position after it."""
    (length,) = _INT16.unpack_from(encoded, position)
    start = position + _INT16.size
    return encoded[start : start + length].decode(), start + length


def _topics(metadata: bytes) -> list[str]:
    """Returns the topics of a subscription (Kafka's ConsumerProtocolSubscription; all versions begin with the
    version and the topics).
    """
    (count,) = _INT32.unpack_from(metadata, _INT16.size)
    position = _INT16.size + _INT32.size
    topics: list[str] = []
    for _ in range(count):
        topic, position = _text(metadata, position)
        topics.append(topic)
    return topics


def _subscription(topics: list[str]) -> bytes:
    """Returns a subscription of version 1 without user data and owned partitions. As the leader of a
    cooperative group, librdkafka crashes over version 0, which does not state the owned partitions.
    """
    parts = [_INT16.pack(1), _INT32.pack(len(topics))]
    for topic in topics:
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name]
    return b"".join((*parts, _INT32.pack(-1), _INT32.pack(0)))


# -- groups of the protocol `consumer` (KIP-848)


async def _consumer_group(
    requests: Requests, coordinator: int, group: str
) -> consumer_group_describe.DescribedGroup | None:
    request = consumer_group_describe.ConsumerGroupDescribeRequest([group])
    answer = await requests.ask(request, consumer_group_describe.ConsumerGroupDescribeResponse, coordinator)
    found = answer.groups[0]
    return None if found.error_code or not found.members else found


async def _begin_consumer_rebalance(
    requests: Requests, coordinator: int, group: consumer_group_describe.DescribedGroup
) -> asyncio.Task[None]:
    topics = sorted({topic for member in group.members for topic in member.subscribed_topic_names})
    regex = next((member.subscribed_topic_regex for member in group.members), None)
    member_id = str(uuid.uuid4())
    request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group.group_id,
        member_id,
        _JOIN_EPOCH,
        rebalance_timeout_ms=int(TIMEOUT_S * 1000),
        subscribed_topic_names=topics,
        subscribed_topic_regex=regex or None,
        topic_partitions=[],
    )
    joined = await requests.ask(request, consumer_group_heartbeat.ConsumerGroupHeartbeatResponse, coordinator)
    if joined.error_code:
        raise RuntimeError(f"group {group.group_id}: {joined.error_message}")
    rest = _end_consumer_rebalance(requests, coordinator, group.group_id, member_id, joined)
    return asyncio.create_task(rest, name=f"rebalance of {group.group_id}")


async def _end_consumer_rebalance(
    requests: Requests,
    coordinator: int,
    group: str,
    member_id: str,
    answer: consumer_group_heartbeat.ConsumerGroupHeartbeatResponse,
) -> None:
    """Sends heartbeats until all members have their new partitions, and leaves."""
    until_s = time.monotonic() + TIMEOUT_S
    is_over = False
    while not is_over and time.monotonic() < until_s:
        await asyncio.sleep(answer.heartbeat_interval_ms / 1000)
        owned = None
        if answer.assignment is not None:
            owned = [
                consumer_group_heartbeat.TopicPartitions(row.topic_id, row.partitions)
                for row in answer.assignment.topic_partitions
            ]
        request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group, member_id, answer.member_epoch, topic_partitions=owned
        )
        answer = await requests.ask(
            request, consumer_group_heartbeat.ConsumerGroupHeartbeatResponse, coordinator
        )
        if answer.error_code:
            raise RuntimeError(f"group {group}: {answer.error_message}")
        described = await _consumer_group(requests, coordinator, group)
        is_over = described is None or described.group_state == _STABLE
    leave = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(group, member_id, _LEAVE_EPOCH)
    await requests.ask(leave, consumer_group_heartbeat.ConsumerGroupHeartbeatResponse, coordinator)
    if not is_over:
        raise RuntimeError(
            f"the members of group {group} did not take part within {TIMEOUT_S:g} s; they do when they poll"
        )
