"""Keys map to the same partitions as in other clients of Kafka, and partitioners are chosen by name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as oracle_murmur2

from tidelog.client.partitioners import (
    HotDataPartitioner,
    RoundRobin,
    by_key,
    murmur2,
    partition_for_key,
    sticky,
)

KEYS = st.binary(max_size=20)
COUNTS = st.integers(1, 20)


@given(st.binary(max_size=100))
def test_the_hash_is_that_of_kafka_python(key: bytes) -> None:
    assert murmur2(key) == oracle_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 200))
def test_the_sign_bit_is_dropped_before_the_remainder(key: bytes, num_partitions: int) -> None:
    assert partition_for_key(key, num_partitions) == (oracle_murmur2(key) & 0x7FFFFFFF) % num_partitions


@given(KEYS, COUNTS)
def test_keys_go_where_kafkas_clients_send_them(key: bytes, count: int) -> None:
    assert by_key("t", key, None, count) == partition_for_key(key, count)
    assert by_key("t", None, b"v", count) is None
    assert sticky("t", key, b"v", count) is None


@given(KEYS, KEYS, COUNTS)
def test_hot_data_has_the_last_partition_for_itself(before: bytes, after: bytes, count: int) -> None:
    choose = HotDataPartitioner()
    assert choose("t", before + b"hot_data" + after, None, count) == count - 1
    found = choose("t", before.replace(b"hot", b"cold"), None, count)
    assert found is None if count == 1 else found is not None and 0 <= found < count - 1


def test_round_robin_takes_turns_in_each_topic() -> None:
    choose = RoundRobin()
    assert [choose("a", b"k", None, 3) for _ in range(4)] == [0, 1, 2, 0]
    assert choose("b", None, None, 3) == 0
