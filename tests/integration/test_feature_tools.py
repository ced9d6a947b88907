"""Kafka's tools for features, the quorum and the registration of brokers, against a broker that restarts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.kafka_jars import JavaTools

pytestmark = [pytest.mark.integration, pytest.mark.java]
FEATURES, QUORUM, CLUSTER = "FeatureCommand", "MetadataQuorumCommand", "ClusterTool"


def _levels(java: JavaTools, broker: BrokerProcess) -> dict[str, tuple[str, str]]:
    """Returns the finalized level and the epoch of each feature."""
    described = java.check(FEATURES, "--bootstrap-server", broker.bootstrap, "describe")
    rows = re.findall(r"Feature: (\S+).*FinalizedVersionLevel: (.*?)\s+Epoch: (\d+)", described)
    return {name: (level, epoch) for name, level, epoch in rows}


def test_features_are_changed_kept_and_refused(
    start_broker: Callable[..., BrokerProcess], java: JavaTools
) -> None:
    broker = start_broker()
    server = ("--bootstrap-server", broker.bootstrap)
    assert _levels(java, broker)["transaction.version"] == ("2", "0")
    java.check(FEATURES, *server, "downgrade", "--feature", "transaction.version=1")
    java.check(FEATURES, *server, "disable", "--feature", "group.version")
    java.check(FEATURES, *server, "upgrade", "--feature", "transaction.version=2", "--dry-run")
    refused = java.run(FEATURES, *server, "upgrade", "--feature", "no.such=1")
    assert refused.returncode != 0
    assert "not supported by this cluster" in refused.stdout + refused.stderr
    changed = _levels(java, broker)
    assert (changed["transaction.version"][0], changed["group.version"][0]) == ("1", "0")
    assert int(changed["group.version"][1]) > 0
    broker.stop()
    broker.start()
    assert _levels(java, broker) == changed


def test_the_quorum_is_the_controller_and_a_live_broker_stays_registered(
    bootstrap: str, java: JavaTools
) -> None:
    server = ("--bootstrap-server", bootstrap)
    status = java.check(QUORUM, *server, "describe", "--status")
    leader = re.search(r"LeaderId:\s+(\d+)", status)
    assert leader is not None
    assert re.search(rf'CurrentVoters:\s+\[\{{"id": {leader[1]}\}}\]', status)
    assert re.search(r"CurrentObservers:\s+\[\]", status)
    assert len(java.check(QUORUM, *server, "describe", "--replication").splitlines()) == 2
    alive = java.run(CLUSTER, "unregister", *server, "--id", leader[1])
    assert "is alive" in alive.stdout + alive.stderr
    unknown = java.run(CLUSTER, "unregister", *server, "--id", "77")
    assert "Broker ID 77 is not currently registered" in unknown.stdout + unknown.stderr
