"""The records of Apache Kafka's metadata log that `tidelog adopt` reads.

The names, types, versions and tags are those of Kafka's definitions (`common/metadata` in its jar
kafka-metadata). Tagged fields of no interest are left out; a decoder skips them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, Buffer, F, Fields

NO_LEADER_CHANGE = -2


@dataclass(slots=True)
class TopicRecord:
    name: str = ""
    topic_id: UUID = ZERO_UUID

    API_KEY: ClassVar[int] = 2
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("topic_id", "uuid", "0+"),
    )


@dataclass(slots=True)
class PartitionRecord:
    partition_id: int = -1
    topic_id: UUID = ZERO_UUID
    replicas: list[int] = field(default_factory=list)
    isr: list[int] = field(default_factory=list)
    removing_replicas: list[int] = field(default_factory=list)
    adding_replicas: list[int] = field(default_factory=list)
    leader: int = -1
    leader_recovery_state: int = 0
    leader_epoch: int = -1
    partition_epoch: int = -1
    directories: list[UUID] = field(default_factory=list)

    API_KEY: ClassVar[int] = 3
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("partition_id", "int32", "0+"),
        F("topic_id", "uuid", "0+"),
        F("replicas", ("int32",), "0+"),
        F("isr", ("int32",), "0+"),
        F("removing_replicas", ("int32",), "0+"),
        F("adding_replicas", ("int32",), "0+"),
        F("leader", "int32", "0+"),
        F("leader_recovery_state", "int8", "0+", tagged="0+", tag=0),
        F("leader_epoch", "int32", "0+"),
        F("partition_epoch", "int32", "0+"),
        F("directories", ("uuid",), "1+"),
    )


@dataclass(slots=True)
class PartitionChangeRecord:
    partition_id: int = -1
    topic_id: UUID = ZERO_UUID
    isr: list[int] | None = None
    leader: int = NO_LEADER_CHANGE
    replicas: list[int] | None = None

    API_KEY: ClassVar[int] = 5
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("partition_id", "int32", "0+"),
        F("topic_id", "uuid", "0+"),
        F("isr", ("int32",), "0+", nullable="0+", tagged="0+", tag=0),
        F("leader", "int32", "0+", tagged="0+", tag=1),
        F("replicas", ("int32",), "0+", nullable="0+", tagged="0+", tag=2),
    )


@dataclass(slots=True)
class ConfigRecord:
    resource_type: int = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = ""

    API_KEY: ClassVar[int] = 4
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("resource_type", "int8", "0+"),
        F("resource_name", "string", "0+"),
        F("name", "string", "0+"),
        F("value", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class RemoveTopicRecord:
    topic_id: UUID = ZERO_UUID

    API_KEY: ClassVar[int] = 9
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (F("topic_id", "uuid", "0+"),)


@dataclass(slots=True)
class FeatureLevelRecord:
    name: str = ""
    feature_level: int = 0

    API_KEY: ClassVar[int] = 12
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("feature_level", "int16", "0+"),
    )


@dataclass(slots=True)
class ProducerIdsRecord:
    broker_id: int = 0
    broker_epoch: int = -1
    next_producer_id: int = 0

    API_KEY: ClassVar[int] = 15
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("broker_id", "int32", "0+"),
        F("broker_epoch", "int64", "0+"),
        F("next_producer_id", "int64", "0+"),
    )


@dataclass(slots=True)
class UserScramCredentialRecord:
    name: str = ""
    mechanism: int = 0
    salt: Buffer = b""
    stored_key: Buffer = b""
    server_key: Buffer = b""
    iterations: int = 0

    API_KEY: ClassVar[int] = 11
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("mechanism", "int8", "0+"),
        F("salt", "bytes", "0+"),
        F("stored_key", "bytes", "0+"),
        F("server_key", "bytes", "0+"),
        F("iterations", "int32", "0+"),
    )


@dataclass(slots=True)
class RemoveUserScramCredentialRecord:
    name: str = ""
    mechanism: int = 0

    API_KEY: ClassVar[int] = 22
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("mechanism", "int8", "0+"),
    )


@dataclass(slots=True)
class AccessControlEntryRecord:
    acl_id: UUID = ZERO_UUID
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 0
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0

    API_KEY: ClassVar[int] = 18
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("acl_id", "uuid", "0+"),
        F("resource_type", "int8", "0+"),
        F("resource_name", "string", "0+"),
        F("pattern_type", "int8", "0+"),
        F("principal", "string", "0+"),
        F("host", "string", "0+"),
        F("operation", "int8", "0+"),
        F("permission_type", "int8", "0+"),
    )


@dataclass(slots=True)
class RemoveAccessControlEntryRecord:
    acl_id: UUID = ZERO_UUID

    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (F("acl_id", "uuid", "0+"),)


@dataclass(slots=True)
class QuotaEntity:
    entity_type: str = ""
    entity_name: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("entity_type", "string", "0+"),
        F("entity_name", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class ClientQuotaRecord:
    entity: list[QuotaEntity] = field(default_factory=list)
    key: str = ""
    value: float = 0.0
    remove: bool = False

    API_KEY: ClassVar[int] = 14
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("entity", (QuotaEntity,), "0+"),
        F("key", "string", "0+"),
        F("value", "float64", "0+"),
        F("remove", "bool", "0+"),
    )
