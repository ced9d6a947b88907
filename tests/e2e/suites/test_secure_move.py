"""A release moves from plaintext to TLS, logins and ACLs with two upgrades, under load.

The first upgrade adds listeners with TLS beside those in plaintext, creates the users, and lets brokers
replicate over TLS. Then the clients move. The second upgrade removes the plaintext listeners and adds the web
console, in which a user logs in and sees what ACLs allow.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerlab.clients import create_topic, secure
from clusterlab.history import Verdict, judge
from clusterlab.load import Load, LoadPlan, read_all
from e2e.inside import ConsoleBrowser, credentials, know_services
from e2e.kubectl import Kubectl
from e2e.outcome import Outcome
from e2e.release import CHART, ROOT, Release
from e2e.settings import PREVIOUS_ROOT, PREVIOUS_TAG, TAG

PARTITIONS = 4
INSTALL_TIMEOUT_S = 180.0
UPGRADE_TIMEOUT_S = 300.0
TEST_TIMEOUT_S = 120.0
WRITES_S = 45.0
SIDE_BY_SIDE_S = 5.0
NAME = "move"
PLAIN_VALUES = {
    "listeners.internal.protocols": "{PLAINTEXT}",
    "listeners.replication.protocols": "{PLAINTEXT}",
    "authorization.enabled": "false",
}
BOTH = {
    "listeners.internal.protocols": "{PLAINTEXT,SASL_SSL}",
    "listeners.replication.protocols": "{PLAINTEXT,SSL}",
    "authorization.enabled": "true",
}
ONLY_TLS = {"listeners.internal.protocols": "{SASL_SSL}", "listeners.replication.protocols": "{SSL}"}
CONSOLE = {"console.enabled": "true"}
USERS = {
    "users[0].name": "writer",
    "users[0].acls[0].topic": "secure",
    "users[0].acls[0].operations": "{read,write,describe}",
    "users[0].acls[1].group": "r-",
    "users[0].acls[1].prefixed": "true",
    "users[0].acls[1].operations": "{read}",
}


@pytest.fixture
def moving(kubectl: Kubectl, slowness: float) -> Iterator[Release]:
    """A release of the previous version in the full run, which the first upgrade also brings up to date."""
    found = Release(kubectl, NAME, PLAIN_VALUES, os.environ[TAG])
    if PREVIOUS_ROOT in os.environ:
        root = Path(os.environ[PREVIOUS_ROOT])
        has_protocols = '"internal"' in (root / CHART / "values.schema.json").read_text("utf-8")
        values = PLAIN_VALUES if has_protocols else {}
        found = Release(kubectl, NAME, values, os.environ[PREVIOUS_TAG], root)
    try:
        found.install(INSTALL_TIMEOUT_S * slowness)
        yield found
    finally:
        found.uninstall(TEST_TIMEOUT_S * slowness)


def _bootstrap(release: Release, port: int) -> str:
    domain = f"{release.kubectl.namespace}.svc.cluster.local"
    return ",".join(f"{NAME}-tidelog-broker-{broker}.{domain}:{port}" for broker in range(3))


def _judged(load: Load, topic: str, bootstrap: str, began_s: float, ended_s: float) -> tuple[Verdict, float]:
    load.history.final = read_all(bootstrap, topic, PARTITIONS)
    verdict = judge(load.history)
    gap_s = max(load.longest_silence_s(partition, began_s, ended_s) for partition in range(PARTITIONS))
    print(
        f"{topic}: {len(load.history.sent)} records sent, {len(load.history.final)} read; {verdict}; "
        f"longest gap {gap_s:.1f} s; client errors: {dict(load.errors())}"
    )
    assert not load.complaints
    assert not load.errors(), "a producer got an error"
    assert verdict.is_sound, str(verdict)
    return verdict, gap_s


def test_clients_move_from_plaintext_to_tls_without_a_pause(
    moving: Release, outcome: Outcome, slowness: float
) -> None:
    timeout_s = UPGRADE_TIMEOUT_S * slowness
    know_services(moving.kubectl, NAME)
    plain, tls = _bootstrap(moving, 9092), _bootstrap(moving, 9096)
    for topic in ("plain", "secure"):
        create_topic(plain, topic, PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=3)
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        with Load(plain, LoadPlan("plain", PARTITIONS, keys=8, records_per_s=300)) as old:
            old.await_acknowledged(range(PARTITIONS), WRITES_S * slowness)
            moving.tag, moving.root = os.environ[TAG], ROOT
            outcome.figures["upgrade to both listeners, s"] = moving.change({**BOTH, **USERS}, timeout_s)
            secure(tls, credentials(moving.kubectl, f"{NAME}-tidelog", "writer"))
            secure_began_s = time.monotonic()
            plan = LoadPlan("secure", PARTITIONS, keys=8, records_per_s=300)
            new = stack.enter_context(Load(tls, plan))
            new.await_acknowledged(range(PARTITIONS), WRITES_S * slowness)
            time.sleep(SIDE_BY_SIDE_S)
            old_ended_s = time.monotonic()
        old_verdict, old_gap_s = _judged(old, "plain", plain, began_s, old_ended_s)
        outcome.figures["upgrade to TLS only, s"] = moving.change({**ONLY_TLS, **CONSOLE}, timeout_s)
        new.await_acknowledged(range(PARTITIONS), WRITES_S * slowness)
        ended_s = time.monotonic()
    new_verdict, new_gap_s = _judged(new, "secure", tls, secure_began_s, ended_s)
    anomalies = len(old_verdict.anomalies) + len(new_verdict.anomalies)
    outcome.add(kills=0, anomalies=anomalies, longest_gap_s=max(old_gap_s, new_gap_s))
    for broker in plain.split(","):
        host, _, port = broker.rpartition(":")
        with pytest.raises(OSError), socket.create_connection((host, int(port)), 2):
            pass
    console = ConsoleBrowser(moving.kubectl, f"{NAME}-tidelog", "writer")
    overview = console.get("/")
    assert "<b>3</b> brokers" in overview
    assert "User <b>writer</b>" in overview
    topics = console.get("/topics")
    assert 'href="/topics/secure"' in topics
    assert 'href="/topics/plain"' not in topics, "the console shows a topic without an ACL"
    said = moving.test(TEST_TIMEOUT_S * slowness)
    assert "Phase:          Succeeded" in said
