"""The authorizer of a broker: decides about requests by the current ACLs.

A decision belongs to one connection, one principal and one set of ACLs. It is kept at the connection
(`RequestSource.access`) and ends with any of the three. Nothing that connections share holds a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.security.access import Access
from tidelog.model.acl import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from tidelog.broker.cluster.view import MetadataView
    from tidelog.broker.requests.request import RequestContext, RequestSource

OnDenied = Callable[["RequestContext", AclOperation, ResourceType, str], None]
"""Receives each access that was asked for and denied."""


class Authorizer:
    """Kafka's StandardAuthorizer over the snapshot of this broker.

    `super_users` may do everything. `allow_if_no_acl` decides about resources without any rule
    (`allow.everyone.if.no.acl.found`).
    """

    def __init__(
        self,
        metadata: MetadataView,
        super_users: frozenset[str],
        *,
        allow_if_no_acl: bool,
        on_denied: OnDenied,
    ) -> None:
        self.metadata = metadata
        self._super_users = super_users
        self._allow_if_no_acl = allow_if_no_acl
        self._on_denied = on_denied

    def _access(self, source: RequestSource) -> Access:
        access = source.access
        rules = self.metadata.security.rules  # the same object until an ACL changes
        if access is None or access.rules is not rules or access.principal != source.principal:
            access = source.access = Access(
                source.principal, source.peer_host, rules, source.principal in self._super_users
            )
        return access

    def decisions(
        self, source: RequestSource, operation: AclOperation, resource_type: ResourceType
    ) -> dict[str, bool]:
        """Returns the remembered decisions by resource name, for a loop over many resources. If a name is
        missing, the caller calls `may`.
        """
        return self._access(source).decisions(operation, resource_type)

    def may(
        self,
        context: RequestContext,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        is_asked_for: bool = True,
    ) -> bool:
        """Returns whether the client of a request may do the operation. A denial is reported if the client
        asked for the resource; it did not if the broker only looks what to show.
        """
        access = self._access(context.connection)
        allowed = access.decisions(operation, resource_type).get(name)
        if allowed is None:
            allowed = access.decide(operation, resource_type, name, self._allow_if_no_acl)
        if not allowed and is_asked_for:
            self._on_denied(context, operation, resource_type, name)
        return allowed

    def may_on_any(
        self, context: RequestContext, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Returns whether the client may do the operation on at least one resource of the type."""
        # Kafka first asks about a name that no rule may mention, for super users and for
        # allow.everyone.if.no.acl.found.
        return self.may(context, operation, resource_type, "hardcode", is_asked_for=False) or self._access(
            context.connection
        ).decide_on_any(operation, resource_type)
