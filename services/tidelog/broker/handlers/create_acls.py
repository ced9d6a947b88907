"""CreateAcls v1 to v3: SECURITY_DISABLED for each ACL, as Kafka answers without an authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.authorized_operations import NO_AUTHORIZER
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext


def handle(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[AclCreationResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER) for _ in request.creations]
    )
