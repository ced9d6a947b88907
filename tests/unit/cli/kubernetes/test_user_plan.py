"""Plans of users and ACLs: what is created, what is removed, and what client.properties contains."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.kubernetes.users import Record, client_properties, leaving, parse_wanted
from tidelog.client.security import ClientSecurity, parse_security
from tidelog.model.acl import AclBinding, AclOperation, PatternType, PermissionType, Principal, ResourceType
from tidelog.sasl import SCRAM_SHA_512
from tidelog.sasl.login import SaslLogin
from tidelog.settings.properties_file import parse_properties

NAMES = st.sampled_from(["alice", "bob", "carol"])
ACLS = st.builds(
    lambda kind, name, operations, more: {kind: name, "operations": operations, **more},
    st.sampled_from(["topic", "group", "transactionalId"]),
    st.sampled_from(["a", "b", "*"]),
    st.lists(st.sampled_from(["read", "write", "describe-configs"]), min_size=1, max_size=2, unique=True),
    st.sampled_from([{}, {"prefixed": True}, {"permission": "deny"}, {"host": "192.0.2.1"}]),
)
USERS = st.lists(
    st.builds(
        lambda name, acls: {"name": name, "secret": f"s-{name}", "isGiven": False, "acls": acls},
        NAMES,
        st.lists(ACLS, max_size=3),
    ),
    max_size=3,
    unique_by=lambda user: user["name"],
)


def wanted_json(users: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "admin": "s-admin",
        "record": "users",
        "mechanisms": ["SCRAM-SHA-512"],
        "users": users,
        "hasAuthorizer": True,
        "insideProtocol": "SASL_SSL",
        "usersProtocol": "SASL_SSL",
    }


@given(USERS, USERS)
def test_only_what_was_created_and_is_no_longer_wanted_leaves(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    first, second = parse_wanted(wanted_json(before)), parse_wanted(wanted_json(after))
    created = Record(frozenset(user.name for user in first.users), first.acls)
    gone = leaving(second, created)
    assert gone.users == created.users - {user.name for user in second.users}
    assert gone.acls == first.acls - second.acls
    assert leaving(second, Record()) == Record()


@given(USERS)
def test_a_record_survives_its_encoding(users: list[dict[str, Any]]) -> None:
    wanted = parse_wanted(wanted_json(users))
    record = Record(frozenset(user.name for user in wanted.users), wanted.acls)
    assert Record.decode(record.encode()) == record


def test_an_acl_of_the_values_is_a_binding_for_its_user() -> None:
    acl = {"topic": "flights", "prefixed": True, "operations": ["describe-configs"], "permission": "deny"}
    user = {"name": "alice", "secret": "s", "isGiven": True, "acls": [acl]}
    assert parse_wanted(wanted_json([user])).acls == {
        AclBinding(
            ResourceType.TOPIC,
            PatternType.PREFIXED,
            "flights",
            Principal("User:alice"),
            "*",
            AclOperation.DESCRIBE_CONFIGS,
            PermissionType.DENY,
        )
    }


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_tools_read_the_password_in_client_properties(password: str) -> None:
    text = client_properties("SASL_PLAINTEXT", "alice", password, "")
    properties = {found.name: found.value for found in parse_properties(text)}
    security = parse_security(properties)
    assert security == ClientSecurity(None, SaslLogin(SCRAM_SHA_512, "alice", password))
