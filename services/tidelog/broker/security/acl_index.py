"""The ACLs of one snapshot, in a form in which the rules for a resource are found without a search.

The decision is that of Kafka's `StandardAuthorizerData` (KIP-11, KIP-290): a DENY that matches wins over
every ALLOW, READ, WRITE, DELETE and ALTER imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS. DENY
implies nothing. Deviation: a host may also be a range in CIDR notation, and addresses are compared as
numbers, so that every notation of an IPv6 address matches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple, TypeVar

from tidelog.kernel.steps import Steps
from tidelog.model.acl import (
    WILDCARD,
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    user_principal,
)

Address = IPv4Address | IPv6Address | str
"""The address of a client; a text if it is not an address, which only WILDCARD and the same text match."""

EVERY_USER: Final = user_principal("*")


def _bits(*operations: AclOperation) -> int:
    """Returns the bit set of operations."""
    return sum(1 << operation for operation in operations)


def _or_all(operation: int) -> int:
    """Returns the bit set of the operations of a rule that concerns this operation by itself."""
    return 1 << operation | 1 << AclOperation.ALL


_ALLOWING: Final[Mapping[int, int]] = {
    **{operation: _or_all(operation) for operation in AclOperation},
    AclOperation.DESCRIBE: _bits(
        AclOperation.ALL,
        AclOperation.DESCRIBE,
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    ),
    AclOperation.DESCRIBE_CONFIGS: _bits(
        AclOperation.ALL, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
    ),
}
"""Maps an operation to the bit set of the operations of an ALLOW that permit it."""


def client_address(host: str) -> Address:
    """Returns the address in `host`. An IPv4 address that arrived over IPv6 becomes an IPv4 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


_Range = tuple[int, int, int]
"""A range of addresses: their version, the number of bits in which they differ, and the bits before these."""


def _place(host: str) -> Address | _Range:
    """Returns the address or the range that the host of a rule states."""
    if "/" not in host:
        return client_address(host)
    try:
        network = ip_network(host, strict=False)
    except ValueError:
        return host
    free_bits = network.max_prefixlen - network.prefixlen
    return network.version, free_bits, int(network.network_address) >> free_bits


_Changes = dict[AclBinding, bool]
"""Maps each binding that changes to whether it is there after the change."""


class _Rules(NamedTuple):
    """The rules of one principal on one pattern for one host, with bit sets of the operations that they deny
    and allow.
    """

    bindings: tuple[AclBinding, ...]
    denied: int
    allowed: int

    def changed(self, changes: _Changes) -> _Rules:
        bindings = (
            *[binding for binding in self.bindings if binding not in changes],
            *[binding for binding, is_there in changes.items() if is_there],
        )
        denied = allowed = 0
        for binding in bindings:
            if binding.permission == PermissionType.DENY:
                denied |= 1 << binding.operation
            else:
                allowed |= 1 << binding.operation
        return _Rules(bindings, denied, allowed)


_NO_RULES: Final = _Rules((), 0, 0)
_PlaceT = TypeVar("_PlaceT")


def _changed(
    rules: Mapping[_PlaceT, _Rules], changes: Mapping[_PlaceT, _Changes]
) -> Mapping[_PlaceT, _Rules]:
    if not changes:
        return rules
    after = dict(rules)
    for place, of_place in changes.items():
        after[place] = after.get(place, _NO_RULES).changed(of_place)
        if not after[place].bindings:
            del after[place]
    return after


