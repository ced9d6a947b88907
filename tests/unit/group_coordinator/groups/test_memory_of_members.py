"""The members of one group take a bounded amount of memory, whatever their clients state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from grouplab.consumer_lab import ConsumerLab
from grouplab.shard_lab import GROUP, REBALANCE_MS
from grouplab.share_lab import SHARERS, ShareLab
from grouplab.streams_lab import APPLICATION, SOURCE, StreamsLab, stateful
from tidelog.group_coordinator.groups import modern_groups
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidelog.wire.messages.streams_group_heartbeat import TaskIds

LIMIT_BYTES = 2 * 1024 * 1024
LONG = "x" * 30_000
NAMES = [f"{number:04}" + "x" * 40 for number in range(3_000)]
"""The names of a large subscription. Their places in tables take more memory than their characters."""


def consumer(lab: ConsumerLab, member_id: str, epoch: int = 0, names: list[str] = NAMES) -> int:
    answer = lab.beat(
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=REBALANCE_MS,
        rack_id=LONG,
        subscribed_topic_names=names,
        topic_partitions=[],
    )
    return int(answer.error_code)


def sharer(lab: ShareLab, member_id: str, epoch: int = 0, names: list[str] = NAMES) -> int:
    request = ShareGroupHeartbeatRequest(SHARERS, member_id, epoch, LONG, names)
    return int(lab.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, request).error_code)


def streams(lab: StreamsLab, member_id: str, epoch: int = 0, names: list[str] = NAMES) -> int:
    text, tasks = LONG if names is NAMES else "r", list[TaskIds]()
    answer = lab.beat_streams(
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=REBALANCE_MS,
        rack_id=text,
        process_id=text,
        topology=None if epoch else stateful(),
        active_tasks=tasks,
        standby_tasks=tasks,
        warmup_tasks=tasks,
    )
    return int(answer.error_code)


def new_streams_lab() -> StreamsLab:
    lab = StreamsLab()
    lab.set_topic(SOURCE, 1)
    return lab


Join = Callable[..., int]


@pytest.mark.parametrize(
    ("make_lab", "join", "group_id", "count"),
    [
        (ConsumerLab, consumer, GROUP, 20),
        (ShareLab, sharer, SHARERS, 20),
        (new_streams_lab, streams, APPLICATION, 60),
    ],
    ids=["consumer", "share", "streams"],
)
def test_the_members_of_a_group_take_a_bounded_amount_of_memory(
    make_lab: Callable[[], ConsumerLab],
    join: Join,
    group_id: str,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(modern_groups, "MAX_MEMBERS_BYTES", LIMIT_BYTES)
    lab = make_lab()
    errors = [join(lab, f"m{number}") for number in range(count)]
    accepted = errors.index(ErrorCode.INVALID_REQUEST)
    assert 3 < accepted < count
    assert set(errors[:accepted]) == {ErrorCode.NONE}
    assert set(errors[accepted:]) == {ErrorCode.INVALID_REQUEST}
    group: Any = lab.core.groups.by_id[group_id]
    assert sum(member.memory_bytes for member in group.members.values()) == group.members.memory_bytes
    assert group.members.memory_bytes <= LIMIT_BYTES
    assert join(lab, "m0", -1) == ErrorCode.NONE, "a member may leave"
    assert join(lab, "late", names=["orders"]) == ErrorCode.NONE, "there is room again"
    assert join(lab, "m1", 0, names=["orders"]) == ErrorCode.NONE, "a member may state less"
    assert sum(member.memory_bytes for member in group.members.values()) == group.members.memory_bytes
    again: Any = lab.reloaded().groups.by_id[group_id]
    assert again.members.memory_bytes == group.members.memory_bytes
