"""The lag of groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.cluster import Partition, Topic
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.observe.cluster_reader import uncommitted_count
from tidelog.observe.lag import PartitionLag, lag_of, total_of

PLACE = TopicPartition("t", 0)
OFFSETS = st.none() | st.integers(0, 100)


def test_an_open_transaction_holds_back_only_the_stable_lag() -> None:
    lag = PartitionLag(4, high_watermark=10, last_stable_offset=6)
    assert (lag.lag, lag.stable_lag, lag.depends_on_isolation) == (6, 2, True)


@given(OFFSETS, OFFSETS, OFFSETS)
def test_only_a_commit_beyond_the_end_has_a_negative_lag_and_the_stable_one_is_not_greater(
    committed: int | None, end: int | None, stable: int | None
) -> None:
    def known(offset: int | None) -> dict[TopicPartition, int]:
        return {} if offset is None else {PLACE: offset}

    lag = lag_of(PLACE, known(committed), known(end), known(stable))
    assert (lag.lag is None) == (committed is None or end is None)
    if lag.lag is not None and lag.stable_lag is not None:
        assert min(lag.lag, 0) <= lag.stable_lag <= lag.lag
    if committed is not None and end is not None:
        assert lag.lag == end - committed


def test_a_commit_beyond_the_end_is_shown_as_kafka_shows_it() -> None:
    lag = PartitionLag(150, high_watermark=101, last_stable_offset=90)
    assert (lag.lag, lag.stable_lag) == (-49, -49)


def test_a_commit_behind_an_open_transaction_is_not_beyond_the_end() -> None:
    assert PartitionLag(8, high_watermark=10, last_stable_offset=6).stable_lag == 0


def test_partitions_without_a_commit_are_counted_in_the_topics_of_the_group() -> None:
    topics = {"t": topic("t", 4), "u": topic("u", 2), "of others": topic("of others", 1)}
    committed = {PLACE, TopicPartition("t", 2), TopicPartition("gone", 0)}
    assert uncommitted_count(topics, committed) == 2
    assert uncommitted_count(topics, committed, owned=[TopicPartition("u", 1)]) == 4


def topic(name: str, partition_count: int) -> Topic:
    partitions = tuple(Partition(index, 1, 0, (1,), (1,), ()) for index in range(partition_count))
    return Topic(name, ZERO_TOPIC_ID, False, partitions)


def test_a_total_leaves_out_unknown_lags_and_commits_beyond_the_end() -> None:
    assert total_of([6, None, 0, -49]) == 6
    assert total_of([None]) is None
    assert total_of([]) is None
