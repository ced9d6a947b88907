"""Keys map to the same partitions as in other clients of Kafka."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as oracle_murmur2

from tidelog.client.partitioners import murmur2, partition_for_key


@given(st.binary(max_size=100))
def test_the_hash_is_that_of_kafka_python(key: bytes) -> None:
    assert murmur2(key) == oracle_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 200))
def test_the_sign_bit_is_dropped_before_the_remainder(key: bytes, num_partitions: int) -> None:
    assert partition_for_key(key, num_partitions) == (oracle_murmur2(key) & 0x7FFFFFFF) % num_partitions
