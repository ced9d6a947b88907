"""The users that the chart wants, and what `tidelog kubernetes users` makes of them."""

from __future__ import annotations

import contextlib
import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client

from kuberneteslab.scripted_api_server import ScriptedApiServer
from tidelog.cli.kubernetes import users
from tidelog.cli.kubernetes.api_server import ApiServer
from tidelog.cli.kubernetes.upgrade import Progress
from tidelog.cli.kubernetes.users import (
    Record,
    UserObjects,
    Wanted,
    apply_record,
    client_properties,
    ensure_admin,
    ensure_secret,
    ensure_user,
    leaving,
    parse_wanted,
)
from tidelog.cli.main import main
from tidelog.cli.tool_command import ToolError
from tidelog.client.admin.access import UserCredential
from tidelog.client.cluster import Cluster
from tidelog.client.security import ClientSecurity, parse_security
from tidelog.model.acl import (
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
)
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


SECRETS = "/api/v1/namespaces/n/secrets"
NO_CLUSTER = cast(Cluster, None)


class Brokers:
    """The users and ACLs of a cluster, instead of the functions that send requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passwords: dict[str, str] = {}
        self.acls: set[AclBinding] = set()
        for name in ("set_password", "create_acls", "delete_acls", "describe_users", "delete_credentials"):
            monkeypatch.setattr(users, name, getattr(self, name))

    def set_password(self, cluster: Cluster, user: str, password: str, *_: Any) -> None:
        self.passwords[user] = password

    def create_acls(self, cluster: Cluster, bindings: list[AclBinding]) -> None:
        self.acls |= set(bindings)

    def delete_acls(self, cluster: Cluster, wanted: AclFilter) -> None:
        self.acls.discard(AclBinding(*cast(Any, wanted)))

    def describe_users(self, cluster: Cluster, names: list[str]) -> list[UserCredential]:
        return [UserCredential(name, "SCRAM-SHA-512", 4096) for name in names]

    def delete_credentials(self, cluster: Cluster, user: str, mechanisms: Any) -> None:
        del self.passwords[user]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


@pytest.fixture
def api() -> Iterator[ScriptedApiServer]:
    def encode(method: str, path: str, body: Any) -> None:
        """Acts like the API server on `stringData`."""
        found = server.objects.get(path if method == "PATCH" else f"{path}/{body['metadata']['name']}")
        if found and (texts := found.pop("stringData", None)):
            data = {name: b64encode(text.encode()).decode() for name, text in texts.items()}
            found["data"] = found.get("data", {}) | data

    with ScriptedApiServer() as server:
        server.on_write = encode
        yield server


def wanted_of(*entries: dict[str, Any], has_authorizer: bool = True) -> Wanted:
    return parse_wanted(values_of(*entries, has_authorizer=has_authorizer))


def values_of(*entries: dict[str, Any], has_authorizer: bool = True) -> dict[str, Any]:
    """Returns the contents of the file that the chart writes."""
    return {
        "admin": "s-admin",
        "record": "r",
        "mechanisms": ["SCRAM-SHA-512"],
        "users": [
            {"secret": f"s-{entry['name']}", "isGiven": False, "acls": [], **entry} for entry in entries
        ],
        "hasAuthorizer": has_authorizer,
        "insideProtocol": "SASL_SSL",
        "usersProtocol": "SASL_SSL",
    }


def objects_of(api: ScriptedApiServer, wanted: Wanted) -> UserObjects:
    server = ApiServer(client.ApiClient(client.Configuration(host=api.url)), retry_for_s=0)
    return UserObjects(server, "n", "r", wanted, "AUTHORITY\n")


def run(api: ScriptedApiServer, wanted: Wanted) -> None:
    objects = objects_of(api, wanted)
    for user in wanted.users:
        ensure_user(NO_CLUSTER, objects, user, wanted, Progress(1))
    apply_record(NO_CLUSTER, objects, wanted, Progress(1))


READ = {"topic": "t", "operations": ["read"]}
WRITE = {"topic": "t", "operations": ["write"]}


def test_a_user_gets_a_random_password_once(api: ScriptedApiServer, brokers: Brokers) -> None:
    wanted = wanted_of({"name": "alice", "acls": [READ]})
    run(api, wanted)
    first = objects_of(api, wanted).secret("s-alice")
    assert len(first["password"]) >= 32
    assert brokers.passwords == {"alice": first["password"]}
    assert first["ca.crt"] == "AUTHORITY\n"
    assert f'password=\\"{first["password"]}\\"'.replace("\\", "") in first["client.properties"]
    writes = len(api.writes)
    run(api, wanted)
    assert objects_of(api, wanted).secret("s-alice") == first
    assert len(api.writes) == writes, "a second run changes nothing in Kubernetes"
    assert brokers.acls == wanted.acls


def test_only_what_was_created_is_removed(api: ScriptedApiServer, brokers: Brokers) -> None:
    brokers.passwords["by-hand"] = "x"
    (by_hand,) = wanted_of({"name": "by-hand", "acls": [READ]}).acls
    brokers.acls.add(by_hand)
    run(api, wanted_of({"name": "alice", "acls": [READ, WRITE]}, {"name": "bob"}))
    after = wanted_of({"name": "alice", "acls": [WRITE]})
    run(api, after)
    assert set(brokers.passwords) == {"alice", "by-hand"}
    assert brokers.acls == {by_hand} | after.acls
    record = json.loads(api.objects["/api/v1/namespaces/n/configmaps/r"]["data"]["created.json"])
    assert record["users"] == ["alice"]
    assert len(record["acls"]) == 1


def test_a_given_secret_is_read_and_never_written(api: ScriptedApiServer, brokers: Brokers) -> None:
    wanted = wanted_of({"name": "alice", "secret": "mine", "isGiven": True})
    with pytest.raises(ToolError, match="Secret mine of user alice has no key `password`"):
        run(api, wanted)
    api.put(f"{SECRETS}/mine", data={"password": b64encode(b"chosen").decode()})
    run(api, wanted)
    assert brokers.passwords == {"alice": "chosen"}
    assert not [path for _, path, _ in api.writes if path.startswith(SECRETS)]


def test_acls_wait_for_an_authorizer(api: ScriptedApiServer, brokers: Brokers) -> None:
    run(api, wanted_of({"name": "alice", "acls": [READ]}, has_authorizer=False))
    assert not brokers.acls
    run(api, wanted_of({"name": "alice"}))
    assert not brokers.acls


def test_the_first_user_is_replaced_only_if_its_secret_is_missing(
    api: ScriptedApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, bool]] = []

    async def note(password: str, wanted: Wanted, *, replaces: bool) -> bool:
        has_password = "data" in api.objects.get(f"{SECRETS}/s-admin", {})
        assert replaces == (not has_password), "etcd is written first"
        written.append((password, replaces))
        return replaces

    monkeypatch.setattr(users, "_write_admin", note)
    wanted = wanted_of()
    first = ensure_admin(objects_of(api, wanted), wanted, Progress(1))
    assert ensure_admin(objects_of(api, wanted), wanted, Progress(1)) == first
    api.put(f"{SECRETS}/s-admin")  # deleted, and made again by the chart
    second = ensure_admin(objects_of(api, wanted), wanted, Progress(1))
    assert second != first
    assert written == [(first, True), (first, False), (second, True)]


def test_objects_that_the_chart_made_are_filled_without_creating_any(
    api: ScriptedApiServer, brokers: Brokers
) -> None:
    """The chart's Job may not create Secrets, because it could then create any."""
    api.put(f"{SECRETS}/s-alice")
    api.put("/api/v1/namespaces/n/configmaps/r")
    wanted = wanted_of({"name": "alice", "acls": [READ]})
    run(api, wanted)
    run(api, wanted)
    assert {method for method, _, _ in api.writes} == {"PATCH"}
    assert brokers.passwords == {"alice": objects_of(api, wanted).secret("s-alice")["password"]}
    api.put(f"{SECRETS}/etcd-user")
    server = ApiServer(client.ApiClient(client.Configuration(host=api.url)), retry_for_s=0)
    assert "new password of root" in ensure_secret(server, "r", "n", "etcd-user", "root")
    assert "exists" in ensure_secret(server, "r", "n", "etcd-user", "root")
    assert {method for method, _, _ in api.writes} == {"PATCH"}


