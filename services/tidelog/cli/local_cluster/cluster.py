"""A local cluster: its directory, its start and its stop.

DIR/cluster.json        the plan: number and ports of the processes
DIR/pids.json           the pid of each started process
DIR/renewals.json       the pid of the process that renews the certificates
DIR/config/NAME.properties   the settings of each service
DIR/logs/NAME.log       the output of each process
DIR/authority           the authority of the cluster's certificates, and its key
DIR/certificates/NAME   the certificate and the key of each service
DIR/broker-1, ...       the brokers' logs;  DIR/etcd-1: etcd's data
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.cli.local_cluster.plan import (
    ADMIN,
    AUTHORITY_DIRECTORY,
    BROKER,
    CLIENT_PROPERTIES,
    COMMANDS,
    CONFIG_DIRECTORY,
    CONTROLLER,
    COORDINATOR,
    ETCD,
    LISTENERS,
    LOGS_DIRECTORY,
    PLAN_FILE,
    TOOLS,
    ClusterPlan,
    Member,
    PlanError,
    encode_properties,
)
from tidelog.cli.local_cluster.processes import EtcdNotFoundError, ProcessTable, find_etcd, tail
from tidelog.cli.output import note
from tidelog.cli.tool_command import ToolError
from tidelog.client.address import parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.client.errors import ClientError
from tidelog.client.security import ClientSecurity, environment_security, read_security
from tidelog.kernel.instants import WallMs
from tidelog.metadata.store import StoreError
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from tidelog.metadata.etcd.connection import EtcdOptions

START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.05
RENEWALS: Final = "renewals"
RENEWALS_FILE: Final = "renewals.json"
"""The name of the process that renews certificates. No other process knows the key of the authority."""
_STOP_ORDER: Final = (BROKER, COORDINATOR, CONTROLLER, ETCD)
"""The order of the stop. Brokers are first, because they hand over to the other processes."""
ANSWER_TIMEOUT_S: Final = 2.0
_READY: Final = re.compile(rb"^ready: ", re.MULTILINE)


class LocalCluster:
    """A local cluster, made by `create` or `open`. Expected failures print the log and raise ToolError."""

    def __init__(self, directory: Path, plan: ClusterPlan) -> None:
        self.directory = directory
        self.plan = plan
        self.processes = ProcessTable(directory)
        self.renewals = ProcessTable(directory, RENEWALS_FILE)
        self._log_starts: dict[str, int] = {}

    @classmethod
    def create(cls, directory: Path, plan: ClusterPlan) -> LocalCluster:
        """Writes the plan and the configuration without starting anything."""
        cluster = cls(directory.resolve(), plan)
        configs = cluster.directory / CONFIG_DIRECTORY
        configs.mkdir(parents=True, exist_ok=True)
        for member in plan.members:
            if member.kind != ETCD:
                text = encode_properties(plan.properties(member, cluster.directory))
                cluster._config_path(member).write_text(text, "utf-8")
        cluster.renew_certificates()
        (cluster.directory / PLAN_FILE).write_text(plan.encode() + "\n")
        return cluster

    @classmethod
    def open(cls, directory: Path) -> LocalCluster:
        directory = directory.resolve()
        try:
            text = (directory / PLAN_FILE).read_text()
        except (FileNotFoundError, NotADirectoryError):
            raise ToolError(
                f"--data-dir {directory}: no cluster exists here; 'tidelog cluster up' creates one"
            ) from None
        try:
            return cls(directory, ClusterPlan.decode(text))
        except PlanError as error:
            raise ToolError(f"--data-dir {directory}: {error}") from error

    def renew_certificates(self, *, even_if_not_due: bool = False) -> list[str]:
        """Creates the authority and the certificates if they are missing, and renews those that are due.

        Running processes use new ones for new connections.

        Returns the names of the holders of new certificates. Raises ToolError.
        """
        from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority  # loads cryptography
        from tidelog.cli.local_cluster.secure_dev import write_keystore

        now_ms = WallMs(time.time_ns() // 1_000_000)
        renewed = []
        try:
            authority = CertificateAuthority.open(self.directory / AUTHORITY_DIRECTORY, now_ms=now_ms)
            for member in self.plan.certificate_holders:
                directory = self.plan.certificate_directory(member, self.directory)
                names = self.plan.certificate_names(member)
                if even_if_not_due:
                    authority.issue(directory, names, now_ms=now_ms)
                    renewed.append(member.name)
                elif authority.renew(directory, names, now_ms=now_ms):
                    renewed.append(member.name)
                if member.kind == LISTENERS:
                    write_keystore(directory)
        except OSError as error:
            raise ToolError(f"certificates: {error}") from error
        return renewed

    def member(self, name: str) -> Member:
        try:
            return self.plan.member(name)
        except PlanError as error:
            raise ToolError(str(error)) from error

    def running(self) -> list[str]:
        return [member.name for member in self.plan.members if self.processes.pid(member.name) is not None]

    def log_path(self, name: str) -> Path:
        return self.directory / LOGS_DIRECTORY / f"{name}.log"

    def log_dir(self, broker_id: int) -> Path:
        """Returns the data directory of a broker."""
        return Path(self.plan.properties(Member(BROKER, broker_id), self.directory)["log.dirs"])

    def _config_path(self, member: Member) -> Path:
        return self.directory / CONFIG_DIRECTORY / f"{member.name}.properties"

    def etcd_options(self) -> EtcdOptions:
        """The options with which the command line connects to etcd."""
        from tidelog.metadata.etcd.connection import EtcdOptions  # loads gRPC

        certificate = self.plan.certificate_directory(Member(TOOLS, 1), self.directory)
        return EtcdOptions(
            (self.plan.etcd_url,),
            ca_file=str(certificate / "ca.crt"),
            cert_file=str(certificate / "tls.crt"),
            key_file=str(certificate / "tls.key"),
            prefix=self.plan.settings.get("tidelog.etcd.prefix", ""),
        )

    # -- security

    def ensure_etcd_users(self) -> None:
        """Lets each kind of service reach only the keys of etcd that it needs.

        etcd takes the common name of a certificate for the user, and the command line has the role root.
        Raises ToolError.
        """
        from tidelog.cli.services.etcd import service_users  # loads gRPC
        from tidelog.metadata.etcd.users import ROOT, ROOT_ROLE, EtcdUser, require_users

        administrators = [EtcdUser(name, ROOT_ROLE) for name in (ROOT, Member(TOOLS, 1).name)]
        users = [*administrators, *service_users(lambda _: "")]
        try:
            asyncio.run(require_users(self.etcd_options(), users))
        except StoreError as error:
            raise ToolError(f"the users of etcd cannot be created: {error}") from error

    def start_renewals(self) -> None:
        """Starts the process that renews certificates while the cluster runs, unless it runs already."""
        if self.renewals.pid(RENEWALS) is None:
            command = [sys.executable, "-m", "tidelog.cli.main", "cluster", "renew-certificates", "--watch"]
            self.renewals.spawn(
                RENEWALS, [*command, "--data-dir", str(self.directory)], self.log_path(RENEWALS)
            )

    def ensure_admin(self) -> Path:
        """Creates the user `admin` with a random password in etcd, unless `client.properties` exists, which
        contains it. Returns this file. Raises ToolError.
        """
        path = self.directory / CLIENT_PROPERTIES
        if not path.exists():
            try:
                asyncio.run(self._create_admin(path))
            except (OSError, StoreError) as error:
                raise ToolError(f"the user {ADMIN} cannot be created: {error}") from error
        return path

    async def _create_admin(self, path: Path) -> None:
        from tidelog.cli.local_cluster.secure_dev import write_admin
        from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore

        ca = self.plan.certificate_directory(Member(TOOLS, 1), self.directory) / "ca.crt"
        await write_admin(EtcdMetadataStore(self.etcd_options()), path, ca)

    # -- starting

    def spawn(self, member: Member) -> None:
        log_path = self.log_path(member.name)
        self._log_starts[member.name] = log_path.stat().st_size if log_path.exists() else 0
        self.processes.spawn(member.name, self._command(member), log_path)

    def _command(self, member: Member) -> list[str]:
        if member.kind == ETCD:
            try:
                return [str(find_etcd().path), *self.plan.etcd_arguments(self.directory)]
            except EtcdNotFoundError as error:
                raise ToolError(str(error)) from error
        service = [sys.executable, "-m", "tidelog.cli.main", COMMANDS[member.kind]]
        return [*service, "--config", str(self._config_path(member))]

    def wait_until_serving(self, members: Iterable[Member], timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the members serve.

        Raises ToolError, after printing the end of the log, if one of them ends or at the timeout.
        """
        deadline_s = time.monotonic() + timeout_s
        waited_for = list(members)
        while waited_for := [member for member in waited_for if not self._serves(member)]:
            for member in waited_for:
                if self.processes.pid(member.name) is None:
                    raise self._failure(member.name, "ended instead of starting")
            if time.monotonic() >= deadline_s:
                name = waited_for[0].name
                raise self._failure(name, f"does not serve after {timeout_s:g} s")
            time.sleep(POLL_S)

    def _serves(self, member: Member) -> bool:
        if member.kind == ETCD:
            return etcd_serves(self.plan.etcd_metrics_address)
        return has_said_ready(self.log_path(member.name), self._log_starts.get(member.name, 0))

    def wait_until_brokers_know_each_other(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until every broker returns all brokers in its Metadata. Raises ToolError."""
        expected = set(self.plan.broker_ids)
        properties = self.directory / CLIENT_PROPERTIES
        security = read_security(properties) if self.plan.is_secure else environment_security()

        def all_known(broker_id: int) -> bool:
            return expected <= brokers_known_to(self.plan.broker_address(broker_id), security)

        self._wait_for(all_known, self.plan.broker_ids, timeout_s)

    def _wait_for(self, holds: Callable[[int], bool], broker_ids: Iterable[int], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        left = list(broker_ids)
        while left := [broker_id for broker_id in left if not holds(broker_id)]:
            name = Member(BROKER, left[0]).name
            if self.processes.pid(name) is None:
                raise self._failure(name, "ended instead of starting")
            if time.monotonic() >= deadline_s:
                raise self._failure(name, "does not know the other brokers")
            time.sleep(POLL_S)

    def _failure(self, name: str, what: str) -> ToolError:
        path = self.log_path(name)
        note(tail(path))
        return ToolError(f"{name} {what}; above is the end of {path}")

    # -- stopping

    def stop_all(self, timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
        """Stops all processes, kind by kind, by SIGTERM, and after `timeout_s` by SIGKILL.

        Returns the names of the processes that were killed.
        """
        killed = self.renewals.stop([RENEWALS] if self.renewals.pid(RENEWALS) else [], timeout_s)
        self.renewals.forget_all()
        for kind in _STOP_ORDER:
            names = [member.name for member in self.plan.members if member.kind == kind]
            killed += self.processes.stop([name for name in names if self.processes.pid(name)], timeout_s)
        self.processes.forget_all()
        return killed


def etcd_serves(address: str) -> bool:
    """Asks the etcd whose metrics are at `address` for its health."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(answer, dict) and str(answer.get("health")) == "true"


def has_said_ready(log_path: Path, from_byte: int) -> bool:
    """Returns whether the log contains `ready:` at or after `from_byte`."""
    try:
        with log_path.open("rb") as log:
            log.seek(from_byte)
            return _READY.search(log.read()) is not None
    except FileNotFoundError:
        return False


def brokers_known_to(address: str, security: ClientSecurity) -> set[int]:
    """Returns the broker ids in the Metadata of the broker at `address`; empty if it does not answer."""
    (place,) = parse_bootstrap(address)
    try:
        with BrokerConnection.open(place, timeout_s=ANSWER_TIMEOUT_S, security=security) as connection:
            answer = connection.call(MetadataRequest(topics=[]), MetadataResponse, at_least=4)
    except ClientError:
        return set()
    return {broker.node_id for broker in answer.brokers}
