"""An answer that describes many groups has a bound, above which the other groups get a retriable error."""

from __future__ import annotations

import random
from typing import Any

import pytest

from grouplab.consumer_lab import ConsumerLab
from grouplab.shard_lab import GROUP
from grouplab.streams_lab import APPLICATION, SOURCE, StreamsLab, stateful
from grouplab.transaction_lab import TransactionLab
from tidelog.group_coordinator import shard_core
from tidelog.group_coordinator.shard_core import about_bytes, described_within_bound, freed_in_steps
from tidelog.kernel.steps import Steps, all_at_once
from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest
from tidelog.wire.messages.describe_transactions import DescribeTransactionsRequest
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tidelog.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidelog.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from tidelog.wire.messages.streams_group_heartbeat import Endpoint, KeyValue

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
GROUPS = [f"g{number}" for number in range(30)]


@pytest.mark.parametrize("seed", range(20))
def test_repetitions_describe_everything_in_the_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(shard_core, "MAX_DESCRIBED_BYTES", 1_000)
    sizes = {f"i{number}": chance.choice((0, 10, 300, 5_000)) for number in range(chance.randint(0, 30))}
    left, rounds = list(sizes), 0

    def describe(item: str) -> Steps[str]:
        yield
        return "x" * sizes[item]

    while left:
        found = all_at_once(
            described_within_bound(left, describe, lambda item, error: error.name, lambda found: found)
        )
        described = [item for item, told in zip(left, found, strict=True) if told != LOADING.name]
        assert described == left[: len(described)], "the first ones are described"
        assert described, "each repetition makes progress"
        assert sum(2 + sizes[item] for item in described[:-1]) < 1_000
        left = left[len(described) :]
        rounds += 1
    assert rounds <= len(sizes)


@pytest.mark.parametrize("api_key", [ApiKey.OFFSET_FETCH, ApiKey.CONSUMER_GROUP_DESCRIBE])
def test_the_estimate_is_near_the_size_on_the_wire(api_key: ApiKey) -> None:
    lab = many_groups()
    version = 9 if api_key is ApiKey.OFFSET_FETCH else 1
    told = lab.ask(api_key, version, asked(api_key))
    size_bytes = len(b"".join(codec.response_encoder(api_key, version)(told)))
    assert size_bytes / 2 < all_at_once(about_bytes(told.groups)) < 3 * size_bytes


@pytest.mark.parametrize(
    "api_key",
    [
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_DESCRIBE,
    ],
)
def test_groups_of_each_kind_and_absent_ones_are_described_together(api_key: ApiKey) -> None:
    lab = ConsumerLab()
    lab.stable_group(2)
    lab.set_topic("orders", 4)
    for heartbeat in (
        ConsumerGroupHeartbeatRequest(
            "c", "m", rebalance_timeout_ms=5, subscribed_topic_names=["orders"], topic_partitions=[]
        ),
        ShareGroupHeartbeatRequest("s", "m", 0, None, ["orders"]),
    ):
        heartbeat_key = ApiKey(heartbeat.API_KEY)
        assert lab.ask(heartbeat_key, 1, heartbeat).error_code == ErrorCode.NONE
    groups = [GROUP, "c", "s", "absent"]
    version = codec.api_spec(api_key).max_version
    message = codec.request_class(api_key)(
        **{"groups" if api_key is ApiKey.DESCRIBE_GROUPS else "group_ids": groups}
    )
    told = lab.ask(api_key, version, message)
    assert [group.group_id for group in told.groups] == groups
    size_bytes = len(b"".join(codec.response_encoder(api_key, version)(told)))
    assert size_bytes / 2 < all_at_once(about_bytes(told.groups)) < 3 * size_bytes


def streams_groups() -> Any:
    lab = StreamsLab()
    lab.set_topic(SOURCE, 4)
    for member_id in ("a", "b"):
        lab.beat_streams(
            member_id=member_id,
            member_epoch=0,
            rebalance_timeout_ms=5_000,
            process_id="p",
            user_endpoint=Endpoint("host", 99),
            client_tags=[KeyValue("zone", "1")],
            topology=stateful(),
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
        )
    return lab.ask(ApiKey.STREAMS_GROUP_DESCRIBE, 0, StreamsGroupDescribeRequest([APPLICATION, "absent"]))


