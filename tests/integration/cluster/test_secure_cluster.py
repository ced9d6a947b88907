"""`tidelog cluster up --secure`: clients connect with TLS, SCRAM and the `client.properties` that it writes.
Certificates are renewed while the cluster runs.
"""

from __future__ import annotations

import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer

from brokerlab.broker_process import tidelog_command
from brokerlab.clients import librdkafka_settings, poll_messages
from brokerlab.raw_client import RawClient
from clusterlab import processes
from clusterlab.tidelog_cluster import TidelogCluster
from tidelog.settings.properties_file import parse_properties

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
WAIT_S = 40.0


def librdkafka(cluster: TidelogCluster, properties: dict[str, str]) -> dict[str, Any]:
    return librdkafka_settings(cluster.bootstrap, properties)


def tool(cluster: TidelogCluster, file: Path, *arguments: str) -> str:
    done = subprocess.run(
        [*tidelog_command(), *arguments, "--bootstrap-server", cluster.bootstrap]
        + ["--command-config", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def serial_at(address: str, ca: str) -> str:
    """Returns the serial number of the certificate that a new connection receives."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection((host, int(port)), WAIT_S) as connection,
        context.wrap_socket(connection, server_hostname=host) as encrypted,
    ):
        found = encrypted.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


def test_clients_log_in_and_certificates_are_renewed(new_cluster: Callable[..., TidelogCluster]) -> None:
    cluster = new_cluster(brokers=2, controllers=1, options=["--secure"])
    file = cluster.data_dir / "client.properties"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    properties = {found.name: found.value for found in parse_properties(file.read_text())}
    tool(cluster, file, "topic", "create", "t", "--partitions", "2", "--replication-factor", "2")
    settings = librdkafka(cluster, properties)
    producer = Producer({**settings, "acks": "all"})
    for number in range(20):
        producer.produce("t", str(number).encode())
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    assert len(poll_messages(consumer, 20)) == 20
    consumer.close()
    assert "Empty, coordinator" in tool(cluster, file, "group", "describe", "g")
    _strangers_stay_out(cluster)
    renewals = cluster.renewals_pid()
    ca = properties["ssl.truststore.location"]
    before = {serial_at(address, ca) for address in cluster.addresses.values()}
    cluster.command("renew-certificates", "--all")
    after = {serial_at(address, ca) for address in cluster.addresses.values()}
    assert len(before) == len(after) == 2
    assert not before & after
    cluster.kill("broker-2")  # its followers and leaders connect again, with the new certificates
    cluster.start("broker-2")
    producer.produce("t", b"later")
    assert producer.flush(WAIT_S) == 0
    deadline_s = time.monotonic() + WAIT_S
    while "2 partitions, 0 of them" not in cluster.command("status") and time.monotonic() < deadline_s:
        time.sleep(0.2)
    cluster.down()
    assert not processes.is_alive(renewals)
    cluster.up()  # with the same user and password, and without --secure a second time
    assert "t" in tool(cluster, file, "topic", "list").split()


def _strangers_stay_out(cluster: TidelogCluster) -> None:
    """Checks that no port of a broker answers a client in plaintext."""
    pid = cluster.pid("broker-1")
    ports = {
        c.laddr.port
        for c in psutil.Process(pid).net_connections(kind="tcp")
        if c.status == psutil.CONN_LISTEN
    }
    assert len(ports) == 3, "clients, brokers and gRPC"
    for port in ports:
        with (
            pytest.raises((OSError, EOFError, RuntimeError)),
            RawClient(f"127.0.0.1:{port}", WAIT_S) as client,
        ):
            client.call("metadata", 12, topics=None, include_topic_authorized_operations=False)
