"""Access control lists as Kafka defines them (KIP-11, KIP-290): who may do what on which resource.

The numbers of the enumerations are those of Kafka's protocol.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from tidelog.model.principal import Principal


class ResourceType(IntEnum):
    """Kafka's `ResourceType`. ANY occurs only in filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kafka's `PatternType`. ANY and MATCH occur only in filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Kafka's `AclOperation`. ANY occurs only in filters."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PermissionType(IntEnum):
    """Kafka's `AclPermissionType`. ANY occurs only in filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


WILDCARD: Final = "*"
"""The literal resource name that means every resource, and the host that means every host."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class AclBinding(NamedTuple):
    """One rule: `permission` for `principal` to do `operation` from `host` on the resources of a pattern.

    `pattern_type` is LITERAL or PREFIXED. `host` is an address, a range in CIDR notation, or WILDCARD.
    """

    resource_type: ResourceType
    pattern_type: PatternType
    resource_name: str
    principal: Principal
    host: str
    operation: AclOperation
    permission: PermissionType
