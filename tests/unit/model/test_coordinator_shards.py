"""The shard of a name agrees with values of Java's `String.hashCode`."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.coordinator_shards import (
    ShardId,
    ShardKind,
    ShareShards,
    java_hash_code,
    shard_for,
    share_partition_key,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(1 << 31)),
        ("\N{GRINNING FACE}", 1772899),
    ],
)
def test_hash_code_is_javas(text: str, expected: int) -> None:
    assert java_hash_code(text) == expected


@given(st.text(st.characters(), max_size=600))
def test_hash_code_is_the_sum_over_utf_16_units(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (code * 31 + high * 256 + low) % 2**32
    assert java_hash_code(text) % 2**32 == code
    assert -(2**31) <= java_hash_code(text) < 2**31


def test_the_hash_without_a_positive_counterpart_is_zero() -> None:
    assert shard_for(ShardKind.GROUP, "polygenelubricants", 50) == ShardId(ShardKind.GROUP, 0)


def test_a_shard_has_the_partition_of_its_topic() -> None:
    assert str(ShardId(ShardKind.TRANSACTION, 7).topic_partition) == "__transaction_state-7"


@given(st.text(st.characters(), max_size=600), st.uuids(), st.integers(0, 2**31 - 1))
def test_the_shards_of_a_share_group_are_those_of_the_keys(
    group_id: str, topic_id: UUID, partition: int
) -> None:
    key = share_partition_key(group_id, topic_id, partition)
    found = ShareShards(group_id).shard_for(topic_id, partition, 50)
    assert found == shard_for(ShardKind.SHARE, key, 50)
