"""`tidelog kubernetes users` creates the users of a release, their Secrets and their ACLs (ADR 0036), and
`password-secret` creates Secrets with random passwords for etcd's users.

A user gets a random password in a Secret, unless the Secret exists. The command writes the first user,
`admin`, to etcd, because no broker accepts a login without a user, and then connects to the brokers as
`admin`.

The chart passes what its values name, without passwords. What the command has created is recorded, so that it
removes only that. A password that a template of the chart generated would also be in Helm's record of the
release, so a Job creates those of etcd's users before the installation.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from tidelog.cli.admin.user import check_unchanged_by_saslprep
from tidelog.cli.kubernetes.api_server import ApiServer, NotFoundError
from tidelog.cli.kubernetes.release import bootstrap_option, release_options
from tidelog.cli.kubernetes.upgrade import Progress, timeout_option
from tidelog.cli.local_cluster.plan import ADMIN
from tidelog.cli.local_cluster.secure_dev import PASSWORD_BYTES, new_entries, write_first_user
from tidelog.cli.output import counted, say
from tidelog.cli.services.service_options import etcd_options, settings_from
from tidelog.cli.tool_command import ToolCommand, ToolError
from tidelog.client.admin.access import (
    create_acls,
    delete_acls,
    delete_credentials,
    describe_users,
    set_password,
)
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.security import NO_SECURITY, ClientSecurity, parse_security
from tidelog.metadata.store import Put, StoreError
from tidelog.model.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.text import JsonObject
from tidelog.sasl import SCRAM_SHA_512
from tidelog.sasl.jaas import scram_login
from tidelog.sasl.scram import MECHANISM_BY_NAME, MIN_ITERATIONS
from tidelog.settings.properties_file import parse_properties

ASK_TIMEOUT_S: Final = 10.0
_RECORD_KEY: Final = "created.json"
_LABELS: Final = {"app.kubernetes.io/managed-by": "tidelog", "app.kubernetes.io/component": "user"}
_RESOURCES: Final[Mapping[str, ResourceType]] = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.CLUSTER,
}


@click.command(
    cls=ToolCommand,
    short_help="Create users, their Secrets and their ACLs.",
    examples=("tidelog kubernetes users --release tidelog -n kafka -b tidelog:9092 --wanted users.json",),
)
@release_options
@bootstrap_option
@click.option(
    "--wanted",
    "wanted_file",
    required=True,
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="The users and ACLs that the chart's values name, as JSON.",
)
@click.option(
    "--ca-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The authority of the brokers' certificates.",
)
@timeout_option
def create_users(
    release: str,
    namespace: str,
    bootstrap_server: str,
    wanted_file: Path,
    ca_file: Path | None,
    timeout_s: float,
) -> None:
    """Create the users that the values name, and remove those that the command created before and that the
    values no longer name. The command can run again at any time.
    """
    wanted = read_wanted(wanted_file)
    # Without TLS on the listener inside the cluster, the chart has no authority for the clients' listener.
    has_authority = ca_file is not None and wanted.inside_protocol != "PLAINTEXT"
    authority = ca_file.read_text("utf-8") if ca_file is not None and has_authority else ""
    objects = UserObjects(ApiServer.connect(), namespace, release, wanted, authority)
    progress = Progress(timeout_s)
    password = ensure_admin(objects, wanted, progress)
    cluster = connected(bootstrap_server, _security(wanted, password, authority), progress)
    with cluster:
        for user in wanted.users:
            ensure_user(cluster, objects, user, wanted, progress)
        apply_record(cluster, objects, wanted, progress)
    progress.end(
        f"{counted(len(wanted.users), 'user')} can log in, "
        f"and {counted(len(wanted.acls), 'ACL', 'is', 'are')} in place",
        users=[user.name for user in wanted.users],
        acls=len(wanted.acls),
    )


def read_wanted(path: Path) -> Wanted:
    """Returns what the chart's file describes. Raises ToolError."""
    try:
        return parse_wanted(json.loads(path.read_text("utf-8")))
    except OSError as error:
        raise ToolError(f"--wanted {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ToolError(f"--wanted {path}: not the users of the chart: {reason}") from error


class UserObjects:
    """The Secrets of users and the record, read from the API server and written there."""

    def __init__(
        self, server: ApiServer, namespace: str, release: str, wanted: Wanted, authority: str
    ) -> None:
        self._server = server
        self._namespace = namespace
        self._labels = {**_LABELS, "app.kubernetes.io/instance": release}
        self._wanted = wanted
        self._authority = authority

    def secret(self, name: str) -> Mapping[str, str]:
        """Returns the Secret's texts; none if it does not exist, or is as the chart makes it. Raises
        ToolError.
        """
        core = self._server.core
        try:
            found = self._server.call(core.read_namespaced_secret, name, self._namespace)
        except NotFoundError:
            return {}
        return {key: b64decode(value).decode() for key, value in (found.data or {}).items()}

    def write_secret(self, name: str, user: str, password: str, existing: Mapping[str, str]) -> None:
        """Fills the Secret, or brings what depends on the release up to date. Raises ToolError."""
        texts = {
            "username": user,
            "password": password,
            "client.properties": client_properties(
                self._wanted.users_protocol, user, password, self._authority
            ),
        }
        if self._authority:
            texts["ca.crt"] = self._authority
        if existing != texts:
            core = self._server.core
            write = core.patch_namespaced_secret, core.create_namespaced_secret
            self._write(name, {"stringData": texts}, *write)

    def record(self) -> Record | None:
        """Returns what was created before, or None if nothing is recorded. Raises ToolError."""
        core = self._server.core
        try:
            found = self._server.call(core.read_namespaced_config_map, self._wanted.record, self._namespace)
        except NotFoundError:
            return None
        text = (found.data or {}).get(_RECORD_KEY)
        return None if text is None else Record.decode(json.loads(text))

    def write_record(self, record: Record) -> None:
        core = self._server.core
        data = {"data": {_RECORD_KEY: json.dumps(record.encode())}}
        write = core.patch_namespaced_config_map, core.create_namespaced_config_map
        self._write(self._wanted.record, data, *write)

    def _write(
        self, name: str, body: dict[str, Any], patch: Callable[..., object], create: Callable[..., object]
    ) -> None:
        """Changes an object, which the chart has made empty: Kubernetes can't restrict by name who creates
        objects, so the chart's Job may not. Creates the object if somebody has deleted it.
        """
        try:
            self._server.call(patch, name, self._namespace, body)
        except NotFoundError:
            metadata = {"name": name, "labels": self._labels}
            self._server.call(create, self._namespace, {"metadata": metadata, **body})


def ensure_admin(objects: UserObjects, wanted: Wanted, progress: Progress) -> str:
    """Returns the password of `admin`, whose credentials are in etcd. Raises ToolError.

    The credentials are written first: if the Secret is missing, the next run sets another password.
    """
    existing = objects.secret(wanted.admin_secret)
    known = existing.get("password")
    password = known or secrets.token_urlsafe(PASSWORD_BYTES)
    while True:
        try:
            written = asyncio.run(_write_admin(password, wanted, replaces=known is None))
            break
        except (StoreError, OSError) as error:
            progress.wait(f"etcd does not answer: {error}")
    objects.write_secret(wanted.admin_secret, ADMIN, password, existing)
    if written:
        progress.tell(f"user {ADMIN}: its password is in Secret {wanted.admin_secret}")
    return password


async def _write_admin(password: str, wanted: Wanted, *, replaces: bool) -> bool:
    # These modules load gRPC, which the other commands of this group do not need.

    from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore

    entries = new_entries(ADMIN, password, wanted.mechanisms, MIN_ITERATIONS)
    store = EtcdMetadataStore(etcd_options(settings_from((), ())))
    try:
        if not replaces:
            return await write_first_user(store, entries)
        await store.txn([], [Put(entry.key, entry.encode()) for entry in entries])
        return True
    finally:
        await store.close()


def _security(wanted: Wanted, password: str, authority: str) -> ClientSecurity:
    if wanted.inside_protocol == "PLAINTEXT":
        return NO_SECURITY
    text = client_properties(wanted.inside_protocol, ADMIN, password, authority)
    return parse_security({found.name: found.value for found in parse_properties(text)})


def connected(bootstrap_server: str, security: ClientSecurity, progress: Progress) -> Cluster:
    """Returns a connection to the brokers, as soon as they accept it. Raises ToolError at the timeout."""
    while True:
        try:
            cluster = Cluster(
                bootstrap_server, client_id="tidelog-users", timeout_s=ASK_TIMEOUT_S, security=security
            )
        except ClientError as error:
            progress.wait(f"the brokers do not answer: {error}")
            continue
        try:
            describe_users(cluster)
        except (ClientError, KafkaError) as error:
            cluster.close()
            progress.wait(f"the brokers do not answer: {error}")
        else:
            return cluster


def ensure_user(
    cluster: Cluster, objects: UserObjects, user: WantedUser, wanted: Wanted, progress: Progress
) -> None:
    """Lets the user log in with the password of its Secret, which is created if it does not exist. Raises
    ToolError, KafkaError, ClientError.
    """
    existing = objects.secret(user.secret)
    known = existing.get("password")
    if user.is_given and not known:
        raise ToolError(f"users: Secret {user.secret} of user {user.name} has no key `password`; create it")
    password = known or secrets.token_urlsafe(PASSWORD_BYTES)
    check_unchanged_by_saslprep(f"the password in Secret {user.secret}", password)
    mechanisms = [MECHANISM_BY_NAME[name] for name in wanted.mechanisms]
    set_password(cluster, user.name, password, mechanisms, MIN_ITERATIONS)
    if not user.is_given:
        objects.write_secret(user.secret, user.name, password, existing)
    if known is None:
        progress.tell(f"user {user.name}: its password is in Secret {user.secret}")


def apply_record(cluster: Cluster, objects: UserObjects, wanted: Wanted, progress: Progress) -> None:
    """Creates the ACLs, and removes the users and ACLs that the command created and nobody wants any more.
    Everything is recorded before it is created. Raises ToolError, KafkaError, ClientError.
    """
    found = objects.record()
    record = found or Record()
    created = Record(
        record.users | {user.name for user in wanted.users},
        record.acls | wanted.acls if wanted.has_authorizer else record.acls,
    )
    if found != created:
        objects.write_record(created)
    gone = leaving(wanted, record)
    if wanted.has_authorizer:
        if wanted.acls:
            create_acls(cluster, sorted(wanted.acls))
        for binding in sorted(gone.acls):
            delete_acls(cluster, AclFilter(*binding))
    elif wanted.acls:
        progress.tell("authorization.enabled is false, so the ACLs are not created")
    for name in sorted(gone.users):
        _delete_user(cluster, name)
        progress.tell(f"user {name} can no longer log in; its Secret stays until you delete it")
    kept_acls = created.acls - gone.acls if wanted.has_authorizer else created.acls
    final = Record(created.users - gone.users, kept_acls)
    if final != created:
        objects.write_record(final)


def _delete_user(cluster: Cluster, name: str) -> None:
    try:
        mechanisms = [MECHANISM_BY_NAME[found.mechanism] for found in describe_users(cluster, [name])]
    except KafkaError as error:
        if error.code != ErrorCode.RESOURCE_NOT_FOUND:
            raise
        return
    delete_credentials(cluster, name, mechanisms)


class WantedUser(NamedTuple):
    """A user of the values. The command never writes a Secret that is given."""

    name: str
    secret: str
    is_given: bool
    acls: tuple[AclBinding, ...]


class Wanted(NamedTuple):
    """The users and ACLs that the values of a release name."""

    admin_secret: str
    record: str
    """The ConfigMap that records what the command has created."""
    mechanisms: tuple[str, ...]
    users: tuple[WantedUser, ...]
    has_authorizer: bool
    inside_protocol: str
    """The protocol at which the command connects to the brokers."""
    users_protocol: str
    """The protocol with which users log in."""

    @property
    def acls(self) -> frozenset[AclBinding]:
        return frozenset(binding for user in self.users for binding in user.acls)


class Record(NamedTuple):
    """The users and ACLs that the command has created."""

    users: frozenset[str] = frozenset()
    acls: frozenset[AclBinding] = frozenset()

    def encode(self) -> JsonObject:
        return {"users": sorted(self.users), "acls": sorted([*binding] for binding in self.acls)}

    @classmethod
    def decode(cls, value: JsonObject) -> Record:
        return cls(frozenset(value["users"]), frozenset(_binding(fields) for fields in value["acls"]))


def parse_wanted(value: JsonObject) -> Wanted:
    """Returns what the chart's JSON describes. Raises KeyError and ValueError if it is not the chart's."""
    return Wanted(
        value["admin"],
        value["record"],
        tuple(value["mechanisms"]),
        tuple(
            WantedUser(user["name"], user["secret"], user["isGiven"], tuple(_acls(user)))
            for user in value["users"]
        ),
        value["hasAuthorizer"],
        value["insideProtocol"],
        value["usersProtocol"],
    )


def leaving(wanted: Wanted, record: Record) -> Record:
    """Returns what the command has created and the values no longer name."""
    return Record(record.users - {user.name for user in wanted.users}, record.acls - wanted.acls)


def client_properties(protocol: str, user: str, password: str, authority: str) -> str:
    """Returns the properties with which a client of Kafka connects as this user. `authority` is the PEM of
    the certificates that signed the brokers'; without it, the client trusts the system's authorities.
    """
    lines = [f"security.protocol={protocol}"]
    if protocol.startswith("SASL_"):
        login = scram_login(user, password)
        lines += [f"sasl.mechanism={SCRAM_SHA_512}", f"sasl.jaas.config={_escaped(login)}"]
    if protocol.endswith("SSL") and authority:
        lines += ["ssl.truststore.type=PEM", f"ssl.truststore.certificates={_escaped(authority.strip())}"]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Returns the text as the value of a property."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _acls(user: JsonObject) -> Iterable[AclBinding]:
    for acl in user["acls"]:
        (kind,) = _RESOURCES.keys() & acl.keys()
        for operation in acl["operations"]:
            yield AclBinding(
                _RESOURCES[kind],
                PatternType.PREFIXED if acl.get("prefixed") else PatternType.LITERAL,
                CLUSTER_NAME if kind == "cluster" else acl[kind],
                Principal(f"User:{user['name']}"),
                acl.get("host", WILDCARD),
                AclOperation[operation.upper().replace("-", "_")],
                PermissionType[acl.get("permission", "allow").upper()],
            )


def _binding(fields: Sequence[Any]) -> AclBinding:
    kind, pattern, name, principal, host, operation, permission = fields
    return AclBinding(
        ResourceType(kind),
        PatternType(pattern),
        name,
        Principal(principal),
        host,
        AclOperation(operation),
        PermissionType(permission),
    )


@click.command(
    cls=ToolCommand,
    short_help="Create Secrets with random passwords.",
    examples=("tidelog kubernetes password-secret --release tidelog -n kafka --secret tidelog-admin=admin",),
)
@release_options
@click.option(
    "--secret",
    "wanted",
    multiple=True,
    required=True,
    metavar="NAME=USERNAME",
    help="A Secret, which is never changed if it exists, and the value of its `username`. Can be repeated.",
)
def create_secrets(release: str, namespace: str, wanted: tuple[str, ...]) -> None:
    """Create Secrets with the keys `username` and `password`, unless they exist."""
    named = [_name_and_username(text) for text in wanted]
    server = ApiServer.connect()
    for name, username in named:
        done = ensure_secret(server, release, namespace, name, username)
        say(done, is_one_of_many=True, secret=name, username=username)


def _name_and_username(text: str) -> tuple[str, str]:
    name, _, username = text.partition("=")
    if not name or not username:
        raise ToolError(f"--secret {text}: expected NAME=USERNAME")
    return name, username


def ensure_secret(server: ApiServer, release: str, namespace: str, name: str, username: str) -> str:
    """Fills a Secret that does not exist, or that the chart has made empty, because Kubernetes can't restrict
    by name who creates Secrets. Returns what was done. Raises ToolError.
    """
    texts = {"username": username, "password": secrets.token_urlsafe(PASSWORD_BYTES)}
    try:
        found = server.call(server.core.read_namespaced_secret, name, namespace)
    except NotFoundError:
        labels = {"app.kubernetes.io/managed-by": "tidelog", "app.kubernetes.io/instance": release}
        body = {"metadata": {"name": name, "labels": labels}, "stringData": texts}
        server.call(server.core.create_namespaced_secret, namespace, body)
    else:
        if (found.data or {}).get("password"):
            return f"Secret {name} exists"
        server.call(server.core.patch_namespaced_secret, name, namespace, {"stringData": texts})
    return f"Secret {name} contains a new password of {username}"