def test_a_password_secret_is_created_once(api: ScriptedApiServer) -> None:
    server = ApiServer(client.ApiClient(client.Configuration(host=api.url)), retry_for_s=0)
    assert "new password of root" in ensure_secret(server, "r", "n", "etcd-user", "root")
    first = api.objects[f"{SECRETS}/etcd-user"]["data"]
    assert "exists" in ensure_secret(server, "r", "n", "etcd-user", "root")
    assert api.objects[f"{SECRETS}/etcd-user"]["data"] == first
    assert len(api.writes) == 1


def test_json_lists_each_secret(
    api: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path)))
    wanted = ("--secret", "etcd-root=root", "--secret", "etcd-broker=broker.tidelog")
    places = ("--release", "r", "--namespace", "n", "--format", "json")
    done = CliRunner().invoke(main, ["kubernetes", "password-secret", *places, *wanted])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == [
        {
            "message": "Secret etcd-root contains a new password of root",
            "secret": "etcd-root",
            "username": "root",
        },
        {
            "message": "Secret etcd-broker contains a new password of broker.tidelog",
            "secret": "etcd-broker",
            "username": "broker.tidelog",
        },
    ]
    one = CliRunner().invoke(main, ["kubernetes", "password-secret", *places, *wanted[:2]])
    assert [row["message"] for row in json.loads(one.stdout)] == ["Secret etcd-root exists"]