def test_streams_groups_are_described_together() -> None:
    told = streams_groups()
    assert [len(group.members) for group in told.groups] == [2, 0]
    assert told.groups[0].topology is not None
    size_bytes = len(b"".join(codec.response_encoder(ApiKey.STREAMS_GROUP_DESCRIBE, 0)(told)))
    assert size_bytes / 2 < all_at_once(about_bytes(told.groups)) < 3 * size_bytes


def many_groups() -> ConsumerLab:
    lab = ConsumerLab()
    lab.set_topic("orders", 100)
    partitions = [
        OffsetCommitRequestPartition(number, 7, committed_metadata="m" * 40) for number in range(100)
    ]
    topics = [OffsetCommitRequestTopic("orders", partitions=partitions)]
    for group in GROUPS:
        lab.ask(ApiKey.OFFSET_COMMIT, 9, OffsetCommitRequest(group, topics=topics))
    return lab


def asked(api_key: ApiKey) -> Any:
    if api_key is ApiKey.OFFSET_FETCH:
        groups = [OffsetFetchRequestGroup(group, topics=None) for group in GROUPS]
        return OffsetFetchRequest(groups=groups, require_stable=False)
    if api_key is ApiKey.CONSUMER_GROUP_DESCRIBE:
        return ConsumerGroupDescribeRequest(GROUPS)
    return DescribeGroupsRequest(GROUPS)


@pytest.mark.parametrize("api_key", [ApiKey.OFFSET_FETCH, ApiKey.DESCRIBE_GROUPS])
def test_groups_without_room_in_the_answer_get_a_retriable_error(
    api_key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, version = many_groups(), 9 if api_key is ApiKey.OFFSET_FETCH else 5
    whole = lab.ask(api_key, version, asked(api_key))
    assert {group.error_code for group in whole.groups} == {0}
    limit_bytes = all_at_once(about_bytes(whole.groups)) // 3
    monkeypatch.setattr(shard_core, "MAX_DESCRIBED_BYTES", limit_bytes)
    told = lab.ask(api_key, version, asked(api_key))
    errors = [group.error_code for group in told.groups]
    count = errors.index(LOADING)
    assert 9 <= count <= 11
    assert set(errors[:count]) == {0}
    assert set(errors[count:]) == {LOADING}
    assert [group.group_id for group in told.groups] == GROUPS


@pytest.mark.parametrize("api_key", [ApiKey.OFFSET_FETCH, ApiKey.DESCRIBE_GROUPS])
def test_an_answer_is_freed_in_steps(api_key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_core, "FREED_AT_ONCE", 10)
    told = many_groups().ask(api_key, 9 if api_key is ApiKey.OFFSET_FETCH else 5, asked(api_key))
    structs = count_of_structs(told)
    for _ in freed_in_steps(told):
        left = count_of_structs(told)
        assert structs - left <= 11
        structs = left
    assert structs == 1


def test_a_topology_is_freed_in_steps() -> None:
    told = streams_groups()
    assert count_of_structs(told) > 10
    for _ in freed_in_steps(told):
        pass
    assert count_of_structs(told) == 1


def count_of_structs(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(count_of_structs, value))
    if not hasattr(type(value), "FIELDS"):
        return 0
    return 1 + sum(count_of_structs(getattr(value, field.name)) for field in type(value).FIELDS)


def test_transactions_without_room_in_the_answer_get_a_retriable_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = TransactionLab()
    for name in GROUPS:
        told = lab.init(name)
        lab.add((told.producer_id, told.producer_epoch), {"t": list(range(100))}, name=name)
    monkeypatch.setattr(shard_core, "MAX_DESCRIBED_BYTES", 2_000)
    states = lab.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(GROUPS)).transaction_states
    errors = [state.error_code for state in states]
    assert set(errors[:5]) == {0}
    assert set(errors[5:]) == {LOADING}
