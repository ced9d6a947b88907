"""The decisions that one connection remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.broker.security.acl_index import Address, client_address
from tidelog.model.topics import MAX_REMEMBERED_NAME_CHARS

if TYPE_CHECKING:
    from tidelog.broker.security.acl_index import AclIndex
    from tidelog.model.acl import AclOperation, Principal, ResourceType

MAX_REMEMBERED_DECISIONS: Final = 2_000
"""The decisions that a connection remembers. A further one replaces all of them, so a client that names many
resources only loses speed.
"""


class Access:
    """The decisions about one connection under one set of ACLs."""

    __slots__ = ("_address", "_count", "_decisions", "_on_any", "is_super_user", "principal", "rules")

    def __init__(self, principal: Principal, host: str, rules: AclIndex, is_super: bool) -> None:
        self.principal = principal
        self.rules = rules
        self.is_super_user = is_super
        self._address: Address = client_address(host)
        self._decisions: dict[tuple[int, int], dict[str, bool]] = {}
        self._count = 0
        self._on_any: dict[tuple[int, int], bool] = {}

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
        if self.is_super_user:
            allowed = True
        else:
            decided = self.rules.decide(self.principal, self._address, operation, resource_type, name)
            allowed = by_default if decided is None else decided
        if len(name) <= MAX_REMEMBERED_NAME_CHARS:
            if self._count >= MAX_REMEMBERED_DECISIONS:
                self._count = 0
                for known in self._decisions.values():
                    known.clear()
            self._count += 1
            self.decisions(operation, resource_type)[name] = allowed
        return allowed

    def decide_on_any(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Returns whether rules allow the operation on at least one resource of the type."""
        key = (operation, resource_type)
        known = self._on_any.get(key)
        if known is None:
            known = self._on_any[key] = self.rules.decide_on_any(
                self.principal, self._address, operation, resource_type
            )
        return known