def test_a_wrong_secret_is_refused_before_any_is_created(
    api: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path)))
    wanted = ("--release", "r", "--namespace", "n", "--secret", "etcd-root=root", "--secret", "etcd-broker")
    done = CliRunner().invoke(main, ["kubernetes", "password-secret", *wanted])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "--secret etcd-broker: expected NAME=USERNAME" in done.stderr
    assert api.writes == []


def test_json_has_the_users_and_progress_is_a_note(
    api: ScriptedApiServer, brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write_admin(password: str, wanted: Wanted, *, replaces: bool) -> bool:
        return replaces

    monkeypatch.setattr(users, "_write_admin", write_admin)
    monkeypatch.setattr(users, "connected", lambda *_: contextlib.nullcontext(NO_CLUSTER))
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path)))
    wanted_file = tmp_path / "users.json"
    places = (
        "--release",
        "r",
        "--namespace",
        "n",
        "-b",
        "b:9092",
        "--wanted",
        str(wanted_file),
        "--format",
        "json",
    )

    def told() -> tuple[dict[str, Any], str]:
        done = CliRunner().invoke(main, ["kubernetes", "users", *places])
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout), done.stderr

    wanted_file.write_text(json.dumps(values_of({"name": "alice", "acls": [READ, WRITE]}, {"name": "bob"})))
    document, notes = told()
    assert (document["users"], document["acls"]) == (["alice", "bob"], 2)
    assert document["message"].endswith("2 users can log in, and 2 ACLs are in place")
    assert "user alice: its password is in Secret s-alice" in notes
    wanted_file.write_text(json.dumps(values_of({"name": "alice"})))
    document, notes = told()
    assert (document["users"], document["acls"]) == (["alice"], 0)
    assert "user bob can no longer log in" in notes


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_wrong_file_of_users_is_one_line(
    api: ScriptedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path)))
    (tmp_path / "users.json").write_text(text)
    places = ("--release", "r", "--namespace", "n", "-b", "b:9092", "--wanted", str(tmp_path / "users.json"))
    done = CliRunner().invoke(main, ["kubernetes", "users", *places])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"tidelog: --wanted {tmp_path / 'users.json'}: "), done.exception
