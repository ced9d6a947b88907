"""Requests that describe and change the cluster: topics, settings, quotas, ACLs, replicas and features."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from answerslab.question import CUT, MISSING, OTHER, TOPIC, UNKNOWN_ID, Case, Cases, Fields, Scene
from tidelog.wire.api_keys import ApiKey

Maker = Callable[[Scene], Fields]
BROKER_ID = "1"
TOPIC_RESOURCE, BROKER, LOGGER, METRICS, GROUP_RESOURCE = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
KEYS = ["cleanup.policy", "max.message.bytes", "segment.ms"]
SCRAM_SHA_256 = 1
NEWEST = 1
"""The newest version of IncrementalAlterConfigs."""
OF_OTHER_GROUPS = ("group.share.", "group.streams.", "share.")
"""Settings of share and streams groups are compared when tidelog has them."""
KAFKA_SETTINGS = Path(__file__).parents[1] / "unit" / "settings" / "kafka_settings.json"
"""Kafka's own definitions of its settings."""


def _create(topic: str | None = None, of_request: Fields | None = None, **fields: Any) -> Maker:
    def make(scene: Scene) -> Fields:
        name = f"answers-made-{scene.tag}" if topic is None else topic
        made = {"name": name, "num_partitions": 1, "replication_factor": 1, **fields}
        return {"topics": [made], "timeout_ms": 10_000, **(of_request or {})}

    return make


def _delete(topic: str | None = None) -> Maker:
    def make(scene: Scene) -> Fields:
        name = f"answers-gone-{scene.tag}" if topic is None else topic
        return {"topics": [{"name": name}], "topic_names": [name], "timeout_ms": 10_000}

    return make


def _partitions(topic: str = OTHER, count: int = 3, assignments: Any = None) -> Fields:
    made = {"name": topic, "count": count, "assignments": assignments}
    return {"topics": [made], "timeout_ms": 10_000, "validate_only": True}


def _describe(kind: int, name: str, keys: list[str] | None = None, **fields: Any) -> Fields:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or KEYS}
    return {"resources": [resource], **fields}


def _alter(kind: int, name: str, *configs: tuple[str, str | None], is_checked: bool = True) -> Fields:
    changes = [{"name": setting, "value": value} for setting, value in configs]
    resource = {"resource_type": kind, "resource_name": name, "configs": changes}
    return {"resources": [resource], "validate_only": is_checked}


def _change(kind: int, name: str, *configs: tuple[str, int, str | None], is_checked: bool = True) -> Fields:
    changes = [{"name": s, "config_operation": operation, "value": v} for s, operation, v in configs]
    resource = {"resource_type": kind, "resource_name": name, "configs": changes}
    return {"resources": [resource], "validate_only": is_checked}


def _move(path: str | None, topic: str = OTHER, partition: int = 0) -> Maker:
    return lambda scene: {
        "dirs": [
            {
                "path": scene.log_dir if path is None else path,
                "topics": [{"name": topic, "partitions": [partition]}],
            }
        ]
    }


def _elect(election_type: int = 0, topic: str = OTHER, partition: int = 0) -> Fields:
    parts = [{"topic": topic, "partitions": [partition]}]
    return {"election_type": election_type, "topic_partitions": parts, "timeout_ms": 5000}


def _reassign(replicas: list[int] | None, topic: str = OTHER, partition: int = 0, **fields: Any) -> Fields:
    parts = [{"partition_index": partition, "replicas": replicas}]
    return {"topics": [{"name": topic, "partitions": parts}], "timeout_ms": 5000, **fields}


