"""DeleteAcls v1 to v3: SECURITY_DISABLED for each filter, as Kafka answers without an authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.authorized_operations import NO_AUTHORIZER
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext


def handle(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER) for _ in request.filters
        ]
    )
