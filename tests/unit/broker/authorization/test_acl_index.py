"""The index of ACLs decides as a search through all ACLs does."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerlab.counted_work import lines_of
from tidelog.broker.security import acl_index
from tidelog.broker.security.access import MAX_REMEMBERED_DECISIONS, Access
from tidelog.broker.security.acl_index import AclIndex, client_address
from tidelog.kernel.steps import all_at_once
from tidelog.model.acl import (
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
    acl_filter,
    new_binding,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.create_acls import AclCreation
from tidelog.wire.messages.describe_acls import DescribeAclsRequest

NAMES = ("*", "a", "ab", "abc", "b", "hardcode")
PRINCIPALS = (Principal("User:x"), Principal("User:y"), Principal("User:*"), Principal("Group:x"))
HOSTS = (
    "*",
    "10.0.0.1",
    "10.0.0.1/32",
    "10.0.0.0/8",
    "10.2.0.0/16",
    "192.168.0.0/16",
    "0.0.0.0/0",
    "::1",
    "0:0:0:0:0:0:0:1",
    "2001:db8::/32",
    "::/0",
)
CLIENTS = ("10.0.0.1", "10.2.3.4", "192.168.1.1", "::1", "0:0:0:0:0:0:0:1", "::ffff:10.0.0.1", "2001:db8::5")
KINDS = (ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = [operation for operation in AclOperation if operation > AclOperation.ALL]

bindings = st.builds(
    AclBinding,
    st.sampled_from(KINDS),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    st.sampled_from(NAMES),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from([AclOperation.ALL, *OPERATIONS]),
    st.sampled_from((PermissionType.DENY, PermissionType.ALLOW)),
)


def steps(work: Callable[[], object]) -> int:
    """Returns how many lines of the index `work` runs."""
    return lines_of(work, file=acl_index.__file__)


def rule(
    name: str,
    principal: str = "User:*",
    host: str = "*",
    operation: AclOperation = AclOperation.READ,
    pattern_type: PatternType = PatternType.LITERAL,
    permission: PermissionType = PermissionType.ALLOW,
) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, pattern_type, name, Principal(principal), host, operation, permission
    )


def test_prefixes_of_others_cost_a_decision_little() -> None:
    """Each length of a prefix costs one look-up, whose result is usually that no prefix of the name is
    there.
    """
    lengths = 200
    prefixes = [rule("a" * length, pattern_type=PatternType.PREFIXED) for length in range(1, lengths + 1)]
    index = all_at_once(AclIndex().changed((), prefixes))
    name = "b" * lengths
    found = index.patterns_of(ResourceType.TOPIC, name)
    assert [pattern.name for pattern in found] == [name, "*"]
    after = all_at_once(index.changed(prefixes[3:4], [rule("bb", pattern_type=PatternType.PREFIXED)]))
    assert [pattern.name for pattern in after.patterns_of(ResourceType.TOPIC, name)] == ["bb", name, "*"]
    left = [pattern.name for pattern in after.patterns_of(ResourceType.TOPIC, "aaaaa")]
    assert left == ["a", "aa", "aaa", "aaaaa", "aaaaa", "*"]


def address(number: int) -> str:
    return f"10.1.{number // 250}.{number % 250}"


def _contains(binding: AclBinding, name: str) -> bool:
    if binding.pattern_type is PatternType.PREFIXED:
        return name.startswith(binding.resource_name)
    return binding.resource_name in (name, "*")


def _is_at(binding: AclBinding, host: str) -> bool:
    address = ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    if binding.host == "*":
        return True
    if "/" in binding.host:
        return address in ip_network(binding.host)
    return address == ip_address(binding.host)


IMPLIED = {
    AclOperation.DESCRIBE: {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}


def naive(
    acls: Set[AclBinding],
    principal: str,
    host: str,
    operation: AclOperation,
    kind: ResourceType,
    name: str,
) -> bool | None:
    """Decides as Kafka's StandardAuthorizer is documented to do."""
    of_resource = [acl for acl in acls if acl.resource_type is kind and _contains(acl, name)]
    if not of_resource:
        return None
    of_client = [acl for acl in of_resource if acl.principal in (principal, "User:*") and _is_at(acl, host)]
    granting = {AclOperation.ALL, operation} | IMPLIED.get(operation, set())
    for acl in of_client:
        if acl.permission is PermissionType.DENY and acl.operation in (AclOperation.ALL, operation):
            return False
    return any(acl.permission is PermissionType.ALLOW and acl.operation in granting for acl in of_client)


