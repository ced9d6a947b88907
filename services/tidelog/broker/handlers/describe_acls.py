"""DescribeAcls v1 to v3: SECURITY_DISABLED, as Kafka answers without an authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.authorized_operations import NO_AUTHORIZER
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext


def handle(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
