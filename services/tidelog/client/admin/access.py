"""ACLs, and users with their SCRAM credentials."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.core.cluster_view import in_parts
from tidelog.client.errors import raise_on_error, request_error
from tidelog.model.acl import (
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
)
from tidelog.model.errors import ErrorCode
from tidelog.sasl.scram import MECHANISM_BY_NUMBER, ScramMechanism, salt_from, salted_password
from tidelog.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from tidelog.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from tidelog.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from tidelog.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)


def list_acls(cluster: Cluster, wanted: AclFilter) -> list[AclBinding]:
    """Returns the ACLs that match, sorted. Raises KafkaError, ClientError."""
    answer = cluster.any_broker().call(DescribeAclsRequest(*_fields(wanted)), DescribeAclsResponse)
    raise_on_error(answer.error_code, "ACLs", answer.error_message)
    return sorted(
        AclBinding(
            ResourceType(resource.resource_type),
            PatternType(resource.pattern_type),
            resource.resource_name,
            Principal(acl.principal),
            acl.host,
            AclOperation(acl.operation),
            PermissionType(acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    )


def create_acls(cluster: Cluster, bindings: Sequence[AclBinding]) -> None:
    """Creates the ACLs that do not exist. Raises KafkaError, ClientError."""
    for part in in_parts(bindings):
        _create_acls(cluster, part)


def _create_acls(cluster: Cluster, bindings: list[AclBinding]) -> None:
    creations = [
        AclCreation(
            binding.resource_type,
            binding.resource_name,
            binding.pattern_type,
            binding.principal,
            binding.host,
            binding.operation,
            binding.permission,
        )
        for binding in bindings
    ]
    answer = cluster.controller().call(CreateAclsRequest(creations), CreateAclsResponse)
    for binding, result in zip(bindings, answer.results, strict=True):
        raise_on_error(
            result.error_code,
            f"the ACL of {binding.principal} on {binding.resource_name}",
            result.error_message,
        )


def delete_acls(cluster: Cluster, wanted: AclFilter) -> int:
    """Deletes the ACLs that match and returns their number. Raises KafkaError, ClientError."""
    request = DeleteAclsRequest([DeleteAclsFilter(*_fields(wanted))])
    (result,) = cluster.controller().call(request, DeleteAclsResponse).filter_results
    raise_on_error(result.error_code, "ACLs", result.error_message)
    for acl in result.matching_acls:
        raise_on_error(
            acl.error_code, f"the ACL of {acl.principal} on {acl.resource_name}", acl.error_message
        )
    return len(result.matching_acls)


def _fields(wanted: AclFilter) -> tuple[int, str | None, int, str | None, str | None, int, int]:
    """Returns the filter in the order of the fields of a request."""
    return (
        wanted.resource_type,
        wanted.resource_name,
        wanted.pattern_type,
        wanted.principal,
        wanted.host,
        wanted.operation,
        wanted.permission,
    )


SALT_RANDOM_BYTES: Final = 32


class UserCredential(NamedTuple):
    """A credential of a user, without its secret."""

    user: str
    mechanism: str
    iterations: int


def describe_users(cluster: Cluster, names: Iterable[str] = ()) -> list[UserCredential]:
    """Returns the credentials of the named users, or of all users, in the order of their names. Raises
    KafkaError RESOURCE_NOT_FOUND if a named user has none, ClientError.
    """
    users = [UserName(name) for name in names]
    request = DescribeUserScramCredentialsRequest(users or None)
    answer = cluster.any_broker().call(request, DescribeUserScramCredentialsResponse)
    _raise_on_error(answer.error_code, answer.error_message)
    found = []
    for result in answer.results:
        _raise_on_error(result.error_code, result.error_message)
        for info in result.credential_infos:
            mechanism = MECHANISM_BY_NUMBER.get(info.mechanism)
            name = str(info.mechanism) if mechanism is None else mechanism.name
            found.append(UserCredential(result.user, name, info.iterations))
    return sorted(found)


def set_password(
    cluster: Cluster, user: str, password: str, mechanisms: Iterable[ScramMechanism], iterations: int
) -> None:
    """Creates or replaces a user's credentials. The password does not leave this process. Raises KafkaError,
    ClientError.
    """
    upsertions = []
    for mechanism in mechanisms:
        salt = salt_from(secrets.token_bytes(SALT_RANDOM_BYTES))
        salted = salted_password(mechanism, password, salt, iterations)
        upsertions.append(ScramCredentialUpsertion(user, mechanism.number, iterations, salt, salted))
    _alter(cluster, AlterUserScramCredentialsRequest(upsertions=upsertions))


def delete_credentials(cluster: Cluster, user: str, mechanisms: Iterable[ScramMechanism]) -> None:
    """Deletes a user's credentials. Raises KafkaError RESOURCE_NOT_FOUND if one does not exist,
    ClientError.
    """
    deletions = [ScramCredentialDeletion(user, mechanism.number) for mechanism in mechanisms]
    _alter(cluster, AlterUserScramCredentialsRequest(deletions=deletions))


def _alter(cluster: Cluster, request: AlterUserScramCredentialsRequest) -> None:
    answer = cluster.controller().call(request, AlterUserScramCredentialsResponse)
    for result in answer.results:
        _raise_on_error(result.error_code, result.error_message)


def _raise_on_error(code: int, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise request_error(code, "users", message)