class _Hosts(NamedTuple):
    """The rules of one principal on one pattern, by their hosts. A decision looks up one address, and one
    range of each size, so it does not take longer with more hosts.
    """

    everywhere: _Rules
    by_address: Mapping[Address, _Rules]
    by_range: Mapping[_Range, _Rules]
    sizes: tuple[tuple[int, int], ...]
    """The version and the number of free bits of each size of a range."""

    def changed(self, changes: _Changes) -> _Hosts:
        everywhere: _Changes = {}
        by_address: dict[Address, _Changes] = {}
        by_range: dict[_Range, _Changes] = {}
        for binding, is_there in changes.items():
            if binding.host == WILDCARD:
                everywhere[binding] = is_there
                continue
            place = _place(binding.host)
            if isinstance(place, tuple):
                by_range.setdefault(place, {})[binding] = is_there
            else:
                by_address.setdefault(place, {})[binding] = is_there
        ranges = _changed(self.by_range, by_range)
        return _Hosts(
            self.everywhere.changed(everywhere) if everywhere else self.everywhere,
            _changed(self.by_address, by_address),
            ranges,
            tuple(sorted({(version, free_bits) for version, free_bits, _ in ranges})) if ranges else (),
        )

    @property
    def is_empty(self) -> bool:
        return not (self.everywhere.bindings or self.by_address or self.by_range)

    def operations_at(self, address: Address) -> tuple[int, int]:
        """Returns the bit sets of the operations that the rules deny and allow at an address."""
        _, denied, allowed = self.everywhere
        if self.by_address:
            _, denied_here, allowed_here = self.by_address.get(address, _NO_RULES)
            denied, allowed = denied | denied_here, allowed | allowed_here
        if self.sizes and not isinstance(address, str):
            version, number = address.version, int(address)
            for of_version, free_bits in self.sizes:
                if of_version == version:
                    place = version, free_bits, number >> free_bits
                    _, denied_here, allowed_here = self.by_range.get(place, _NO_RULES)
                    denied, allowed = denied | denied_here, allowed | allowed_here
        return denied, allowed


_NOWHERE: Final = _Hosts(_NO_RULES, {}, {}, ())


def _operations(
    principals: Mapping[Principal, _Hosts], principal: Principal, address: Address
) -> tuple[int, int]:
    """Returns the bit sets of the operations that the rules of one pattern deny to a client and allow it."""
    denied = allowed = 0
    for holder in (principal, EVERY_USER):
        hosts = principals.get(holder)
        if hosts is not None:
            denied_here, allowed_here = hosts.operations_at(address)
            denied, allowed = denied | denied_here, allowed | allowed_here
    return denied, allowed


class _Resource(NamedTuple):
    """A pattern of resources."""

    resource_type: int
    pattern_type: int
    name: str


class _Prefixes(NamedTuple):
    """The prefixes that have rules, for one type of resources."""

    names: frozenset[str]
    counts: Mapping[int, int]
    """Maps a length to the number of prefixes that have it."""
    lengths: tuple[int, ...]
    """The lengths in rising order."""


_NO_PREFIXES: Final = _Prefixes(frozenset(), {}, ())


