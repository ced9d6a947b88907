"""Kills under TLS, SASL and ACLs: the load of the chaos experiments, whose clients log in with SCRAM over TLS
and may do only what ACLs allow, loses no acknowledged record. KILLS=200 is the long form.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from brokerlab.clients import admin_client, secure
from chaoslab.checker import judge
from chaoslab.load import ChaosLoad, ChaosPlan
from clusterlab.tidelog_cluster import TidelogCluster
from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority, CertificateFiles
from tidelog.kernel.clock import SystemClock
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER

KILLS: Final = int(os.environ.get("KILLS", "4"))
SEED: Final = int(os.environ.get("SEED", "20261123"))
KILL_LIMIT_S: Final = 15.0
ADMIN_PASSWORD, LOAD_PASSWORD = "an administrator", "the load"
PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
PLAIN_LOGIN: Final = (
    f"{PLAIN_MODULE} required "
    f'username="broker" password="a broker" user_broker="a broker" user_admin="{ADMIN_PASSWORD}";'
)
SETTINGS: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "listener.security.protocol.map": "PLAINTEXT:SASL_SSL",
    "ssl.truststore.type": "PEM",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": PLAIN_LOGIN,
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:broker;User:admin",
}
VICTIMS: Final = ("broker-1", "broker-2", "broker-3", "coordinator-1", "coordinator-2", "controller-1")
BEGINS_S: Final = 60.0
WAIT_S: Final = 30.0

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(120 + KILLS * KILL_LIMIT_S)]


def login(ca: Path, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(ca),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def allowed(prefix: str) -> list[AclBinding]:
    """Returns what the load needs."""
    rules = [
        (ResourceType.TOPIC, prefix, AclOperation.READ),
        (ResourceType.TOPIC, prefix, AclOperation.WRITE),
        (ResourceType.TOPIC, prefix, AclOperation.CREATE),
        (ResourceType.GROUP, "", AclOperation.READ),
        (ResourceType.GROUP, "", AclOperation.ALTER_CONFIGS),  # of the share group
        (ResourceType.TRANSACTIONAL_ID, prefix, AclOperation.WRITE),
        (ResourceType.TRANSACTIONAL_ID, prefix, AclOperation.DESCRIBE),
    ]
    return [
        AclBinding(
            kind,
            name or "*",
            ResourcePatternType.PREFIXED if name else ResourcePatternType.LITERAL,
            "User:load",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, name, operation in rules
    ]


def test_kills_under_tls_sasl_and_acls_lose_nothing(
    new_cluster: Callable[..., TidelogCluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now_ms = SystemClock().wall_ms()
    authority = CertificateAuthority.open(tmp_path / "authority", now_ms=now_ms)
    authority.renew(tmp_path / "broker", ["127.0.0.1"], now_ms=now_ms)
    files = CertificateFiles.within(tmp_path / "broker")
    keystore = tmp_path / "keystore.pem"
    keystore.write_text(files.key.read_text() + files.certificate.read_text())
    stores = {"ssl.keystore.location": str(keystore), "ssl.truststore.location": str(files.ca)}
    command_config = tmp_path / "admin.properties"  # with which `cluster up` waits until the brokers serve
    command_config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={files.ca}\n"
        f'sasl.jaas.config={PLAIN_MODULE} required username="admin" password="{ADMIN_PASSWORD}";\n'
    )
    monkeypatch.setenv("TIDELOG_COMMAND_CONFIG", str(command_config))
    cluster = new_cluster(
        brokers=3, controllers=2, settings=SETTINGS | stores, options=["--coordinators", "2"]
    )
    plan = ChaosPlan(records_per_s=100, churn_s=4.0)
    secure(cluster.bootstrap, login(files.ca, "PLAIN", "admin", ADMIN_PASSWORD))
    admin = admin_client(cluster.bootstrap)
    change = UserScramCredentialUpsertion(
        "load", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), LOAD_PASSWORD.encode()
    )
    for changed in admin.alter_user_scram_credentials([change]).values():
        changed.result(WAIT_S)
    for created in admin.create_acls(allowed(plan.prefix)).values():
        created.result(WAIT_S)
    admin_client.cache_clear()
    secure(cluster.bootstrap, login(files.ca, "SCRAM-SHA-512", "load", LOAD_PASSWORD))
    chance = random.Random(SEED)
    gaps_s = []
    with ChaosLoad(cluster.bootstrap, plan, tmp_path / "report") as load:
        load.await_acknowledged(BEGINS_S)
        for _ in range(KILLS):
            name = chance.choice(VICTIMS)
            cluster.kill(name)
            killed_s = time.monotonic()
            time.sleep(chance.uniform(0.0, 1.0))
            cluster.start(name)
            load.await_acknowledged(BEGINS_S)
            gaps_s.append(time.monotonic() - killed_s)
            time.sleep(chance.uniform(0.2, 1.0))
    verdict = judge(load.history)
    with capsys.disabled():
        print(
            f"seed {SEED}: {len(gaps_s)} kills, at most {max(gaps_s):.1f} s until all partitions answered, "
            f"{verdict.counts}, {len(load.complaints)} complaints, unread {load.unread}"
        )
    assert verdict.is_sound, str(verdict)
    assert load.complaints == []
    assert load.unread == []
    assert all(verdict.counts.values()), verdict.counts
