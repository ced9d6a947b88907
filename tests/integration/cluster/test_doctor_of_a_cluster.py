"""`tidelog doctor` on processes: etcd, registrations and certificates, and the kill of a broker."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from brokerlab.broker_process import tidelog_command
from brokerlab.clients import create_topic
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
TIMEOUT_S = 60.0


def doctor(*arguments: object) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Returns the exit code and the findings by their check."""
    done = subprocess.run(
        [*tidelog_command(), "doctor", *map(str, arguments), "--format", "json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return done.returncode, found


def test_a_cluster_and_its_killed_broker_are_examined(tidelog_cluster: TidelogCluster) -> None:
    cluster = tidelog_cluster
    create_topic(cluster.bootstrap, "examined", partitions=3, replication_factor=3)
    _, found = doctor("--data-dir", cluster.data_dir)
    for check in ("registrations", "answers", "certificates", "settings"):
        assert [finding["state"] for finding in found[check]] == ["ok"], found[check]
    assert "services" not in found, "the store of a local cluster is read"
    assert {finding["state"] for finding in found["etcd"]} <= {"ok", "warn"}, found["etcd"]
    assert "stranded records" not in found
    name = f"{9:020d}.log.stranded"
    (cluster.data_dir / "broker-2" / "examined-0" / name).write_bytes(b"x" * 70)
    _, found = doctor("--data-dir", cluster.data_dir)
    (finding,) = found["stranded records"]
    assert finding["finding"].startswith(f"broker 2, examined-0/{name}: recovery took these 70 bytes")

    cluster.command("kill", "broker-3")
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        # etcd forgets the broker a moment before the others do.
        while True:
            _, found = doctor("--data-dir", cluster.data_dir)
            if any(one["finding"].startswith("broker 3 holds ") for one in found["registrations"]):
                break
            assert time.monotonic() < deadline_s, found
        code, of_files = doctor(cluster.data_dir / "broker-3")
        assert code in (0, 1), of_files
        assert "did not stop cleanly" in of_files["clean stop"][0]["finding"]
        assert not any(finding["state"] == "fail" for each in of_files.values() for finding in each)
    finally:
        cluster.command("start", "broker-3")
