"""CreateAcls and DeleteAcls (KIP-140, KIP-290). Brokers describe ACLs from their own snapshots."""

from __future__ import annotations

from typing import Final

from tidelog.controller.core.decision import Context, ControllerDecision, Erase, Record, Write
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import AclEntry
from tidelog.model.acl import acl_filter, new_binding
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages import create_acls as create
from tidelog.wire.messages import delete_acls as delete

MAX_ACLS: Final = 100_000
"""The ACLs of a cluster. Every broker holds all of them in memory."""


def create_acls(
    state: ClusterState, context: Context, request: create.CreateAclsRequest, api_version: int
) -> ControllerDecision[create.CreateAclsResponse]:
    """Creates each ACL that is valid and does not exist. Existing ACLs count as created, as in Kafka."""
    records: dict[str, Record] = {}
    results = []
    for creation in request.creations:
        try:
            entry = AclEntry(new_binding(creation))
            key = entry.key
            if key not in state.acls and key not in records:
                if len(state.acls) + len(records) >= MAX_ACLS:
                    raise KafkaError(ErrorCode.POLICY_VIOLATION, f"The cluster has {MAX_ACLS} ACLs already.")
                records[key] = Write(entry)
        except KafkaError as error:
            results.append(create.AclCreationResult(error.code, error.message))
        else:
            results.append(create.AclCreationResult(ErrorCode.NONE, None))
    return ControllerDecision(tuple(records.values()), create.CreateAclsResponse(results=results))


def delete_acls(
    state: ClusterState, context: Context, request: delete.DeleteAclsRequest, api_version: int
) -> ControllerDecision[delete.DeleteAclsResponse]:
    """Deletes the ACLs that match at least one filter. An ACL is reported for each filter that it matches."""
    erased: dict[str, Record] = {}
    results = []
    for given in request.filters:
        try:
            wanted = acl_filter(given)
        except KafkaError as error:
            results.append(delete.DeleteAclsFilterResult(error.code, error.message))
            continue
        found = [(key, entry.binding) for key, entry in state.acls.items() if wanted.matches(entry.binding)]
        erased.update((key, Erase(key)) for key, _ in found)
        matching = [
            delete.DeleteAclsMatchingAcl(
                ErrorCode.NONE,
                None,
                binding.resource_type,
                binding.resource_name,
                binding.pattern_type,
                binding.principal,
                binding.host,
                binding.operation,
                binding.permission,
            )
            for _, binding in found
        ]
        results.append(delete.DeleteAclsFilterResult(ErrorCode.NONE, None, matching))
    return ControllerDecision(tuple(erased.values()), delete.DeleteAclsResponse(filter_results=results))
