"""The search for hanging transactions: which ones hang, and of which nobody can tell."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.admin import transactions as command
from tidelog.cli.main import main
from tidelog.client.address import Address
from tidelog.client.admin.groups import Transaction
from tidelog.client.admin.transactions import (
    PartitionProducer,
    find_hanging,
    late_producers,
    unknown_to_coordinators,
)
from tidelog.client.admin.transactions import describe_producers as find_producers
from tidelog.client.cluster import Broker, ClusterView, Topic
from tidelog.client.core.cluster_view import Partition
from tidelog.client.errors import NoAnswerError
from tidelog.model.coordinator_shards import ShardKind, shard_for
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import TRANSACTION_STATE_TOPIC, TopicPartition
from tidelog.wire.messages import (
    describe_producers,
    describe_transactions,
    find_coordinator,
    list_transactions,
)

PLACE = TopicPartition("t", 0)
NOW_MS = 1_000_000
LATE = PartitionProducer(PLACE, 7, 3, 0, NOW_MS - 901, 0, 12)
SHARDS = 2
OF_SHARD_1 = next(name for name in "abcdef" if shard_for(ShardKind.TRANSACTION, name, SHARDS).partition == 1)
"""A transactional id of the second shard."""
SHARD_1 = TopicPartition(TRANSACTION_STATE_TOPIC, 1)


@pytest.mark.parametrize(
    ("producer", "is_late"),
    [
        (LATE, True),
        (replace(LATE, last_timestamp_ms=NOW_MS - 900), False),
        (replace(LATE, start_offset=-1), False),
        (replace(LATE, start_offset=0), True),
    ],
)
def test_only_open_transactions_that_last_too_long_are_late(
    producer: PartitionProducer, is_late: bool
) -> None:
    assert late_producers([producer], NOW_MS, 900) == ([producer] if is_late else [])


def test_a_transaction_hangs_unless_its_coordinator_knows_the_partition() -> None:
    def known(*partitions: TopicPartition) -> dict[int, Transaction]:
        return {7: Transaction("id", 7, 3, "Ongoing", 900, 0, partitions)}

    assert unknown_to_coordinators([LATE], {}) == [LATE]
    assert unknown_to_coordinators([LATE], known(TopicPartition("t", 1))) == [LATE]
    assert unknown_to_coordinators([LATE], known(PLACE)) == []
    assert unknown_to_coordinators([LATE], {8: known(PLACE)[7]}) == [LATE]


def test_partitions_for_which_an_answer_had_no_room_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = SearchedCluster()
    cluster.places = dict.fromkeys(range(2), 1)
    asked: list[list[int]] = []

    def answer(broker_id: int, request: Any) -> Any:
        (topic,) = request.topics
        asked.append(topic.partition_indexes)
        first, *others = topic.partition_indexes
        producer = describe_producers.ProducerState(7 + first, 3, 0, 0, 0, 12)
        rows = [describe_producers.PartitionResponse(first, 0, None, [producer])]
        rows += [
            describe_producers.PartitionResponse(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for index in others
        ]
        return describe_producers.DescribeProducersResponse(
            topics=[describe_producers.TopicResponse("t", rows)]
        )

    monkeypatch.setattr(cluster, "_answer", answer)
    places = [TopicPartition("t", index) for index in range(2)]
    found = find_producers(cast("Any", cluster), places)
    assert [(producer.place, producer.producer_id) for producer in found] == [
        (place, 7 + place.partition) for place in places
    ]
    assert asked == [[0, 1], [1]]


class SearchedCluster:
    """Broker 1 leads t-0 and shard 0 of `__transaction_state`. Broker 2 leads shard 1, whose transaction of
    producer 7 has t-0. Producer 7 began long ago.
    """

    timeout_s = 0.0

    def __init__(self) -> None:
        self.shard_leaders = [1, 2]
        self.epochs = [0, 0]
        self.places = {0: 1}
        self.list_error = ErrorCode.NONE
        self.is_silent = False
        self.is_described = True
        self.moves_while_listing = False
        self.producer_id = 7

    def __enter__(self) -> SearchedCluster:
        return self

    def __exit__(self, *error: object) -> None: ...

    def describe(self) -> ClusterView:
        return ClusterView("c", 1, tuple(Broker(each, Address("h", 1), None) for each in (1, 2)))

    def topics(self, names: list[str] | None = None) -> dict[str, Topic]:
        def topic(name: str, leaders: dict[int, int], epochs: list[int]) -> Topic:
            rows = [
                Partition(index, leader, epochs[index], (1, 2), (1,), ()) for index, leader in leaders.items()
            ]
            return Topic(name, uuid.UUID(int=1), is_internal=False, partitions=tuple(rows))

        known = {
            "t": topic("t", self.places, [0, 0]),
            TRANSACTION_STATE_TOPIC: topic(
                TRANSACTION_STATE_TOPIC, dict(enumerate(self.shard_leaders)), self.epochs
            ),
        }
        return {name: found for name, found in known.items() if names is None or name in names}

    def any_broker(self) -> SimpleNamespace:
        return self.broker(1)

    def broker(self, broker_id: int) -> SimpleNamespace:
        return SimpleNamespace(call=lambda request, *_, **__: self._answer(broker_id, request))

    def _answer(self, broker_id: int, request: object) -> Any:
        match request:
            case describe_producers.DescribeProducersRequest():
                producer = describe_producers.ProducerState(7, 3, 0, 0, 0, 12)
                row = describe_producers.PartitionResponse(0, 0, None, [producer])
                return describe_producers.DescribeProducersResponse(
                    topics=[describe_producers.TopicResponse("t", [row])]
                )
            case list_transactions.ListTransactionsRequest():
                if broker_id == 2 and self.is_silent:
                    raise NoAnswerError("no answer")
                if broker_id == 2 and self.list_error:
                    return list_transactions.ListTransactionsResponse(error_code=self.list_error)
                if self.moves_while_listing:
                    self.shard_leaders[1], self.epochs[1] = 1, 1  # broker 1 was asked before, broker 2 after
                    return list_transactions.ListTransactionsResponse()
                rows = []
                if broker_id == self.shard_leaders[1]:
                    rows = [list_transactions.TransactionState(OF_SHARD_1, self.producer_id, "Ongoing")]
                return list_transactions.ListTransactionsResponse(transaction_states=rows)
            case find_coordinator.FindCoordinatorRequest():
                found = find_coordinator.Coordinator(OF_SHARD_1, 2, "h", 1)
                return find_coordinator.FindCoordinatorResponse(coordinators=[found])
            case describe_transactions.DescribeTransactionsRequest():
                if not self.is_described:
                    raise NoAnswerError("no answer")
                state = describe_transactions.TransactionState(
                    0, OF_SHARD_1, "Ongoing", 900, 0, 7, 3, [describe_transactions.TopicData("t", [0])]
                )
                return describe_transactions.DescribeTransactionsResponse(transaction_states=[state])
        raise AssertionError(request)

    def find(self) -> Any:
        return find_hanging(cast("Any", self), [PLACE], now_ms=NOW_MS, max_transaction_timeout_ms=900)

    def run(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
        monkeypatch.setattr(command, "connect", lambda *_: self)
        return CliRunner().invoke(main, ["transactions", "find-hanging", *arguments])


def test_a_search_that_read_every_shard_judges_all() -> None:
    cluster = SearchedCluster()
    assert cluster.find() == ((), (), ())
    cluster.producer_id = 8
    found = cluster.find()
    assert [each.producer_id for each in found.hanging] == [7]
    assert found.unjudged == found.unread_shards == ()


@pytest.mark.parametrize(
    "fault",
    [
        {"shard_leaders": [1, NO_LEADER]},
        {"shard_leaders": [1, 3]},
        {"is_silent": True},
        {"list_error": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
        {"is_described": False},
        {"moves_while_listing": True},
    ],
    ids=str,
)
def test_no_transaction_hangs_that_an_unread_shard_may_know(fault: dict[str, Any]) -> None:
    """An operator would abort a transaction that its coordinator is going to commit."""
    cluster = SearchedCluster()
    vars(cluster).update(fault)
    found = cluster.find()
    assert found.hanging == ()
    assert [each.place for each in found.unjudged] == [PLACE]
    assert found.unread_shards == (SHARD_1,)


def test_the_command_says_what_it_could_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SearchedCluster()
    done = cluster.run(monkeypatch)
    assert done.exit_code == 0 and "No transaction hangs in 3 partitions." in done.stderr
    cluster.shard_leaders[1] = NO_LEADER
    done = cluster.run(monkeypatch, "--topic", "t")
    assert done.exit_code == 1 and "No transaction hangs" not in done.output
    assert "producer 7 in t-0" in done.stderr and str(SHARD_1) in done.stderr
    assert len(done.stdout.splitlines()) == 1, "only the head of the table"


def test_the_command_names_partitions_that_it_could_not_search(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SearchedCluster()
    cluster.places[1] = NO_LEADER
    done = cluster.run(monkeypatch, "--topic", "t")
    assert done.exit_code == 1 and "t-1" in done.stderr
    assert "No transaction hangs in 1 partition." in done.stderr
