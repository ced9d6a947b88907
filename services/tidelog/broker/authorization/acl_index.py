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
from tidelog.timing.slices import Steps

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


def _changed(rules: _Rules, changes: Mapping[AclBinding, bool]) -> _Rules:
    """Returns the rules of one principal with the bindings that map to True, and without the others."""
    after = dict(rules)
    for binding, is_added in changes.items():
        if is_added:
            after[binding] = _hosts(binding.host)
        else:
            after.pop(binding, None)
    return after


class _Prefixes(NamedTuple):
    """The lengths of the prefixes that have rules, for one type of resources."""

    counts: Mapping[int, int]
    """Maps a length to the number of prefixes that have it."""
    lengths: tuple[int, ...]
    """The lengths in rising order."""


_NO_PREFIXES: Final = _Prefixes({}, ())


class AclIndex:
    """An immutable set of ACLs."""

    __slots__ = ("_patterns", "_prefixes", "_rules")

    def __init__(self) -> None:
        # `_rules` maps each pattern with rules to its principals, and each of them to its rules. `_patterns`
        # has the same rules by the principal and the type of the resources first.
        self._rules: dict[_Resource, dict[Principal, _Rules]] = {}
        self._patterns: dict[tuple[Principal, int], dict[_Resource, _Rules]] = {}
        self._prefixes: dict[int, _Prefixes] = {}

    def changed(self, removed: Iterable[AclBinding], added: Iterable[AclBinding]) -> Steps[AclIndex]:
        """Returns the index without `removed` and with `added`. It shares with this index what is equal."""
        # The changes of each principal on each pattern are made at once, because its rules are copied.
        changes: dict[_Resource, dict[Principal, dict[AclBinding, bool]]] = {}
        for bindings, is_added in ((removed, False), (added, True)):
            for binding in bindings:
                yield
                resource = _Resource(binding.resource_type, binding.pattern_type, binding.resource_name)
                of_resource = changes.setdefault(resource, {})
                of_resource.setdefault(binding.principal, {})[binding] = is_added
        after = AclIndex()
        rules = after._rules = dict(self._rules)
        patterns: dict[tuple[Principal, int], dict[_Resource, _Rules]] = {}
        for resource, of_resource in changes.items():
            yield
            principals = dict(rules.get(resource, {}))
            for principal, of_principal in of_resource.items():
                changed_rules = _changed(principals.get(principal, {}), of_principal)
                holder = principal, resource.resource_type
                if holder not in patterns:
                    patterns[holder] = dict(self._patterns.get(holder, {}))
                if changed_rules:
                    principals[principal] = patterns[holder][resource] = changed_rules
                else:
                    principals.pop(principal, None)
                    patterns[holder].pop(resource, None)
            if principals:
                rules[resource] = principals
            else:
                rules.pop(resource, None)
        after._patterns = {**self._patterns, **patterns}
        for holder, left in patterns.items():
            if not left:
                del after._patterns[holder]
        after._prefixes = self._prefixes_after(changes, rules)
        return after

    def _prefixes_after(
        self, touched: Iterable[_Resource], rules: Mapping[_Resource, object]
    ) -> dict[int, _Prefixes]:
        """Returns the prefixes of an index with other rules, which differ for the patterns `touched`."""
        counts: dict[int, dict[int, int]] = {}
        for resource in touched:
            step = (resource in rules) - (resource in self._rules)
            if step and resource.pattern_type == PatternType.PREFIXED:
                kind, length = resource.resource_type, len(resource.name)
                if kind not in counts:
                    counts[kind] = dict(self._prefixes.get(kind, _NO_PREFIXES).counts)
                counts[kind][length] = counts[kind].get(length, 0) + step
        after = dict(self._prefixes)
        for kind, of_kind in counts.items():
            left = {length: count for length, count in of_kind.items() if count}
            after[kind] = _Prefixes(left, tuple(sorted(left)))
        return after

    def _patterns_of(self, kind: int, name: str) -> Iterator[dict[Principal, _Rules]]:
        """Yields the rules of each pattern that contains the resource, by principal."""
        rules = self._rules
        for literal in (name,) if name == WILDCARD else (name, WILDCARD):
            found = rules.get(_Resource(kind, PatternType.LITERAL, literal))
            if found is not None:
                yield found
        for length in self._prefixes.get(kind, _NO_PREFIXES).lengths:
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
        for holder in (principal, EVERY_USER):
            for (_, pattern_type, name), rules in self._patterns.get((holder, resource_type), {}).items():
                for binding, hosts in rules.items():
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
