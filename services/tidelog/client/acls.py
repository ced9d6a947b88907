"""Reads and changes access control lists."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.client.answers import raise_on_error
from tidelog.client.cluster import Cluster
from tidelog.client.core.request_parts import in_parts
from tidelog.model.acl import AclBinding, AclFilter, AclOperation, PatternType, PermissionType, ResourceType
from tidelog.model.principal import Principal
from tidelog.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from tidelog.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from tidelog.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse


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
