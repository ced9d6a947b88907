"""CreateAcls and DeleteAcls (KIP-140, KIP-290). Brokers describe ACLs from their own snapshots."""

from __future__ import annotations

from typing import Final

from tidelog.controller.core.decision import (
    Context,
    ControllerDecision,
    DecisionSteps,
    Erase,
    Record,
    Steps,
    Write,
)
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import AclEntry
from tidelog.model.acl import AclFilter, acl_filter, new_binding
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages import create_acls as create
from tidelog.wire.messages import delete_acls as delete

MAX_ACLS: Final = 100_000
"""The ACLs of a cluster. Every broker holds all of them in memory."""
MAX_DELETED: Final = 10_000
"""The most ACLs that one request may delete, as in Kafka (`AclControlManager`). Here, an ACL counts for each
filter that it matches, because the response names it for each of them.
"""
MAX_COMPARISONS: Final = 10_000_000
"""The most ACLs with which the filters of one request are compared. The controller serves no other request
during the ten seconds or so that this takes. A filter that can match only one ACL does not count.
"""


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
) -> DecisionSteps[delete.DeleteAclsResponse]:
    """Deletes the ACLs that match at least one filter. An ACL is reported for each filter that it matches.

    Raises KafkaError(INVALID_REQUEST) if the request is too large.
    """
    erased: dict[str, Record] = {}
    results = []
    compared = matched = 0
    for given in request.filters:
        yield
        try:
            wanted = acl_filter(given)
        except KafkaError as error:
            results.append(delete.DeleteAclsFilterResult(error.code, error.message))
            continue
        if wanted.only_match is None:
            compared += len(state.acls)
            if compared > MAX_COMPARISONS:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"The filters would need more than {MAX_COMPARISONS} comparisons; use fewer filters.",
                )
        found = yield from _matching(state, wanted)
        matched += len(found)
        if matched > MAX_DELETED:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A request deletes at most {MAX_DELETED} ACLs; use other filters.",
            )
        erased.update((entry.key, Erase(entry.key)) for entry in found)
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
            for binding in (entry.binding for entry in found)
        ]
        results.append(delete.DeleteAclsFilterResult(ErrorCode.NONE, None, matching))
    return ControllerDecision(tuple(erased.values()), delete.DeleteAclsResponse(filter_results=results))


def _matching(state: ClusterState, wanted: AclFilter) -> Steps[list[AclEntry]]:
    only = wanted.only_match
    if only is not None:
        known = state.acls.get(AclEntry(only).key)
        return [] if known is None else [known]
    found = []
    for entry in state.acls.values():
        yield
        if wanted.matches(entry.binding):
            found.append(entry)
    return found
