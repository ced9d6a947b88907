"""DescribeAcls, CreateAcls and DeleteAcls, v1 to v3. tidelog has no authorizer, so these requests fail
with SECURITY_DISABLED, as in Kafka without an authorizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.authorized_operations import NO_AUTHORIZER
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from tidelog.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from tidelog.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext


def describe_acls(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


def create_acls(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[AclCreationResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER) for _ in request.creations]
    )


def delete_acls(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER) for _ in request.filters
        ]
    )
