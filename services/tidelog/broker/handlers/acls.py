"""DescribeAcls, CreateAcls and DeleteAcls, v1 to v3. The controller changes ACLs; this broker describes those
of its snapshot. Without an authorizer, these requests fail with SECURITY_DISABLED, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING

from tidelog.broker.security.authorization.judging import NO_AUTHORIZER
from tidelog.model.acl import AclFilter, acl_filter
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.timing.slices import in_slices
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from tidelog.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from tidelog.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.metadata_view import MetadataView
    from tidelog.broker.requests.request import RequestContext


class AclHandlers:
    """Answers DescribeAcls, CreateAcls and DeleteAcls."""

    def __init__(
        self, metadata: MetadataView, controller: ControllerConnection, *, has_authorizer: bool
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._has_authorizer = has_authorizer

    def describe(
        self, request: DescribeAclsRequest, context: RequestContext
    ) -> DescribeAclsResponse | Coroutine[object, None, DescribeAclsResponse]:
        if not self._has_authorizer:
            return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        try:
            wanted = acl_filter(request)
        except KafkaError as error:
            return DescribeAclsResponse(error_code=error.code, error_message=error.message)
        return in_slices(self._described(wanted))

    def _described(self, wanted: AclFilter) -> Generator[None, None, DescribeAclsResponse]:
        resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
        for binding in (entry.binding for entry in self._metadata.security.acls.values()):
            yield
            if not wanted.matches(binding):
                continue
            key = (binding.resource_type, binding.resource_name, binding.pattern_type)
            resource = resources.get(key)
            if resource is None:
                resource = resources[key] = DescribeAclsResource(*key, acls=[])
            resource.acls.append(
                AclDescription(binding.principal, binding.host, binding.operation, binding.permission)
            )
        return DescribeAclsResponse(error_message=None, resources=list(resources.values()))

    def create(
        self, request: CreateAclsRequest, context: RequestContext
    ) -> CreateAclsResponse | Coroutine[object, None, CreateAclsResponse]:
        def refuse(code: ErrorCode, message: str | None) -> CreateAclsResponse:
            return CreateAclsResponse(results=[AclCreationResult(code, message) for _ in request.creations])

        if not self._has_authorizer:
            return refuse(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        return self._controller.forward_or_refuse(ApiKey.CREATE_ACLS, request, context, refuse)

    def delete(
        self, request: DeleteAclsRequest, context: RequestContext
    ) -> DeleteAclsResponse | Coroutine[object, None, DeleteAclsResponse]:
        def refuse(code: ErrorCode, message: str | None) -> DeleteAclsResponse:
            results = [DeleteAclsFilterResult(code, message) for _ in request.filters]
            return DeleteAclsResponse(filter_results=results)

        if not self._has_authorizer:
            return refuse(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        return self._controller.forward_or_refuse(ApiKey.DELETE_ACLS, request, context, refuse)
