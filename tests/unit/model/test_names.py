"""Names: of brokers, which are their ids in decimal, of topics, and those that select a coordinator's shard
as Java's `String.hashCode` does.
"""

from __future__ import annotations

import string
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterlab.controllers import Core
from tidelog.broker.handlers.configs import check_broker_name
from tidelog.controller.core.config_changes import incremental_alter_configs
from tidelog.model.brokers import MAX_BROKER_ID, parse_broker_id
from tidelog.model.coordinator_shards import (
    ShardId,
    ShardKind,
    ShareShards,
    java_hash_code,
    shard_for,
    share_partition_key,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import MAX_TOPIC_NAME_LENGTH, TopicPartition, collision_key, topic_name_problem
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

BROKER = 4
OTHER_FORMS = [
    "01",
    "001",
    "0" * 4000 + "1",
    "9" * 5000,
    "00",
    "+1",
    "-1",
    "-0",
    " 1",
    "1\n",
    "1_0",
    "\u0661",  # ARABIC-INDIC DIGIT ONE
    "\u00b2",  # SUPERSCRIPT TWO
    "1.0",
    str(MAX_BROKER_ID + 1),
]
LEGAL = string.ascii_letters + string.digits + "._-"


@given(st.integers(0, MAX_BROKER_ID))
def test_an_id_in_decimal_is_a_name(broker_id: int) -> None:
    assert parse_broker_id(str(broker_id)) == broker_id


@given(st.one_of(st.text(max_size=12), st.text("0123456789_+- ", max_size=12)))
def test_every_name_is_the_only_one_of_its_broker(name: str) -> None:
    found = parse_broker_id(name)
    assert found is None or str(found) == name


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_other_forms_are_refused(name: str) -> None:
    assert parse_broker_id(name) is None
    with pytest.raises(KafkaError) as raised:
        check_broker_name(name, 1)
    assert raised.value.code is ErrorCode.INVALID_REQUEST

    cluster = Core()
    change = AlterableConfig("log.retention.ms", 0, "5000")
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(BROKER, name, [change])])
    (response,) = cluster.request(incremental_alter_configs, request).responses
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert len(response.error_message or "") < 200
    assert not cluster.state.broker_configs


def test_the_default_and_existing_ids_are_names() -> None:
    check_broker_name("1", 1)
    cluster = Core()
    change = AlterableConfig("log.retention.ms", 0, "5000")
    request = IncrementalAlterConfigsRequest(
        [AlterConfigsResource(BROKER, name, [change]) for name in ("", "0", "1", str(MAX_BROKER_ID))]
    )
    assert {r.error_code for r in cluster.request(incremental_alter_configs, request).responses} == {0}


@given(
    st.text(LEGAL, min_size=1, max_size=MAX_TOPIC_NAME_LENGTH).filter(lambda name: name not in {".", ".."})
)
def test_names_of_legal_characters_are_legal(name: str) -> None:
    assert topic_name_problem(name) is None


@given(st.text(min_size=1, max_size=20), st.characters(exclude_characters=LEGAL), st.integers(0, 20))
def test_one_illegal_character_makes_a_name_illegal(name: str, other: str, position: int) -> None:
    assert topic_name_problem(name[:position] + other + name[position:]) is not None


@pytest.mark.parametrize("name", ["", ".", "..", "a" * (MAX_TOPIC_NAME_LENGTH + 1), "ok\n", "é"])
def test_illegal_names_are_explained(name: str) -> None:
    problem = topic_name_problem(name)
    assert problem is not None
    assert problem.startswith("Topic name is invalid")


def test_dots_and_underscores_collide() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c") != collision_key("a-b-c")


def test_a_partition_prints_as_its_directory() -> None:
    assert str(TopicPartition("my-topic", 12)) == "my-topic-12"


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