@given(
    st.lists(st.tuples(st.lists(bindings, max_size=6), st.lists(bindings, max_size=6)), max_size=6), st.data()
)
def test_decisions_are_those_of_a_search(
    history: list[tuple[list[AclBinding], list[AclBinding]]], data: st.DataObject
) -> None:
    """Also those of all indexes before a change, which readers may still have."""
    acls: set[AclBinding] = set()
    states = [(AclIndex(), frozenset(acls))]
    for removed, added in history:
        if acls:
            removed = [*removed, *data.draw(st.lists(st.sampled_from(sorted(acls)), max_size=6))]
        acls = (acls - set(removed)) | set(added)
        states.append((all_at_once(states[-1][0].changed(removed, added)), frozenset(acls)))
    states.append((all_at_once(AclIndex().changed([], acls)), frozenset(acls)))
    states.append((all_at_once(states[-1][0].changed(acls, [])), frozenset()))
    principal, host, operation, kind, name = (
        data.draw(st.sampled_from(values))
        for values in (PRINCIPALS[:2], CLIENTS, OPERATIONS, KINDS, ("a", "ab", "abc", "abcd", "b", "z"))
    )
    for index, at_that_time in states:
        expected = naive(at_that_time, principal, host, operation, kind, name)
        assert index.decide(principal, client_address(host), operation, kind, name) == expected


@given(
    st.lists(bindings, max_size=10),
    st.lists(bindings, max_size=6),
    st.sampled_from(CLIENTS),
    st.sampled_from(OPERATIONS),
)
def test_some_resource_is_allowed_if_a_rule_allows_a_name_that_no_rule_denies(
    acls: list[AclBinding], removed: list[AclBinding], host: str, operation: AclOperation
) -> None:
    """Only ACLs with this operation count, so the naive decision about many names is comparable."""
    direct = {acl for acl in acls if acl.operation in (operation, AclOperation.ALL)}
    before = all_at_once(AclIndex().changed([], direct | set(removed)))
    for index, left in (
        (all_at_once(AclIndex().changed([], direct)), direct),
        (all_at_once(before.changed(removed, [])), direct - set(removed)),
    ):
        found = index.decide_on_any(Principal("User:x"), client_address(host), operation, KINDS[0])
        names = {acl.resource_name + tail for acl in left for tail in ("", "c", "~")} | {"~"}
        expected = any(naive(left, "User:x", host, operation, KINDS[0], name) for name in names - {"*"})
        assert found == expected


@pytest.mark.parametrize(
    ("pattern_type", "name", "selected"),
    [
        (PatternType.ANY, None, {"lit", "pre", "*"}),
        (PatternType.LITERAL, "lit", {"lit"}),
        (PatternType.PREFIXED, "pre", {"pre"}),
        (PatternType.PREFIXED, "prefix", set()),
        (PatternType.ANY, "pre", {"pre"}),
        (PatternType.MATCH, "lit", {"lit", "*"}),
        (PatternType.MATCH, "prefix", {"pre", "*"}),
        (PatternType.MATCH, None, {"lit", "pre", "*"}),
    ],
)
def test_filters(pattern_type: PatternType, name: str | None, selected: set[str]) -> None:
    patterns = {"lit": PatternType.LITERAL, "pre": PatternType.PREFIXED, "*": PatternType.LITERAL}
    wanted = AclFilter(
        ResourceType.TOPIC, pattern_type, name, None, None, AclOperation.ANY, PermissionType.ANY
    )
    found = {
        text
        for text, kind in patterns.items()
        if wanted.matches(
            AclBinding(
                ResourceType.TOPIC,
                kind,
                text,
                Principal("User:x"),
                "*",
                AclOperation.READ,
                PermissionType.ALLOW,
            )
        )
    }
    assert found == selected


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_type": 99}, "unknown element"),
        ({"resource_type": 4}, "only valid name for the CLUSTER"),
        ({"resource_name": ""}, "empty resource name"),
        ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"permission_type": 1}, "Invalid permissionType ANY"),
        ({"principal": "alice"}, "does not have the form"),
        ({"host": "10.0.0.0/99"}, "CIDR"),
        ({"host": ""}, "empty host"),
        ({"resource_name": "x" * 5000}, "at most"),
    ],
)
def test_invalid_acls_are_refused(fields: dict[str, object], problem: str) -> None:
    creation = AclCreation(2, "t", 3, "User:x", "*", 3, 3)
    for name, value in fields.items():
        setattr(creation, name, value)
    with pytest.raises(KafkaError, match=problem) as caught:
        new_binding(creation)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_filters_with_unknown_numbers_are_refused() -> None:
    with pytest.raises(KafkaError, match="unknown element"):
        acl_filter(DescribeAclsRequest(resource_type_filter=0, operation=1, permission_type=1))


