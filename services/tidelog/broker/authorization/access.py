"""The decisions that one connection remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.broker.authorization.acl_index import Address, client_address

if TYPE_CHECKING:
    from tidelog.broker.security_snapshot import SecuritySnapshot
    from tidelog.model.acl import AclOperation, ResourceType
    from tidelog.model.principal import Principal

MAX_REMEMBERED_DECISIONS: Final = 2_000
"""The decisions that a connection remembers for each operation and resource type. A further one replaces all
of them, so a client that names many resources only loses speed.
"""
ANY_RESOURCE: Final = ""
"""The name under which a decision about all resources of a type is remembered. No resource has this name."""


class Access:
    """The decisions about one connection under one snapshot."""

    __slots__ = ("_address", "_decisions", "is_super_user", "principal", "snapshot")

    def __init__(self, principal: Principal, host: str, snapshot: SecuritySnapshot, is_super: bool) -> None:
        self.principal = principal
        self.snapshot = snapshot
        self.is_super_user = is_super
        self._address: Address = client_address(host)
        self._decisions: dict[tuple[int, int], dict[str, bool]] = {}

    def decisions(self, operation: AclOperation, resource_type: ResourceType) -> dict[str, bool]:
        """Returns the remembered decisions by resource name."""
        key = (operation, resource_type)
        known = self._decisions.get(key)
        if known is None:
            known = self._decisions[key] = {}
        return known

    def decide(
        self, operation: AclOperation, resource_type: ResourceType, name: str, by_default: bool
    ) -> bool:
        """Decides and remembers the decision. `by_default` applies if no rule concerns the resource."""
        known = self.decisions(operation, resource_type)
        if len(known) >= MAX_REMEMBERED_DECISIONS:
            known.clear()
        if self.is_super_user:
            allowed = True
        elif name == ANY_RESOURCE:
            allowed = self.snapshot.rules.decide_on_any(
                self.principal, self._address, operation, resource_type
            )
        else:
            decided = self.snapshot.rules.decide(
                self.principal, self._address, operation, resource_type, name
            )
            allowed = by_default if decided is None else decided
        known[name] = allowed
        return allowed