class AclIndex:
    """An immutable set of ACLs."""

    __slots__ = ("_patterns", "_prefixes", "_rules")

    def __init__(self) -> None:
        # `_rules` maps each pattern with rules to its principals, and each of them to its rules. `_patterns`
        # has the same rules by the principal and the type of the resources first.
        self._rules: dict[_Resource, dict[Principal, _Hosts]] = {}
        self._patterns: dict[tuple[Principal, int], dict[_Resource, _Hosts]] = {}
        self._prefixes: dict[int, _Prefixes] = {}

    def changed(self, removed: Iterable[AclBinding], added: Iterable[AclBinding]) -> Steps[AclIndex]:
        """Returns the index without `removed` and with `added`. It shares with this index what is equal."""
        # The changes of each principal on each pattern are made at once, because its rules are copied.
        changes: dict[_Resource, dict[Principal, _Changes]] = {}
        for bindings, is_added in ((removed, False), (added, True)):
            for binding in bindings:
                yield
                resource = _Resource(binding.resource_type, binding.pattern_type, binding.resource_name)
                of_resource = changes.setdefault(resource, {})
                of_resource.setdefault(binding.principal, {})[binding] = is_added
        after = AclIndex()
        rules = after._rules = dict(self._rules)
        patterns: dict[tuple[Principal, int], dict[_Resource, _Hosts]] = {}
        for resource, of_resource in changes.items():
            yield
            principals = dict(rules.get(resource, {}))
            for principal, of_principal in of_resource.items():
                hosts = principals.get(principal, _NOWHERE).changed(of_principal)
                holder = principal, resource.resource_type
                if holder not in patterns:
                    patterns[holder] = dict(self._patterns.get(holder, {}))
                if hosts.is_empty:
                    principals.pop(principal, None)
                    patterns[holder].pop(resource, None)
                else:
                    principals[principal] = patterns[holder][resource] = hosts
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
        names: dict[int, set[str]] = {}
        for resource in touched:
            step = (resource in rules) - (resource in self._rules)
            if step and resource.pattern_type == PatternType.PREFIXED:
                kind, length = resource.resource_type, len(resource.name)
                if kind not in counts:
                    before = self._prefixes.get(kind, _NO_PREFIXES)
                    counts[kind], names[kind] = dict(before.counts), set(before.names)
                counts[kind][length] = counts[kind].get(length, 0) + step
                names[kind] ^= {resource.name}
        after = dict(self._prefixes)
        for kind, of_kind in counts.items():
            left = {length: count for length, count in of_kind.items() if count}
            after[kind] = _Prefixes(frozenset(names[kind]), left, tuple(sorted(left)))
        return after

    def _prefixes_of(self, kind: int, name: str) -> list[_Resource]:
        """Returns the prefixes of the name that have rules."""
        prefixes = self._prefixes.get(kind)
        if prefixes is None:
            return []
        # Only prefixes with rules become patterns, which cost several times as much as texts.
        names, lengths = prefixes.names, prefixes.lengths
        return [
            _Resource(kind, PatternType.PREFIXED, prefix)
            for length in lengths[: bisect_right(lengths, len(name))]
            if (prefix := name[:length]) in names
        ]

    def patterns_of(self, kind: int, name: str) -> list[_Resource]:
        """Returns patterns that may have rules, among them all that contain the resource."""
        patterns = self._prefixes_of(kind, name)
        patterns.append(_Resource(kind, PatternType.LITERAL, name))
        if name != WILDCARD:
            patterns.append(_Resource(kind, PatternType.LITERAL, WILDCARD))
        return patterns

    def decide(
        self, principal: Principal, address: Address, operation: int, resource_type: int, name: str
    ) -> bool | None:
        """Returns whether the principal may do the operation, or None if no rule concerns the resource."""
        is_ruled = is_allowed = False
        denying, allowing = _or_all(operation), _ALLOWING[operation]
        for resource in self.patterns_of(resource_type, name):
            principals = self._rules.get(resource)
            if principals is not None:
                is_ruled = True
                denied, allowed = _operations(principals, principal, address)
                if denied & denying:
                    return False
                if allowed & allowing:
                    is_allowed = True
        return is_allowed if is_ruled else None

    def decide_on_any(
        self, principal: Principal, address: Address, operation: int, resource_type: int
    ) -> bool:
        """Returns whether rules allow the operation on at least one resource of the type, as Kafka's
        `Authorizer.authorizeByResourceType` does (KIP-679). No operation implies another here.
        """
        wanted = _or_all(operation)

        def is_denied(resource: _Resource) -> bool:
            return bool(_operations(self._rules.get(resource, {}), principal, address)[0] & wanted)

        every_resource = _Resource(resource_type, PatternType.LITERAL, WILDCARD)
        if is_denied(every_resource):
            return False
        if _operations(self._rules.get(every_resource, {}), principal, address)[1] & wanted:
            return True
        return any(
            hosts.operations_at(address)[1] & wanted
            and not is_denied(resource)
            and not any(map(is_denied, self._prefixes_of(resource_type, resource.name)))
            for holder in (principal, EVERY_USER)
            for resource, hosts in self._patterns.get((holder, resource_type), {}).items()
        )