def _acl(**fields: Any) -> Fields:
    valid = {
        "resource_type": 2,
        "resource_name": "answers-acl",
        "resource_pattern_type": 3,
        "principal": "User:answers",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return {"creations": [valid | fields]}


def _acl_filter(**fields: Any) -> Fields:
    valid = {
        "resource_type_filter": 2,
        "resource_name_filter": "answers-acl-none",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return valid | fields


def _quota(*entity: tuple[str, str | None], key: str = "producer_byte_rate", value: float = 1000.0) -> Fields:
    names = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
    return {"entries": [{"entity": names, "ops": [{"key": key, "value": value}]}], "validate_only": True}


def _quota_filter(kind: str, match_type: int = 0, match: str | None = "nobody") -> Fields:
    return {"components": [{"entity_type": kind, "match_type": match_type, "match": match}]}


def _scram(**fields: Any) -> Fields:
    valid = {
        "name": "answers-user",
        "mechanism": SCRAM_SHA_256,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": b"p" * 32,
    }
    return {"upsertions": [valid | fields]}


def _feature(name: str, level: int, **fields: Any) -> Fields:
    update = {"feature": name, "max_version_level": level, **fields}
    return {"feature_updates": [update], "validate_only": True, "timeout_ms": 5000}


def _dynamic_settings() -> tuple[Case, ...]:
    """Returns the requests that change each dynamic setting of Kafka's brokers, only checked."""
    cases = []
    for name, row in json.loads(KAFKA_SETTINGS.read_text())["broker"].items():
        mode = row.get("update_mode", "read-only")
        if mode != "read-only" and row["type"] != "PASSWORD" and not name.startswith(OF_OTHER_GROUPS):
            broker = "" if mode == "cluster-wide" else BROKER_ID
            value = row.get("default", "100000")
            cases.append(Case(f"dynamic {name}", _change(BROKER, broker, (name, SET, value)), NEWEST))
    return tuple(cases)


TOKEN_OWNER = {"principal_type": "User", "principal_name": "answers"}

CASES: Cases = {
    ApiKey.API_VERSIONS: (
        Case("valid", {"client_software_name": "answers", "client_software_version": "1"}),
        Case("invalid name", {"client_software_name": "a b!", "client_software_version": "1"}, 3),
        Case("empty name", {"client_software_version": "1"}, 3),
    ),
    ApiKey.SASL_HANDSHAKE: (Case("valid", {"mechanism": "PLAIN"}),),
    ApiKey.SASL_AUTHENTICATE: (Case("valid", {"auth_bytes": b"x"}),),
    ApiKey.CREATE_TOPICS: (
        Case("valid", _create()),
        Case("only checked", _create("answers-checked", of_request={"validate_only": True})),
        Case("topic that exists", _create(TOPIC)),
        Case("topic that exists, only checked", _create(TOPIC, of_request={"validate_only": True})),
        Case("invalid name", _create("not a name!")),
        Case("empty name", _create("")),
        Case("long name", _create("x" * 250)),
        Case("name that collides", _create("answers_t")),
        Case("no partitions", _create(num_partitions=0)),
        Case("negative partitions", _create(num_partitions=-2)),
        Case("default counts, only checked", _create(num_partitions=-1, replication_factor=-1), 4),
        Case("default counts before version 4", _create(num_partitions=-1, replication_factor=-1), 0, 3),
        Case("too many replicas", _create(replication_factor=5)),
        Case("no replicas", _create(replication_factor=0)),
        Case("unknown setting", _create(configs=[{"name": "no.such.setting", "value": "1"}])),
        Case("invalid value", _create(configs=[{"name": "retention.ms", "value": "x"}])),
        Case("null value", _create(configs=[{"name": "retention.ms", "value": None}])),
        Case(
            "with a setting, only checked",
            _create(
                "answers-checked",
                of_request={"validate_only": True},
                configs=[{"name": "segment.ms", "value": "5"}],
            ),
        ),
        Case(
            "unknown broker",
            _create(
                num_partitions=-1,
                replication_factor=-1,
                assignments=[{"partition_index": 0, "broker_ids": [99]}],
            ),
        ),
        Case("assignment and counts", _create(assignments=[{"partition_index": 0, "broker_ids": [1]}])),
        Case(
            "assignment with a gap",
            _create(
                num_partitions=-1,
                replication_factor=-1,
                assignments=[{"partition_index": 3, "broker_ids": [1]}],
            ),
        ),
        Case(
            "a replica twice",
            _create(
                num_partitions=-1,
                replication_factor=-1,
                assignments=[{"partition_index": 0, "broker_ids": [1, 1]}],
            ),
        ),
        Case(
            "a topic twice",
            {
                "topics": [
                    {"name": "answers-twice", "num_partitions": 1, "replication_factor": 1},
                    {"name": "answers-twice", "num_partitions": 1, "replication_factor": 1},
                ],
                "timeout_ms": 5000,
            },
        ),
        Case("internal topic", _create("__consumer_offsets")),
        Case("no topics", {"topics": [], "timeout_ms": 5000}),
    ),
    ApiKey.DELETE_TOPICS: (
        Case("valid", _delete()),
        Case("unknown topic", _delete(MISSING)),
        Case("invalid name", _delete("not a name!")),
        Case(
            "unknown id",
            {"topics": [{"name": None, "topic_id": UNKNOWN_ID}], "timeout_ms": 5000},
            6,
        ),
        Case(
            "id and name",
            lambda scene: {
                "topics": [{"name": OTHER, "topic_id": scene.id_of(OTHER)}],
                "timeout_ms": 5000,
            },
            6,
        ),
        Case("neither id nor name", {"topics": [{"name": None}], "timeout_ms": 5000}, 6),
        Case(
            "a topic twice",
            {
                "topics": [{"name": MISSING}, {"name": MISSING}],
                "topic_names": [MISSING, MISSING],
                "timeout_ms": 5000,
            },
        ),
        Case("no topics", {"topics": [], "timeout_ms": 5000}),
    ),
    ApiKey.CREATE_PARTITIONS: (
        Case("valid", _partitions()),
        Case("fewer", _partitions(count=0)),
        Case("as many", _partitions(count=1)),
        Case("negative", _partitions(count=-1)),
        Case("unknown topic", _partitions(MISSING)),
        Case("assigned", _partitions(count=2, assignments=[{"broker_ids": [1]}])),
        Case("unknown broker", _partitions(count=2, assignments=[{"broker_ids": [99]}])),
        Case("too few assignments", _partitions(count=3, assignments=[{"broker_ids": [1]}])),
        Case("a replica twice", _partitions(count=2, assignments=[{"broker_ids": [1, 1]}])),
        Case("empty assignment", _partitions(count=2, assignments=[{"broker_ids": []}])),
        Case(
            "a topic twice",
            {
                "topics": [{"name": OTHER, "count": 3, "assignments": None}] * 2,
                "timeout_ms": 5000,
                "validate_only": True,
            },
        ),
        Case("no topics", {"topics": [], "timeout_ms": 5000}),
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        Case("valid", _describe(TOPIC_RESOURCE, OTHER)),
        Case("with synonyms", _describe(TOPIC_RESOURCE, OTHER, include_synonyms=True)),
        Case("with documentation", _describe(TOPIC_RESOURCE, OTHER, include_documentation=True), 3),
        Case("unknown setting", _describe(TOPIC_RESOURCE, OTHER, ["no.such.setting"])),
        Case("min.insync.replicas", _describe(TOPIC_RESOURCE, OTHER, ["min.insync.replicas"])),
        Case("unknown topic", _describe(TOPIC_RESOURCE, MISSING)),
        Case("invalid name", _describe(TOPIC_RESOURCE, "not a name!")),
        Case("empty name", _describe(TOPIC_RESOURCE, "")),
        Case("broker", _describe(BROKER, BROKER_ID, ["log.retention.hours", "log.cleaner.threads"])),
        Case(
            "broker with synonyms",
            _describe(BROKER, BROKER_ID, ["log.retention.hours"], include_synonyms=True),
        ),
        Case("all brokers", _describe(BROKER, "", ["log.retention.hours"])),
        Case("unknown broker", _describe(BROKER, "99")),
        Case("broker that is not a number", _describe(BROKER, "x")),
        Case("loggers of an unknown broker", _describe(LOGGER, "99")),
        Case("unknown logger", _describe(LOGGER, BROKER_ID, ["no.such.logger"])),
        Case("resource that does not exist", _describe(99, "x")),
        Case("unknown resource", _describe(0, "x")),
        Case("no resources", {"resources": []}),
    ),
    ApiKey.ALTER_CONFIGS: (
        Case("valid", _alter(TOPIC_RESOURCE, OTHER, ("retention.ms", "5000"))),
        Case("no settings", _alter(TOPIC_RESOURCE, OTHER)),
        Case("unknown topic", _alter(TOPIC_RESOURCE, MISSING, ("retention.ms", "5000"))),
        Case("invalid name", _alter(TOPIC_RESOURCE, "not a name!", ("retention.ms", "5000"))),
        Case("invalid value", _alter(TOPIC_RESOURCE, OTHER, ("retention.ms", "x"))),
        Case("null value", _alter(TOPIC_RESOURCE, OTHER, ("retention.ms", None))),
        Case("unknown setting", _alter(TOPIC_RESOURCE, OTHER, ("no.such.setting", "1"))),
        Case("a setting twice", _alter(TOPIC_RESOURCE, OTHER, ("retention.ms", "5"), ("retention.ms", "6"))),
        Case("all brokers", _alter(BROKER, "", ("log.cleaner.threads", "1"))),
        Case("broker", _alter(BROKER, BROKER_ID, ("log.cleaner.threads", "1"))),
        Case("unknown broker", _alter(BROKER, "99", ("log.cleaner.threads", "1"))),
        Case("broker that is not a number", _alter(BROKER, "x", ("log.cleaner.threads", "1"))),
        Case("setting that cannot change", _alter(BROKER, BROKER_ID, ("num.partitions", "2"))),
        Case("loggers", _alter(LOGGER, BROKER_ID, ("root", "INFO"))),
        Case("resource that does not exist", _alter(99, "x", ("a", "b"))),
        Case("no resources", {"resources": [], "validate_only": True}),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        Case("valid", _change(TOPIC_RESOURCE, OTHER, ("retention.ms", SET, "5000"))),
        Case("delete", _change(TOPIC_RESOURCE, OTHER, ("retention.ms", DELETE, None))),
        Case("append", _change(TOPIC_RESOURCE, OTHER, ("cleanup.policy", APPEND, "compact"))),
        Case("append what is there", _change(TOPIC_RESOURCE, OTHER, ("cleanup.policy", APPEND, "delete"))),
        Case("append an invalid value", _change(TOPIC_RESOURCE, OTHER, ("cleanup.policy", APPEND, "x"))),
        Case("subtract", _change(TOPIC_RESOURCE, OTHER, ("cleanup.policy", SUBTRACT, "delete"))),
        Case("subtract what is not there", _change(TOPIC_RESOURCE, OTHER, ("cleanup.policy", SUBTRACT, "x"))),
        Case("append to a number", _change(TOPIC_RESOURCE, OTHER, ("retention.ms", APPEND, "5"))),
        Case("subtract from a number", _change(TOPIC_RESOURCE, OTHER, ("retention.ms", SUBTRACT, "5"))),
        Case("operation that does not exist", _change(TOPIC_RESOURCE, OTHER, ("retention.ms", 9, "5"))),
        Case("null value", _change(TOPIC_RESOURCE, OTHER, ("retention.ms", SET, None))),
        Case("unknown topic", _change(TOPIC_RESOURCE, MISSING, ("retention.ms", SET, "5000"))),
        Case("invalid value", _change(TOPIC_RESOURCE, OTHER, ("retention.ms", SET, "x"))),
        Case("unknown setting", _change(TOPIC_RESOURCE, OTHER, ("no.such.setting", SET, "1"))),
        Case(
            "a setting twice",
            _change(TOPIC_RESOURCE, OTHER, ("retention.ms", SET, "5"), ("retention.ms", DELETE, None)),
        ),
        Case("all brokers", _change(BROKER, "", ("log.cleaner.threads", SET, "1"))),
        Case("broker", _change(BROKER, BROKER_ID, ("log.cleaner.threads", SET, "1"))),
        Case("listeners of all brokers", _change(BROKER, "", ("ssl.keystore.location", SET, "/x"))),
        Case("unknown broker", _change(BROKER, "99", ("log.cleaner.threads", SET, "1"))),
        Case("setting that cannot change", _change(BROKER, BROKER_ID, ("num.partitions", SET, "2"))),
        Case(
            "append, not only checked",
            _change(TOPIC_RESOURCE, CUT, ("cleanup.policy", APPEND, "compact"), is_checked=False),
        ),
        Case(
            "broker, not only checked",
            _change(BROKER, BROKER_ID, ("log.cleaner.backoff.ms", SET, "15001"), is_checked=False),
        ),
        Case(
            "all brokers, not only checked",
            _change(BROKER, "", ("log.cleaner.backoff.ms", SET, "15002"), is_checked=False),
        ),
        Case("loggers of an unknown broker", _change(LOGGER, "99", ("root", SET, "INFO"))),
        Case("unknown log level", _change(LOGGER, BROKER_ID, ("root", SET, "LOUD"))),
        Case("append to a log level", _change(LOGGER, BROKER_ID, ("root", APPEND, "INFO"))),
        Case("resource that does not exist", _change(99, "x", ("a", SET, "b"))),
        Case("no resources", {"resources": [], "validate_only": True}),
        *_dynamic_settings(),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        Case("valid", _move(None)),
        Case("unknown directory", _move("/nowhere")),
        Case("relative path", _move("nowhere")),
        Case("unknown topic", _move(None, MISSING)),
        Case("unknown topic, unknown directory", _move("/nowhere", MISSING)),
        Case("unknown partition", _move(None, OTHER, 9)),
        Case("no directories", {"dirs": []}),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        Case("valid", {"topics": [{"topic": OTHER, "partitions": [0]}]}),
        Case("unknown topic", {"topics": [{"topic": MISSING, "partitions": [0]}]}),
        Case("no topics", {"topics": []}),
    ),
    ApiKey.ELECT_LEADERS: (
        Case("valid", _elect()),
        Case("unclean", _elect(1)),
        Case("type that does not exist", _elect(9), 1),
        Case("unknown topic", _elect(0, MISSING)),
        Case("unknown partition", _elect(0, OTHER, 9)),
        Case("no partitions", {"topic_partitions": [], "timeout_ms": 5000}),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        Case("valid", _reassign([1])),
        Case("nothing to cancel", _reassign(None)),
        Case("unknown broker", _reassign([99])),
        Case("no replicas", _reassign([])),
        Case("a replica twice", _reassign([1, 1])),
        Case("negative broker", _reassign([-1])),
        Case("unknown topic", _reassign([1], MISSING)),
        Case("unknown partition", _reassign([1], OTHER, 9)),
        Case(
            "other number of replicas",
            _reassign([1], allow_replication_factor_change=False),
            1,
        ),
        Case("no topics", {"topics": [], "timeout_ms": 5000}),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        Case("valid", {"topics": [{"name": OTHER, "partition_indexes": [0]}], "timeout_ms": 5000}),
        Case("all", {"topics": None, "timeout_ms": 5000}),
        Case("unknown topic", {"topics": [{"name": MISSING, "partition_indexes": [0]}], "timeout_ms": 5000}),
        Case("no topics", {"topics": [], "timeout_ms": 5000}),
    ),
    ApiKey.DESCRIBE_ACLS: (
        Case("valid", _acl_filter()),
        Case("unknown type", _acl_filter(resource_type_filter=0)),
        Case("type that does not exist", _acl_filter(resource_type_filter=99)),
        Case("unknown pattern", _acl_filter(pattern_type_filter=0)),
        Case("any pattern", _acl_filter(pattern_type_filter=1)),
        Case("matching pattern", _acl_filter(pattern_type_filter=2, resource_name_filter="zzz")),
        Case("unknown operation", _acl_filter(operation=0)),
        Case("unknown permission", _acl_filter(permission_type=0)),
        Case("invalid principal", _acl_filter(principal_filter="nobody")),
    ),
    ApiKey.CREATE_ACLS: (
        Case("valid", _acl()),
        Case("unknown type", _acl(resource_type=0)),
        Case("any type", _acl(resource_type=1)),
        Case("any pattern", _acl(resource_pattern_type=1)),
        Case("matching pattern", _acl(resource_pattern_type=2)),
        Case("any operation", _acl(operation=1)),
        Case("operation that the type does not have", _acl(operation=12)),
        Case("any permission", _acl(permission_type=1)),
        Case("invalid principal", _acl(principal="nobody")),
        Case("empty principal", _acl(principal="")),
        Case("empty host", _acl(host="")),
        Case("empty name", _acl(resource_name="")),
        Case("cluster with another name", _acl(resource_type=4)),
        Case("no ACLs", {"creations": []}),
    ),
    ApiKey.DELETE_ACLS: (
        Case("valid", {"filters": [_acl_filter()]}),
        Case("unknown type", {"filters": [_acl_filter(resource_type_filter=0)]}),
        Case("unknown operation", {"filters": [_acl_filter(operation=0)]}),
        Case("no filters", {"filters": []}),
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: (
        Case(
            "valid",
            {
                "owner_principal_type": None,
                "owner_principal_name": None,
                "renewers": [TOKEN_OWNER],
                "max_lifetime_ms": 5000,
            },
        ),
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: (Case("valid", {"hmac": b"x", "renew_period_ms": 5000}),),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (Case("valid", {"hmac": b"x", "expiry_time_period_ms": 5000}),),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (
        Case("valid", {"owners": [TOKEN_OWNER]}),
        Case("all", {"owners": None}),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (
        Case("valid", _quota_filter("user")),
        Case("default", _quota_filter("user", 1, None)),
        Case("any", _quota_filter("client-id", 2, None)),
        Case("type that does not exist", _quota_filter("nothing")),
        Case("empty type", _quota_filter("")),
        Case("match that does not exist", _quota_filter("user", 9)),
        Case("exact match of nothing", _quota_filter("user", 0, None)),
        Case(
            "a type twice",
            {"components": [{"entity_type": "user", "match_type": 2, "match": None}] * 2},
        ),
        Case(
            "addresses and users",
            {
                "components": [
                    {"entity_type": kind, "match_type": 2, "match": None} for kind in ("ip", "user")
                ]
            },
        ),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        Case("valid", _quota(("user", "answers"))),
        Case("default", _quota(("user", None))),
        Case("user and client", _quota(("user", "answers"), ("client-id", "c"))),
        Case("empty entity", _quota()),
        Case("type that does not exist", _quota(("nothing", "x"))),
        Case("a type twice", _quota(("user", "a"), ("user", "b"))),
        Case("empty name", _quota(("user", ""))),
        Case("quota that does not exist", _quota(("user", "a"), key="nothing")),
        Case("negative quota", _quota(("user", "a"), value=-5.0)),
        Case("zero", _quota(("user", "a"), value=0.0)),
        Case("fraction of bytes", _quota(("user", "a"), value=10.5)),
        Case("address", _quota(("ip", "10.1.2.3"), key="connection_creation_rate")),
        Case("name that no address has", _quota(("ip", "no address"), key="connection_creation_rate")),
        Case("byte rate of an address", _quota(("ip", "10.1.2.3"))),
        Case("address and user", _quota(("ip", "10.1.2.3"), ("user", "a"))),
        Case("no entries", {"entries": [], "validate_only": True}),
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        Case("valid", {"users": [{"name": "nobody"}]}),
        Case("a user twice", {"users": [{"name": "nobody"}, {"name": "nobody"}]}),
        Case("empty name", {"users": [{"name": ""}]}),
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        Case("valid", _scram()),
        Case("few iterations", _scram(iterations=5)),
        Case("many iterations", _scram(iterations=2_000_000)),
        Case("mechanism that does not exist", _scram(mechanism=9)),
        Case("unknown mechanism", _scram(mechanism=0)),
        Case("empty name", _scram(name="")),
        Case("unknown user", {"deletions": [{"name": "nobody", "mechanism": SCRAM_SHA_256}]}),
        Case(
            "a user twice",
            {"deletions": [{"name": "nobody", "mechanism": SCRAM_SHA_256}] * 2},
        ),
        Case("no changes", {}),
    ),
    ApiKey.DESCRIBE_QUORUM: (
        Case("valid", {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{}]}]}),
        Case("another topic", {"topics": [{"topic_name": OTHER, "partitions": [{}]}]}),
        Case("no topics", {"topics": []}),
    ),
    ApiKey.UPDATE_FEATURES: (
        Case("valid", _feature("metadata.version", 28)),
        Case("unknown feature", _feature("no.such.feature", 1)),
        Case("no updates", {"feature_updates": [], "validate_only": True, "timeout_ms": 5000}),
    ),
    ApiKey.DESCRIBE_CLUSTER: (
        Case("valid", {}),
        Case("operations", {"include_cluster_authorized_operations": True}),
        Case("controllers", {"endpoint_type": 2}, 1),
        Case("type that does not exist", {"endpoint_type": 9}, 1),
        Case("fenced brokers", {"include_fenced_brokers": True}, 2),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (
        Case("valid", {}, 0, 0),
        Case("metrics", {"resource_types": [METRICS]}, 1),
        Case("brokers", {"resource_types": [BROKER]}, 1),
        Case("groups", {"resource_types": [GROUP_RESOURCE]}, 1),
        Case("type that does not exist", {"resource_types": [99]}, 1),
    ),
}

_USER = {"entity_type": "user", "match_type": 2, "match": None}
AFTERWARDS: Cases = {
    ApiKey.DESCRIBE_CONFIGS: (
        Case("afterwards: topic", _describe(TOPIC_RESOURCE, OTHER, ["retention.ms", *KEYS])),
        Case("afterwards: topic that changed", _describe(TOPIC_RESOURCE, CUT, include_synonyms=True)),
        Case(
            "afterwards: broker",
            _describe(
                BROKER,
                BROKER_ID,
                ["log.cleaner.threads", "log.cleaner.backoff.ms"],
                include_synonyms=True,
            ),
        ),
        Case("afterwards: all brokers", _describe(BROKER, "", ["log.cleaner.backoff.ms"])),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        Case("afterwards", {"topics": [{"name": OTHER}, {"name": "answers-checked"}]}),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (Case("afterwards", {"components": [_USER]}),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        Case("afterwards", {"users": [{"name": "answers-user"}, {"name": "nobody"}]}),
    ),
    ApiKey.DESCRIBE_ACLS: (Case("afterwards", _acl_filter(resource_name_filter="answers-acl")),),
}
"""Questions at the end: requests that were only checked must have changed nothing, the others something."""
