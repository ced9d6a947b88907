"""Invalid admin requests, byte by byte, which proper clients never send: the responses are Apache Kafka
4.3's.

Unless a test states otherwise, each case also holds against Apache Kafka (TIDELOG_TEST_BOOTSTRAP names one).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from brokerlab.raw_client import RawClient

pytestmark = pytest.mark.integration
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE, APPEND = 0, 1, 2
NO_ERROR = ErrorCode.none


def unknown_name() -> str:
    return f"unknown-{uuid.uuid4().hex[:12]}"


def new_topic_request(name: str, **values: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    } | values


def create(raw: RawClient, *topics: dict[str, Any]) -> dict[str, ErrorCode]:
    answer = raw.call("create_topics", 7, topics=list(topics), timeout=10_000, validate_only=True)
    return {topic.name: topic.error_code for topic in answer.topics}


def test_topics_named_twice_or_reserved_are_not_created(raw: RawClient) -> None:
    twice, fine = unknown_name(), unknown_name()
    requests = [new_topic_request(name) for name in (twice, twice, fine, "__cluster_metadata")]
    assert create(raw, *requests) == {
        twice: ErrorCode.invalid_request,
        fine: NO_ERROR,
        "__cluster_metadata": ErrorCode.invalid_request,
    }


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"num_partitions": -2}, ErrorCode.invalid_partitions),
        ({"replication_factor": -2}, ErrorCode.invalid_replication_factor),
        ({"num_partitions": 2, "assignments": [(0, [1])]}, ErrorCode.invalid_request),
        ({"num_partitions": -1, "assignments": [(0, [1])]}, ErrorCode.invalid_request),
        ({"num_partitions": -1, "replication_factor": -1, "assignments": [(1, [1])]}, "assignment"),
        ({"num_partitions": -1, "replication_factor": -1, "assignments": [(0, [1, 1])]}, "assignment"),
        ({"num_partitions": -1, "replication_factor": -1, "assignments": [(0, [])]}, "assignment"),
        ({"num_partitions": -1, "replication_factor": -1, "assignments": [(0, [77])]}, "assignment"),
        ({"num_partitions": -1, "replication_factor": -1, "assignments": [(0, [1]), (0, [1])]}, "assignment"),
    ],
)
def test_topics_that_cannot_be_placed(raw: RawClient, values: dict[str, Any], code: Any) -> None:
    name = unknown_name()
    assignments = [
        {"partition_index": index, "broker_ids": replicas}
        for index, replicas in values.get("assignments", [])
    ]
    expected = ErrorCode.invalid_replica_assignment if code == "assignment" else code
    assert create(raw, new_topic_request(name, **values | {"assignments": assignments})) == {name: expected}


def test_topics_are_deleted_by_name_or_id_but_not_by_both_or_neither(raw: RawClient, topic: str) -> None:
    unknown = uuid.uuid4()
    topics = [
        {"name": None, "topic_id": unknown},
        {"name": topic, "topic_id": unknown},
        {"name": None, "topic_id": None},
    ]
    answer = raw.call("delete_topics", 6, topics=topics, timeout=1000)
    codes = {(result.name, result.topic_id): result.error_code for result in answer.responses}
    assert codes[None, unknown] == ErrorCode.unknown_topic_id
    assert codes[topic, unknown] == codes[None, None] == ErrorCode.invalid_request


def described(raw: RawClient, kind: int, name: str, keys: list[str] | None = None) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    answer = raw.call(
        "describe_configs", 4, resources=[resource], include_synonyms=True, include_documentation=True
    )
    return answer.results[0]


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "unknown-topic", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "", ErrorCode.invalid_topic_exception),
        (TOPIC, "b@d", ErrorCode.invalid_topic_exception),
        (BROKER, "77", ErrorCode.invalid_request),
        (BROKER, "x", ErrorCode.invalid_request),
        (BROKER, "", NO_ERROR),
        (BROKER_LOGGER, "77", ErrorCode.invalid_request),
        (BROKER_LOGGER, "", ErrorCode.invalid_request),
        (0, "x", ErrorCode.invalid_request),
        (99, "x", ErrorCode.invalid_request),
    ],
)
def test_resources_whose_settings_are_described(
    raw: RawClient, kind: int, name: str, code: ErrorCode
) -> None:
    assert described(raw, kind, name).error_code == code


def test_unknown_settings_are_omitted(raw: RawClient, topic: str) -> None:
    configs = described(raw, TOPIC, topic, ["segment.bytes", "no.such.setting"]).configs
    assert [config.name for config in configs] == ["segment.bytes"]


def incremental(
    raw: RawClient, *resources: tuple[int, str, list[tuple[str, int, str | None]]]
) -> list[ErrorCode]:
    wanted = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": n, "config_operation": o, "value": v} for n, o, v in changes],
        }
        for kind, name, changes in resources
    ]
    answer = raw.call("incremental_alter_configs", 1, resources=wanted, validate_only=True)
    return [response.error_code for response in answer.responses]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("retention.ms", SET, "5000")], NO_ERROR),
        ([("cleanup.policy", APPEND, "compact")], NO_ERROR),
        ([("retention.ms", SET, "x")], ErrorCode.invalid_config),
        ([("no.such.setting", SET, "x")], ErrorCode.invalid_config),
        ([("retention.ms", APPEND, "5000")], ErrorCode.invalid_config),
        ([("retention.ms", SET, None)], ErrorCode.invalid_request),
        ([("retention.ms", DELETE, None)], NO_ERROR),
        ([("retention.ms", SET, "5"), ("retention.ms", SET, "6")], ErrorCode.invalid_request),
        ([], NO_ERROR),
    ],
)
def test_changes_of_a_topics_settings(
    raw: RawClient, topic: str, changes: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    assert incremental(raw, (TOPIC, topic, changes)) == [code]


@pytest.mark.parametrize(
    ("kind", "name", "setting", "code"),
    [
        (TOPIC, "unknown-topic", "retention.ms", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "b@d", "retention.ms", ErrorCode.invalid_topic_exception),
        (BROKER, "77", "message.max.bytes", ErrorCode.invalid_request),
        (BROKER, "x", "message.max.bytes", ErrorCode.invalid_request),
        (BROKER, "", "message.max.bytes", NO_ERROR),
        (BROKER, "", "node.id", ErrorCode.invalid_request),
        (BROKER_LOGGER, "77", "root", ErrorCode.invalid_request),
        (0, "x", "x", ErrorCode.invalid_request),
        (99, "x", "x", ErrorCode.invalid_request),
    ],
)
def test_resources_whose_settings_are_changed(
    raw: RawClient, kind: int, name: str, setting: str, code: ErrorCode
) -> None:
    assert incremental(raw, (kind, name, [(setting, SET, "2000000")])) == [code]


def test_a_resource_named_twice_is_not_changed(raw: RawClient, topic: str) -> None:
    change = (TOPIC, topic, [("retention.ms", SET, "5000")])
    assert incremental(raw, change, change) == [ErrorCode.invalid_request] * 2


def test_delete_records_of_unknown_partitions(raw: RawClient, new_topic: Callable[..., str]) -> None:
    def delete(name: str, partition: int, offset: int) -> tuple[ErrorCode, int]:
        wanted = {"name": name, "partitions": [{"partition_index": partition, "offset": offset}]}
        answer = raw.call("delete_records", 2, topics=[wanted], timeout=1000)
        result = answer.topics[0].partitions[0]
        return result.error_code, result.low_watermark

    topic = new_topic()
    assert delete(topic, 0, -1) == (NO_ERROR, 0)
    assert delete(topic, 0, 5) == delete(topic, 0, -2) == (ErrorCode.offset_out_of_range, -1)
    assert delete(topic, 9, 0) == (ErrorCode.unknown_topic_or_partition, -1)
    assert delete(unknown_name(), 0, 0) == (ErrorCode.unknown_topic_or_partition, -1)
    assert delete(new_topic(cleanup_policy="compact"), 0, -1) == (ErrorCode.policy_violation, -1)


def test_where_leader_epochs_end(raw: RawClient, topic: str) -> None:
    def end(epoch: int, current: int = -1, partition: int = 0) -> tuple[ErrorCode, int, int]:
        asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        answer = raw.call("offset_for_leader_epoch", 4, topics=[{"topic": topic, "partitions": [asked]}])
        result = answer.topics[0].partitions[0]
        return result.error_code, result.leader_epoch, result.end_offset

    assert end(0) == end(0, current=0) == (NO_ERROR, 0, 0)
    assert end(-1) == end(7) == (NO_ERROR, -1, -1)
    assert end(0, current=5) == (ErrorCode.unknown_leader_epoch, -1, -1)
    assert end(0, partition=9) == (ErrorCode.unknown_topic_or_partition, -1, -1)


def test_pages_of_topic_partitions(raw: RawClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)

    def page(limit: int, cursor: tuple[str, int] | None = None) -> tuple[ErrorCode, list[int], Any]:
        asked = {"topic_name": cursor[0], "partition_index": cursor[1]} if cursor else None
        answer = raw.call(
            "describe_topic_partitions",
            0,
            topics=[{"name": topic}],
            response_partition_limit=limit,
            cursor=asked,
        )
        (found,) = answer.topics
        following = answer.next_cursor
        indexes = [partition.partition_index for partition in found.partitions]
        return found.error_code, indexes, following and (following.topic_name, following.partition_index)

    assert page(2) == (NO_ERROR, [0, 1], (topic, 2))
    assert page(2, (topic, 2)) == (NO_ERROR, [2], None)
    assert page(0) == (NO_ERROR, [0], (topic, 1))
    assert page(2, (topic, 7)) == (NO_ERROR, [], None)
    assert page(2, (topic, -1)) == page(2, (topic + "x", 0)) == (ErrorCode.invalid_request, [], None)


def test_unnecessary_and_impossible_elections(raw: RawClient, topic: str) -> None:
    unknown = unknown_name()
    wanted = [{"topic": topic, "partitions": [0, 9]}, {"topic": unknown, "partitions": [0]}]
    answer = raw.call("elect_leaders", 2, election_type=0, topic_partitions=wanted, timeout=1000)
    codes = {
        (result.topic, partition.partition_id): partition.error_code
        for result in answer.replica_election_results
        for partition in result.partition_result
    }
    assert codes == {
        (topic, 0): ErrorCode.election_not_needed,
        (topic, 9): ErrorCode.unknown_topic_or_partition,
        (unknown, 0): ErrorCode.unknown_topic_or_partition,
    }
    of_no_type = raw.call("elect_leaders", 2, election_type=9, topic_partitions=None, timeout=1000)
    assert of_no_type.error_code == ErrorCode.invalid_request


def test_ineffective_and_impossible_reassignments(raw: RawClient, new_topic: Callable[..., str]) -> None:
    topic, unknown = new_topic(3), unknown_name()
    (own,) = raw.call("describe_cluster", 0, include_cluster_authorized_operations=False).brokers
    partitions = [(0, [own.broker_id]), (1, None), (2, [77]), (5, [own.broker_id])]
    topics = [
        {"name": name, "partitions": [{"partition_index": i, "replicas": r} for i, r in parts]}
        for name, parts in ((topic, partitions), (unknown, [(0, [own.broker_id])]))
    ]
    answer = raw.call("alter_partition_reassignments", 1, timeout=1000, topics=topics)
    codes = {(t.name, p.partition_index): p.error_code for t in answer.responses for p in t.partitions}
    assert codes == {
        (topic, 0): NO_ERROR,
        (topic, 1): ErrorCode.no_reassignment_in_progress,
        (topic, 2): ErrorCode.invalid_replica_assignment,
        (topic, 5): ErrorCode.unknown_topic_or_partition,
        (unknown, 0): ErrorCode.unknown_topic_or_partition,
    }
    assert raw.call("list_partition_reassignments", 0, timeout=1000, topics=None).topics == ()


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("user", 2, None)], NO_ERROR),
        ([("bogus", 2, None)], ErrorCode.unsupported_version),
        ([("user", 7, None)], ErrorCode.invalid_request),
        ([("user", 0, None)], ErrorCode.invalid_request),
        ([("user", 1, "x")], ErrorCode.invalid_request),
        ([("", 1, None)], ErrorCode.invalid_request),
        ([("user", 2, None), ("user", 2, None)], ErrorCode.invalid_request),
        ([("user", 2, None), ("ip", 2, None)], ErrorCode.invalid_request),
    ],
)
def test_filters_of_quotas(
    raw: RawClient, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    wanted = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    answer = raw.call("describe_client_quotas", 1, components=wanted, strict=False)
    assert (answer.error_code, answer.entries is None) == (code, code != NO_ERROR)


def test_only_brokers_are_described(raw: RawClient) -> None:
    def code(endpoint_type: int) -> ErrorCode:
        answer = raw.call(
            "describe_cluster", 1, include_cluster_authorized_operations=False, endpoint_type=endpoint_type
        )
        result: ErrorCode = answer.error_code
        return result

    assert code(1) == NO_ERROR
    assert code(2) == ErrorCode.mismatched_endpoint_type
    assert code(3) == ErrorCode.unsupported_endpoint_type


def test_replicas_do_not_move_to_missing_directories(raw: RawClient, topic: str) -> None:
    (directory,) = raw.call("describe_log_dirs", 5, topics=[]).results

    def move(path: str, partition: int) -> ErrorCode:
        wanted = {"path": path, "topics": [{"name": topic, "partitions": [partition]}]}
        answer = raw.call("alter_replica_log_dirs", 2, dirs=[wanted])
        code: ErrorCode = answer.results[0].partitions[0].error_code
        return code

    assert move("/no/such/directory", 0) == ErrorCode.log_dir_not_found
    assert move(directory.log_dir, 0) == NO_ERROR
    assert move(directory.log_dir, 9) == ErrorCode.unknown_topic_or_partition


def test_config_resources_by_type(raw: RawClient, topic: str) -> None:
    def listed(*types: int) -> Any:
        return raw.call("list_config_resources", 1, resource_types=list(types))

    names = {(resource.resource_name, resource.resource_type) for resource in listed().config_resources}
    assert (topic, TOPIC) in names
    assert {BROKER, BROKER_LOGGER} <= {kind for _, kind in names}
    assert {resource.resource_type for resource in listed(TOPIC).config_resources} == {TOPIC}
    assert listed(0).error_code == ErrorCode.unsupported_version


def test_sasl_on_a_plaintext_listener(raw: RawClient) -> None:
    assert raw.call("sasl_handshake", 1, mechanism="PLAIN").error_code == ErrorCode.illegal_sasl_state
