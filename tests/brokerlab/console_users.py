"""A broker with users and ACLs, for the logins of the web console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from brokerlab.broker_process import BrokerProcess, free_port
from tidelog.client.admin.groups import CommittedOffset, commit_offsets
from tidelog.client.cluster import Cluster as ClusterClient
from tidelog.model.topics import TopicPartition
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER

MECHANISM: Final = "SCRAM-SHA-512"
WAIT_S: Final = 60.0
PASSWORDS: Final = {"alice": "alice's secret & ü", "bob": "bob-secret", "root": "root-secret"}


class SecuredCluster(NamedTuple):
    """A broker with an open listener for its administrator and one with SCRAM for clients."""

    admin: AdminClient
    bootstrap: str

    def set_password(self, user: str, password: str) -> None:
        information = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, information, password.encode())
        for future in self.admin.alter_user_scram_credentials([change]).values():
            future.result(WAIT_S)

    def delete_user(self, user: str) -> None:
        deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
        for future in self.admin.alter_user_scram_credentials([deletion]).values():
            future.result(WAIT_S)

    def allow(self, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        for operation in operations:
            binding = AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for future in self.admin.create_acls([binding]).values():
                future.result(WAIT_S)


@contextmanager
def secured_cluster(directory: Path) -> Iterator[SecuredCluster]:
    """Runs a broker with the topics `flights`, which alice may read and bob describe, and `salaries`, and
    with the group `seat-map`, which alice may describe. The user root may do everything.
    """
    open_port, port = free_port(), free_port()
    process = BrokerProcess(
        directory / "data",
        directory / "broker.log",
        port=open_port,
        settings={
            "listeners": f"PLAINTEXT://127.0.0.1:{open_port},CLIENTS://127.0.0.1:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "listener.name.clients.sasl.enabled.mechanisms": MECHANISM,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:ANONYMOUS;User:root",
            "connection.failed.authentication.delay.ms": "50",
        },
    )
    process.start()
    try:
        admin = AdminClient({"bootstrap.servers": process.bootstrap, "log_level": 0})
        cluster = SecuredCluster(admin, f"127.0.0.1:{port}")
        for user, password in PASSWORDS.items():
            cluster.set_password(user, password)
        for future in admin.create_topics([NewTopic("flights", 1), NewTopic("salaries", 1)]).values():
            future.result(WAIT_S)
        cluster.allow("alice", ResourceType.TOPIC, "flights", AclOperation.READ)
        cluster.allow("alice", ResourceType.GROUP, "seat-map", AclOperation.DESCRIBE)
        cluster.allow("bob", ResourceType.TOPIC, "flights", AclOperation.DESCRIBE)
        producer = Producer({"bootstrap.servers": process.bootstrap, "log_level": 0})
        for topic in ("flights", "salaries"):
            producer.produce(topic, b"secret of " + topic.encode())
        assert not producer.flush(WAIT_S)
        with ClusterClient(process.bootstrap) as client:
            commit_offsets(client, "seat-map", {TopicPartition("flights", 0): CommittedOffset(0)})
        yield cluster
    finally:
        process.stop()
