"""An answer that grows with what clients have built up is made in steps, none of which grows with it.

A step is measured by the calls of functions in it, which do not depend on the machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

import pytest

from brokerlab.counted_work import calls_of
from grouplab.consumer_lab import ConsumerLab
from grouplab.offsets_lab import OffsetsLab
from grouplab.shard_lab import GROUP, ShardLab
from grouplab.streams_lab import APPLICATION, SOURCE, StreamsLab, stateful
from grouplab.transaction_lab import TransactionLab
from tidelog.group_coordinator.shard_core import ShardDecision, ShardRequest
from tidelog.kernel.steps import Steps, all_at_once
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import response_encoder_in_steps
from tidelog.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest
from tidelog.wire.messages.describe_transactions import DescribeTransactionsRequest
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.list_transactions import ListTransactionsRequest
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from tidelog.wire.messages.share_group_describe import ShareGroupDescribeRequest
from tidelog.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidelog.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from tidelog.wire.messages.streams_group_heartbeat import Endpoint

SMALL, LARGE = 20, 200
MORE_CALLS = 40 + LARGE - SMALL
"""The calls that a step may make more: one for each further member, because the state of a group depends on
all of them. A description takes at least two.
"""


class Counted:
    """The answer to a request, and the calls of the longest step in which it is made and encoded."""

    def __init__(self, core: Any, api_key: ApiKey, version: int, message: Any, now_ms: int) -> None:
        self.most_calls = 0
        request = ShardRequest("to", api_key, version, message)
        decision: ShardDecision = self._step(lambda: core.handle(request, now_ms))
        response = decision.replies[0].message
        self.response = self._all(response) if isinstance(response, Generator) else response
        self._all(response_encoder_in_steps(api_key, version)(self.response))

    def _all(self, steps: Steps[object]) -> Any:
        ended: list[object] = []

        def until_the_end() -> Steps[None]:
            ended.append((yield from steps))
            yield

        for_each = until_the_end()
        while not ended:
            self._step(lambda: next(for_each))
        return ended[0]

    def _step(self, step: Callable[[], object]) -> Any:
        results: list[object] = []
        self.most_calls = max(self.most_calls, calls_of(lambda: results.append(step())))
        return results[0]


def with_offsets(count: int) -> Counted:
    return counted(lab_with_offsets(count), ApiKey.OFFSET_FETCH, 9, all_offsets("one", "absent"))


def with_offsets_of_many_topics(count: int) -> Counted:
    lab = ConsumerLab()
    for number in range(count):
        lab.set_topic(f"t{number}", 1)
        topic = OffsetCommitRequestTopic(f"t{number}", partitions=[OffsetCommitRequestPartition(0, 7)])
        lab.ask(ApiKey.OFFSET_COMMIT, 9, OffsetCommitRequest("one", topics=[topic]))
    return counted(lab, ApiKey.OFFSET_FETCH, 9, all_offsets("one"))


def with_offsets_in_an_old_version(count: int) -> Counted:
    return counted(lab_with_offsets(count), ApiKey.OFFSET_FETCH, 7, OffsetFetchRequest("one", None))


def with_groups_that_have_offsets(count: int) -> Counted:
    lab = ConsumerLab()
    lab.set_topic("orders", 1)
    names = [f"g{number}" for number in range(count)]
    topic = OffsetCommitRequestTopic("orders", partitions=[OffsetCommitRequestPartition(0, 7)])
    for name in names:
        lab.ask(ApiKey.OFFSET_COMMIT, 9, OffsetCommitRequest(name, topics=[topic]))
    return counted(lab, ApiKey.OFFSET_FETCH, 9, all_offsets(*names))


def with_classic_members(count: int) -> Counted:
    lab = ShardLab()
    lab.stable_group(count)
    return counted(lab, ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest([GROUP, "absent"]))


def with_consumer_members(count: int) -> Counted:
    lab = ConsumerLab()
    lab.set_topic("orders", 4)
    for number in range(count):
        heartbeat = ConsumerGroupHeartbeatRequest(
            "c", f"m{number}", rebalance_timeout_ms=5, subscribed_topic_names=["orders"], topic_partitions=[]
        )
        lab.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat)
    return counted(lab, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, ConsumerGroupDescribeRequest(["c", "absent"]))


def with_share_members(count: int) -> Counted:
    lab = ConsumerLab()
    lab.set_topic("orders", 4)
    for number in range(count):
        heartbeat = ShareGroupHeartbeatRequest("s", f"m{number}", 0, None, ["orders"])
        lab.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, heartbeat)
    return counted(lab, ApiKey.SHARE_GROUP_DESCRIBE, 1, ShareGroupDescribeRequest(["s", "absent"]))


def with_streams_members(count: int) -> Counted:
    lab = StreamsLab()
    lab.set_topic(SOURCE, 4)
    for number in range(count):
        lab.beat_streams(
            member_id=f"m{number}",
            member_epoch=0,
            rebalance_timeout_ms=5_000,
            process_id="p",
            user_endpoint=Endpoint("host", 99),
            client_tags=[],
            topology=stateful(),
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
        )
    message = StreamsGroupDescribeRequest([APPLICATION, "absent"])
    return counted(lab, ApiKey.STREAMS_GROUP_DESCRIBE, 0, message)


def with_transactions(count: int) -> Counted:
    lab = transactions(count)
    names = [f"t{number}" for number in range(count)]
    return counted(lab, ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(names))


def with_a_list_of_groups(count: int) -> Counted:
    lab = ConsumerLab()
    lab.set_topic("orders", 1)
    topic = OffsetCommitRequestTopic("orders", partitions=[OffsetCommitRequestPartition(0, 7)])
    for number in range(count):
        lab.ask(ApiKey.OFFSET_COMMIT, 9, OffsetCommitRequest(f"g{number}", topics=[topic]))
    return counted(lab, ApiKey.LIST_GROUPS, 5, ListGroupsRequest(["Empty"], ["Classic"]))


def with_a_list_of_transactions(count: int) -> Counted:
    message = ListTransactionsRequest(["Empty"], [], -1, "t.*")
    return counted(transactions(count), ApiKey.LIST_TRANSACTIONS, 2, message)


def transactions(count: int) -> TransactionLab:
    lab = TransactionLab()
    for number in range(count):
        lab.init(f"t{number}")
    return lab


def lab_with_offsets(count: int) -> ConsumerLab:
    lab = ConsumerLab()
    lab.set_topic("orders", count)
    partitions = [OffsetCommitRequestPartition(number, 7) for number in range(count)]
    topics = [OffsetCommitRequestTopic("orders", partitions=partitions)]
    lab.ask(ApiKey.OFFSET_COMMIT, 9, OffsetCommitRequest("one", topics=topics))
    return lab


def all_offsets(*groups: str, require_stable: bool = True) -> OffsetFetchRequest:
    asked = [OffsetFetchRequestGroup(group, topics=None) for group in groups]
    return OffsetFetchRequest(groups=asked, require_stable=require_stable)


def counted(lab: ShardLab | TransactionLab, api_key: ApiKey, version: int, message: Any) -> Counted:
    return Counted(lab.core, api_key, version, message, lab.now_ms)


@pytest.mark.parametrize(
    "answer",
    [
        with_offsets,
        with_offsets_of_many_topics,
        with_offsets_in_an_old_version,
        with_groups_that_have_offsets,
        with_classic_members,
        with_consumer_members,
        with_share_members,
        with_streams_members,
        with_transactions,
        with_a_list_of_groups,
        with_a_list_of_transactions,
    ],
)
def test_no_step_grows_with_the_answer(answer: Callable[[int], Counted]) -> None:
    answer(SMALL)  # what is made at the first use
    small, large = answer(SMALL), answer(LARGE)
    assert large.most_calls <= small.most_calls + MORE_CALLS


@pytest.mark.parametrize("seed", range(30))
def test_all_offsets_of_a_group_are_those_of_one_moment(seed: int) -> None:
    chance, lab = random.Random(seed), OffsetsLab()
    request = ShardRequest("to", ApiKey.OFFSET_FETCH, chance.choice((8, 9, 10)), all_offsets("g"))

    def change() -> None:
        topic, partition, producer = chance.choice("ab"), chance.randrange(3), (chance.randrange(7, 9), 0)
        choice = chance.random()
        if choice < 0.3:
            lab.commit(chance.randrange(1_000), topic=topic, partition=partition)
        elif choice < 0.7:
            lab.commit_in_transaction(chance.randrange(1_000), producer, topic=topic, partition=partition)
        else:
            lab.end(chance.random() < 0.8, producer)

    def steps() -> Steps[OffsetFetchResponse]:
        (reply,) = lab.core.handle(request, lab.now_ms).replies
        assert isinstance(reply.message, Generator)
        return reply.message

    for _ in range(30):
        change()
    expected, answer = all_at_once(steps()), steps()
    next(answer)

    def meanwhile() -> Steps[OffsetFetchResponse]:
        for _ in range(20):
            change()
        while True:
            try:
                next(answer)
            except StopIteration as ended:
                told: OffsetFetchResponse = ended.value
                return told
            change()
            yield

    assert all_at_once(meanwhile()) == expected