def test_a_connection_remembers_a_bounded_number_of_short_names() -> None:
    access = Access(Principal("User:x"), "10.0.0.1", AclIndex(), False)
    for number in range(3 * MAX_REMEMBERED_DECISIONS):
        for kind in KINDS:
            assert access.decide(AclOperation.READ, kind, f"n{number}", True)
        assert not access.decide(AclOperation.READ, ResourceType.GROUP, "g" * 300, False)
        known = sum(len(access.decisions(AclOperation.READ, kind)) for kind in KINDS)
        assert known <= MAX_REMEMBERED_DECISIONS
    assert "g" * 300 not in access.decisions(AclOperation.READ, ResourceType.GROUP)


@pytest.mark.parametrize("pattern_type", [PatternType.LITERAL, PatternType.PREFIXED])
def test_a_change_does_not_look_at_other_acls(pattern_type: PatternType) -> None:
    added = rule("added", "User:x", pattern_type=pattern_type)

    def cost(count: int) -> int:
        others = [rule(f"{number:04}", pattern_type=pattern_type) for number in range(count)]
        index = all_at_once(AclIndex().changed([], others))
        return steps(lambda: all_at_once(all_at_once(index.changed([], [added])).changed([added], [])))

    assert cost(2_000) == cost(2)


def test_the_search_for_any_allowed_resource_does_not_look_at_other_principals() -> None:
    def cost(count: int) -> int:
        others = [rule(f"{number:04}", "User:y", operation=AclOperation.WRITE) for number in range(count)]
        index = all_at_once(AclIndex().changed([], [*others, rule("a", "User:x"), rule("a")]))
        return steps(lambda: index.decide_on_any(PRINCIPALS[0], "", AclOperation.WRITE, ResourceType.TOPIC))

    assert cost(2_000) == cost(2)


@pytest.mark.parametrize("host_of", [address, "172.{}.0.0/16".format], ids=["addresses", "ranges"])
def test_a_decision_does_not_look_at_other_hosts(host_of: Callable[[int], str]) -> None:
    client = client_address("192.168.0.1")

    def cost(count: int) -> int:
        index = all_at_once(
            AclIndex().changed([], [rule("*", host=host_of(number)) for number in range(count)])
        )
        assert not index.decide(PRINCIPALS[0], client, AclOperation.READ, ResourceType.TOPIC, "a")
        return steps(lambda: index.decide(PRINCIPALS[0], client, AclOperation.READ, ResourceType.TOPIC, "a"))

    assert cost(200) == cost(2)


class ComparedBinding(AclBinding):
    """Counts the comparisons of bindings."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        ComparedBinding.compared += 1
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        ComparedBinding.compared += 1
        return super().__ne__(other)

    __hash__ = AclBinding.__hash__


def test_the_removal_of_many_rules_of_a_principal_does_not_compare_each_with_each() -> None:
    count = 300
    rules = [ComparedBinding(*rule("*", host=address(number))) for number in range(count)]
    index = all_at_once(AclIndex().changed([], rules))
    ComparedBinding.compared = 0
    assert (
        all_at_once(index.changed(rules, [])).decide(PRINCIPALS[0], "", AclOperation.READ, KINDS[0], "a")
        is None
    )
    assert ComparedBinding.compared < 10 * count


def test_many_new_rules_of_a_principal_are_not_a_copy_of_its_rules_each() -> None:
    """The copies are made in C, so this compares times: 20 to 1 if all rules are copied for each."""
    known = [rule("*", host=address(number)) for number in range(20_000)]
    added = [rule("*", host=address(number)) for number in range(20_000, 20_500)]

    def took_ns(index: AclIndex) -> int:
        before_ns = time.process_time_ns()
        all_at_once(index.changed([], added))
        return time.process_time_ns() - before_ns

    few, many = AclIndex(), all_at_once(AclIndex().changed([], known))
    assert min(took_ns(many) for _ in range(5)) < 10 * min(took_ns(few) for _ in range(5))
