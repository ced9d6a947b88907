"""A cluster whose services use certificates among each other and renew them while they run."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from brokerlab.clients import create_topic
from brokerlab.secured_broker import new_authority, put_identity
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
TIMEOUT_S = 40.0


def committed(bootstrap: str, group: str, offset: int) -> int:
    """Commits the offset and reads it back, repeatedly while the group has no coordinator."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        while True:
            try:
                consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
                return consumer.committed([TopicPartition("t", 0)], timeout=10)[0].offset
            except KafkaException:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)
    finally:
        consumer.close()


def works(cluster: TidelogCluster, topic: str, offset: int) -> None:
    """Checks the controller, the brokers' replication and a coordinator."""
    create_topic(cluster.bootstrap, topic, 2, {"min.insync.replicas": "2"}, replication_factor=2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    producer.produce(topic, b"x")
    assert producer.flush(TIMEOUT_S) == 0
    assert committed(cluster.bootstrap, "g", offset) == offset


def test_services_work_with_certificates_and_with_renewed_ones(
    new_cluster: Callable[..., TidelogCluster], tmp_path: Path
) -> None:
    authority, files = new_authority(tmp_path, "authority"), tmp_path / "tls"
    put_identity(files, authority)
    cluster = new_cluster(
        brokers=2,
        controllers=2,
        settings={
            "tidelog.rpc.tls.ca.file": str(files / "ca.crt"),
            "tidelog.rpc.tls.cert.file": str(files / "tls.crt"),
            "tidelog.rpc.tls.key.file": str(files / "tls.key"),
        },
    )
    works(cluster, "t", 7)
    _nobody_comes_in_without_one(cluster)
    # A new authority. Connections stay open, and new ones present the new certificates.
    put_identity(files, new_authority(tmp_path, "next"))
    active = cluster.active_controller()
    cluster.kill(active)
    cluster.start(active)
    cluster.kill("coordinator-1")
    cluster.start("coordinator-1")
    deadline_s = time.monotonic() + TIMEOUT_S
    while cluster.active_controller() == active and time.monotonic() < deadline_s:
        time.sleep(0.1)
    works(cluster, "u", 9)


def _nobody_comes_in_without_one(cluster: TidelogCluster) -> None:
    """Checks that only the clients' port of broker 1 accepts plaintext; the others close such
    a connection.
    """
    clients_port = int(cluster.address(1).rpartition(":")[2])
    listening = {
        c.laddr.port
        for c in psutil.Process(cluster.pid("broker-1")).net_connections(kind="tcp")
        if c.status == psutil.CONN_LISTEN
    }
    assert len(listening) == 2, "clients and gRPC"
    for port in listening - {clients_port}:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64))
            connection.settimeout(TIMEOUT_S)
            try:
                said = connection.recv(1)
            except ConnectionResetError:
                continue
            assert said in (b"", b"\x15"), "an end, or a TLS alert"
