"""The bit sets of operations that a client may do (KIP-430). Without an authorizer, a client may do all of
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.model.acl import AclOperation, ResourceType

SUPPORTED_OPERATIONS: Final[dict[ResourceType, tuple[AclOperation, ...]]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""Kafka's `AclEntry.supportedOperations` of the resource types in responses."""


def operation_bits(operations: Iterable[AclOperation]) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[ResourceType.TOPIC])
GROUP_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[ResourceType.GROUP])
CLUSTER_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[ResourceType.CLUSTER])
NOT_ASKED: Final = -(2**31)
NO_AUTHORIZER: Final = "No Authorizer is configured on the broker"
