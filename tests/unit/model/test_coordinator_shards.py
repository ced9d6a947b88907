"""The shard of a name agrees with values of Java's `String.hashCode`."""

import pytest

from tidelog.model.coordinator_shards import ShardId, ShardKind, java_hash_code, shard_for


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


def test_the_hash_without_a_positive_counterpart_is_zero() -> None:
    assert shard_for(ShardKind.GROUP, "polygenelubricants", 50) == ShardId(ShardKind.GROUP, 0)


def test_a_shard_has_the_partition_of_its_topic() -> None:
    assert str(ShardId(ShardKind.TRANSACTION, 7).topic_partition) == "__transaction_state-7"
