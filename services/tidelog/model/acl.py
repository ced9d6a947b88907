"""Access control lists as Kafka defines them (KIP-11, KIP-290): who may do what on which resource.

The numbers of the enumerations are those of Kafka's protocol.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import ip_network
from typing import Final, NamedTuple, NewType, Protocol

from tidelog.model.errors import ErrorCode, KafkaError

Principal = NewType("Principal", str)
"""An identity as ACLs name it: the type `User`, a colon, and the name, such as `User:alice`. It is
case-sensitive.
"""

ANONYMOUS: Final = Principal("User:ANONYMOUS")
"""The principal of a client that did not authenticate, as in Kafka."""


def user_principal(name: str) -> Principal:
    """Returns the principal of the user `name`."""
    return Principal(f"User:{name}")


def parse_principals(text: str) -> frozenset[Principal]:
    """Returns the principals of a list that semicolons separate, as `super.users` is. Raises ValueError."""
    found = [Principal(item.strip()) for item in text.split(";") if item.strip()]
    for principal in found:
        kind, _, name = principal.partition(":")
        if not kind or not name:
            raise ValueError(f"{principal} is not a principal such as User:alice")
    return frozenset(found)


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


class AclFilter(NamedTuple):
    """Selects bindings, as Kafka's `AclBindingFilter` does. None and ANY match everything.

    With the pattern type MATCH, `resource_name` is the name of a resource, and all patterns that contain it
    match.
    """

    resource_type: ResourceType
    pattern_type: PatternType
    resource_name: str | None
    principal: str | None
    host: str | None
    operation: AclOperation
    permission: PermissionType

    def matches(self, binding: AclBinding) -> bool:
        """Returns whether the filter selects the binding."""
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self._matches_pattern(binding.pattern_type, binding.resource_name)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (AclOperation.ANY, binding.operation)
            and self.permission in (PermissionType.ANY, binding.permission)
        )

    @property
    def only_match(self) -> AclBinding | None:
        """The only binding that the filter can select, None if it can select several."""
        if (
            self.resource_name is None
            or self.principal is None
            or self.host is None
            or self.resource_type is ResourceType.ANY
            or self.pattern_type in (PatternType.ANY, PatternType.MATCH)
            or self.operation is AclOperation.ANY
            or self.permission is PermissionType.ANY
        ):
            return None
        return AclBinding(
            self.resource_type,
            self.pattern_type,
            self.resource_name,
            Principal(self.principal),
            self.host,
            self.operation,
            self.permission,
        )

    def _matches_pattern(self, pattern_type: PatternType, name: str) -> bool:
        wanted = self.resource_name
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern_type):
            return False
        if wanted is None or name == wanted:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        return name == WILDCARD if pattern_type is PatternType.LITERAL else wanted.startswith(name)


class FilterFields(Protocol):
    """The common fields of a DescribeAcls request and of a filter in a DeleteAcls request."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def acl_filter(fields: FilterFields) -> AclFilter:
    """Returns the filter of a request. Raises KafkaError(INVALID_REQUEST) for an unknown number."""
    try:
        return AclFilter(
            ResourceType(fields.resource_type_filter),
            PatternType(fields.pattern_type_filter),
            fields.resource_name_filter,
            fields.principal_filter,
            fields.host_filter,
            AclOperation(fields.operation),
            PermissionType(fields.permission_type),
        )
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The filter has an unknown element: {error}") from None


MAX_ACL_TEXT_CHARS: Final = 4_096
"""The longest resource name, principal or host of an ACL, because all three are in a key of the store."""


class BindingFields(Protocol):
    """The fields of an item in a CreateAcls request."""

    resource_type: int
    resource_name: str
    resource_pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


def new_binding(fields: BindingFields) -> AclBinding:
    """Returns the binding that a request creates. Raises KafkaError(INVALID_REQUEST) in the cases of Kafka's
    `AclControlManager` and `AclApis`, and for texts that are too long and false ranges of addresses.
    """
    try:
        binding = AclBinding(
            ResourceType(fields.resource_type),
            PatternType(fields.resource_pattern_type),
            fields.resource_name,
            Principal(fields.principal),
            fields.host,
            AclOperation(fields.operation),
            PermissionType(fields.permission_type),
        )
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The ACL has an unknown element: {error}") from None
    problem = _problem(binding)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    return binding


def _problem(binding: AclBinding) -> str | None:
    if binding.resource_type is ResourceType.CLUSTER and binding.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not binding.resource_name:
        return "Invalid empty resource name"
    if binding.resource_type is ResourceType.ANY:
        return "Invalid resourceType ANY"
    if binding.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {binding.pattern_type.name}"
    if binding.operation is AclOperation.ANY:
        return "Invalid operation ANY"
    if binding.permission is PermissionType.ANY:
        return "Invalid permissionType ANY"
    kind, _, name = binding.principal.partition(":")
    if not kind or not name:
        return f"The principal {binding.principal[:100]} does not have the form User:name"
    if not binding.host:
        return "Invalid empty host"
    for text in (binding.resource_name, binding.principal, binding.host):
        if len(text) > MAX_ACL_TEXT_CHARS:
            return f"A text of an ACL must have at most {MAX_ACL_TEXT_CHARS} characters"
    if "/" in binding.host:
        try:
            ip_network(binding.host, strict=False)
        except ValueError:
            return f"The host {binding.host[:100]} is not a range of addresses in CIDR notation"
    return None
