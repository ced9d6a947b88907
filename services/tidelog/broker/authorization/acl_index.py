"""The ACLs of one snapshot, in a form in which the rules for a resource are found without a search.

The decision is that of Kafka's `StandardAuthorizerData` (KIP-11, KIP-290): a DENY that matches wins over
every ALLOW, READ, WRITE, DELETE and ALTER imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS. DENY
implies nothing. Deviation: a host may also be a range in CIDR notation, and addresses are compared as
numbers, so that every notation of an IPv6 address matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from tidelog.model.acl import (
    WILDCARD,
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
)
from tidelog.model.principal import Principal, user_principal

Address = IPv4Address | IPv6Address | str
"""The address of a client; a text if it is not an address, which only WILDCARD and the same text match."""

EVERY_USER: Final = user_principal("*")

_ALLOWING: Final[Mapping[int, frozenset[AclOperation]]] = {
    **{operation: frozenset({operation, AclOperation.ALL}) for operation in AclOperation},
    AclOperation.DESCRIBE: frozenset(
        {
            AclOperation.ALL,
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
        }
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset(
        {AclOperation.ALL, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}
    ),
}
"""Maps an operation to the operations of an ALLOW that permit it."""


def client_address(host: str) -> Address:
    """Returns the address in `host`. An IPv4 address that arrived over IPv6 becomes an IPv4 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


class _Hosts(NamedTuple):
    """The hosts of a rule: all, a range, or one address."""

    is_any: bool
    network: IPv4Network | IPv6Network | None
    address: Address

    def contain(self, address: Address) -> bool:
        if self.is_any:
            return True
        if self.network is not None:
            return not isinstance(address, str) and address in self.network
        return address == self.address


def _hosts(host: str) -> _Hosts:
    if host == WILDCARD:
        return _Hosts(True, None, host)
    if "/" in host:
        try:
            return _Hosts(False, ip_network(host, strict=False), host)
        except ValueError:
            return _Hosts(False, None, host)
    return _Hosts(False, None, client_address(host))


class _Resource(NamedTuple):
    """A pattern of resources."""

    resource_type: int
    pattern_type: int
    name: str


_Rules = Mapping[AclBinding, _Hosts]


class AclIndex:
    """An immutable set of ACLs."""

    __slots__ = ("_prefix_lengths", "_rules")

    def __init__(self) -> None:
        # `_rules` maps each pattern with rules to its principals, and each of them to its rules.
        self._rules: dict[_Resource, dict[Principal, _Rules]] = {}
        self._prefix_lengths: dict[int, tuple[int, ...]] = {}

    def changed(self, removed: Iterable[AclBinding], added: Iterable[AclBinding]) -> AclIndex:
        """Returns the index without `removed` and with `added`."""
        after = AclIndex()
        rules = after._rules = dict(self._rules)
        copied: set[_Resource] = set()

        def principals_of(binding: AclBinding) -> dict[Principal, _Rules]:
            resource = _Resource(binding.resource_type, binding.pattern_type, binding.resource_name)
            if resource not in copied:
                copied.add(resource)
                rules[resource] = dict(rules.get(resource, {}))
            return rules[resource]

        for binding in removed:
            principals = principals_of(binding)
            of_principal = principals.get(binding.principal, {})
            left = {known: hosts for known, hosts in of_principal.items() if known != binding}
            if left:
                principals[binding.principal] = left
            else:
                principals.pop(binding.principal, None)
        for binding in added:
            principals = principals_of(binding)
            known_rules = principals.get(binding.principal, {})
            principals[binding.principal] = {**known_rules, binding: _hosts(binding.host)}
        for resource in copied:
            if not rules[resource]:
                del rules[resource]
        lengths: dict[int, set[int]] = {}
        for resource in rules:
            if resource.pattern_type == PatternType.PREFIXED:
                lengths.setdefault(resource.resource_type, set()).add(len(resource.name))
        after._prefix_lengths = {kind: tuple(sorted(found)) for kind, found in lengths.items()}
        return after

    def _patterns_of(self, kind: int, name: str) -> Iterator[dict[Principal, _Rules]]:
        """Yields the rules of each pattern that contains the resource, by principal."""
        rules = self._rules
        for literal in (name,) if name == WILDCARD else (name, WILDCARD):
            found = rules.get(_Resource(kind, PatternType.LITERAL, literal))
            if found is not None:
                yield found
        for length in self._prefix_lengths.get(kind, ()):
            if length > len(name):
                break
            found = rules.get(_Resource(kind, PatternType.PREFIXED, name[:length]))
            if found is not None:
                yield found

    def decide(
        self, principal: Principal, address: Address, operation: int, resource_type: int, name: str
    ) -> bool | None:
        """Returns whether the principal may do the operation, or None if no rule concerns the resource."""
        is_ruled = is_allowed = False
        allowing = _ALLOWING[operation]
        for principals in self._patterns_of(resource_type, name):
            is_ruled = True
            for holder in (principal, EVERY_USER):
                for binding, hosts in principals.get(holder, {}).items():
                    if not hosts.contain(address):
                        continue
                    if binding.permission == PermissionType.DENY:
                        if binding.operation in (operation, AclOperation.ALL):
                            return False
                    elif binding.operation in allowing:
                        is_allowed = True
        return is_allowed if is_ruled else None

    def decide_on_any(
        self, principal: Principal, address: Address, operation: int, resource_type: int
    ) -> bool:
        """Returns whether rules allow the operation on at least one resource of the type, as Kafka's
        `Authorizer.authorizeByResourceType` does (KIP-679). No operation implies another here.
        """
        denied, allowed = set[tuple[int, str]](), set[tuple[int, str]]()
        for (kind, pattern_type, name), principals in self._rules.items():
            if kind != resource_type:
                continue
            for holder in (principal, EVERY_USER):
                for binding, hosts in principals.get(holder, {}).items():
                    if binding.operation in (operation, AclOperation.ALL) and hosts.contain(address):
                        is_denial = binding.permission == PermissionType.DENY
                        (denied if is_denial else allowed).add((pattern_type, name))
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        if (PatternType.LITERAL, WILDCARD) in allowed:
            return True
        denied_prefixes = {name for pattern_type, name in denied if pattern_type == PatternType.PREFIXED}
        return any(
            allowance not in denied
            and not any(
                allowance[1][:length] in denied_prefixes for length in range(1, len(allowance[1]) + 1)
            )
            for allowance in allowed
        )
