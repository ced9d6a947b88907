"""Starts and stops the two brokers, asks them for metadata, and measures them from /proc."""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from brokerlab.broker_process import BUILD_VARIABLE, BrokerProcess, free_port
from brokerlab.kafka_jars import PEER
from brokerlab.secured_broker import new_authority, put_identity
from clusterlab.tidelog_cluster import ClusterCommandError, TidelogCluster

KAFKA_HEAP = "1g"
CLUSTER_KAFKA_HEAP = "512m"
CLUSTER_BROKERS = 3
CONTROLLERS = 2
TLS_PORT_OFFSET = 3000
"""The distance of Kafka's TLS port from its first port. kafka-up.sh uses those at 0, 1000 and 2000."""
START_LIMIT_S = 120.0
ASK_AGAIN_S = 0.02
AS_KAFKA_UP: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "10",
    "transaction.state.log.num.partitions": "10",
}
"""The settings of kafka-up.sh for groups and transactions."""
METADATA_V1_NO_TOPICS = struct.pack(">hhih5si", 3, 1, 1, 5, b"bench", 0)


class Side(Protocol):
    """One broker, or a cluster of brokers with the other processes that it needs."""

    name: str
    bootstrap: str
    start_s: float

    @property
    def connection(self) -> dict[str, str]:
        """The settings of librdkafka with which the measured clients connect."""
        ...

    def broker_pids(self) -> list[int]: ...

    def other_pids(self) -> dict[str, int]:
        """Returns the pids of controllers, coordinators and etcd by name. The CPU of these processes counts
        like that of the brokers; their memory is listed separately.
        """
        ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


def answers_metadata(bootstrap: str) -> bool:
    """Returns True if a Metadata response names a broker."""
    host, port = bootstrap.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), 2) as connection:
            connection.settimeout(5)
            connection.sendall(struct.pack(">i", len(METADATA_V1_NO_TOPICS)) + METADATA_V1_NO_TOPICS)
            (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
            answer = connection.recv(size, socket.MSG_WAITALL)
    except (OSError, struct.error):
        return False
    (brokers,) = struct.unpack_from(">i", answer, 4)
    return bool(brokers >= 1)


def seconds_to_metadata(bootstrap: str, process: subprocess.Popen[bytes], began: float) -> float:
    while not answers_metadata(bootstrap):
        if process.poll() is not None:
            raise RuntimeError(f"the broker ended with {process.returncode}")
        if time.perf_counter() - began > START_LIMIT_S:
            raise TimeoutError(f"no metadata answer in {START_LIMIT_S} s")
        time.sleep(ASK_AGAIN_S)
    return time.perf_counter() - began


class TidelogSide:
    name = "tidelog"

    def __init__(self, work_dir: Path, *, settings: Mapping[str, str] | None = None) -> None:
        # The broker has its own session, as kafka-up.sh gives Kafka one. Linux divides the cores among
        # sessions (sched_autogroup_enabled), so a broker in the client's session would get less CPU the more
        # threads the client has.
        self._broker = BrokerProcess(
            work_dir / "tidelog-data", work_dir / "tidelog.log", settings, has_own_session=True
        )
        self.bootstrap = self._broker.bootstrap
        self.start_s = 0.0

    @property
    def connection(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap}

    def broker_pids(self) -> list[int]:
        return [self._broker.pid]

    def other_pids(self) -> dict[str, int]:
        return {}

    def start(self) -> None:
        began = time.perf_counter()
        self.start_s = seconds_to_metadata(self.bootstrap, self._broker.spawn(), began)

    def stop(self) -> None:
        self._broker.stop()
        shutil.rmtree(self._broker.data_dir, ignore_errors=True)


class TidelogClusterSide:
    """The side of `tidelog cluster up`, which runs each process in its own session, as kafka-up.sh does."""

    name = "tidelog"

    def __init__(self, work_dir: Path, brokers: int, *, settings: Mapping[str, str] | None = None) -> None:
        self._cluster = TidelogCluster(
            work_dir / "tidelog-cluster", brokers=brokers, controllers=CONTROLLERS, settings=settings
        )
        self.bootstrap = ""
        self.start_s = 0.0

    @property
    def connection(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap}

    def broker_pids(self) -> list[int]:
        return [pid for name, pid in self._cluster.pids().items() if name.startswith("broker-")]

    def other_pids(self) -> dict[str, int]:
        return {name: pid for name, pid in self._cluster.pids().items() if not name.startswith("broker-")}

    def start(self) -> None:
        try:
            self._cluster.up()
        except ClusterCommandError:
            self._cluster.destroy()
            raise
        self.bootstrap = self._cluster.bootstrap
        self.start_s = self._cluster.start_s

    def stop(self) -> None:
        self._cluster.destroy()
        shutil.rmtree(self._cluster.data_dir, ignore_errors=True)


class KafkaSide:
    """Kafka's brokers, which are also its controllers."""

    name = "Kafka"

    def __init__(
        self, work_dir: Path, base_port: int, *, brokers: int = 1, heap: str = KAFKA_HEAP, further: str = ""
    ) -> None:
        """`further` are lines for server.properties."""
        self._brokers = brokers
        self._state = work_dir / "kafka-bench"
        self._environment = {
            **os.environ,
            "NAME": "bench",
            "BASE_PORT": str(base_port),
            "STATE_DIR": str(work_dir),
            "KAFKA_HEAP": heap,
            "EXTRA_PROPS_TEXT": further,
        }
        self.bootstrap = ",".join(f"127.0.0.1:{base_port + number}" for number in range(brokers))
        self.start_s = 0.0

    @property
    def connection(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap}

    def broker_pids(self) -> list[int]:
        return [int(pid) for pid in (self._state / "pids").read_text().split()]

    def other_pids(self) -> dict[str, int]:
        return {}

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            [str(PEER / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
        return done.stderr

    def start(self) -> None:
        """Starts Kafka. kafka-up.sh measures the same time: from the start of the JVM on a formatted
        directory to the first response.
        """
        said = self._run("kafka-up.sh", str(self._brokers))
        found = re.search(r"first metadata answer ([0-9.]+)s", said)
        if found is None:
            raise RuntimeError(f"kafka-up.sh did not say how long it took: {said}")
        self.start_s = float(found[1])

    def stop(self) -> None:
        self._run("kafka-down.sh", "bench")


class TlsKeystore:
    """A certificate for 127.0.0.1 that both sides use: an EC key, in PEM."""

    def __init__(self, directory: Path) -> None:
        self._authority = new_authority(directory, "authority")
        put_identity(directory / "broker", self._authority, name="127.0.0.1")
        self._keystore = directory / "keystore.pem"
        self._keystore.write_bytes(
            b"".join((directory / "broker" / name).read_bytes() for name in ("tls.key", "tls.crt"))
        )

    @property
    def settings(self) -> dict[str, str]:
        """The settings of either broker."""
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self._keystore)}

    def connection(self, bootstrap: str) -> dict[str, str]:
        """Returns the settings of clients."""
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self._authority.certificate),
            "ssl.endpoint.identification.algorithm": "none",
        }


class TlsTidelogSide(TidelogSide):
    """A broker whose measured clients use TLS. The bench itself creates topics over PLAINTEXT."""

    def __init__(self, work_dir: Path, keystore: TlsKeystore) -> None:
        port, tls_port = free_port(), free_port()
        super().__init__(
            work_dir,
            settings={
                **keystore.settings,
                "listeners": f"PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls_port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL",
                "inter.broker.listener.name": "PLAINTEXT",
            },
        )
        self.bootstrap = f"127.0.0.1:{port}"
        self._connection = keystore.connection(f"127.0.0.1:{tls_port}")

    @property
    def connection(self) -> dict[str, str]:
        return self._connection


class TlsKafkaSide(KafkaSide):
    """Kafka with a further listener for TLS."""

    def __init__(self, work_dir: Path, base_port: int, keystore: TlsKeystore) -> None:
        tls_port = base_port + TLS_PORT_OFFSET
        clients = f"PLAINTEXT://127.0.0.1:{base_port},SSL://127.0.0.1:{tls_port}"
        internal = f"INTERNAL://127.0.0.1:{base_port + 2000}"
        lines = {
            **keystore.settings,
            "listeners": f"{clients},CONTROLLER://127.0.0.1:{base_port + 1000},{internal}",
            "advertised.listeners": f"{clients},{internal}",
            "listener.security.protocol.map": ",".join(
                ("CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", "INTERNAL:PLAINTEXT", "SSL:SSL")
            ),
        }
        text = "\n".join(f"{name}={value}" for name, value in lines.items())
        super().__init__(work_dir, base_port, further=text)
        self._connection = keystore.connection(f"127.0.0.1:{tls_port}")

    @property
    def connection(self) -> dict[str, str]:
        return self._connection


def computer_facts() -> list[tuple[str, str]]:
    """Returns the facts about the computer, Python, and tidelog's build."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        os.uname().machine,
    )
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return [
        ("processor", f"{os.cpu_count()} x {model}"),
        ("memory", f"{memory_kib / 1024**2:.0f} GiB"),
        ("system", f"{os.uname().sysname} {os.uname().release}"),
        ("Python", sys.version.split()[0]),
        ("tidelog", "compiled" if os.environ.get(BUILD_VARIABLE) else "plain Python"),
    ]


def machine_facts(kafka: str) -> list[tuple[str, str]]:
    """Returns the facts that readers need to judge the figures. `kafka` describes the number and setup of its
    brokers.
    """
    import confluent_kafka

    java = subprocess.run(
        ["java", "-version"], capture_output=True, text=True, check=False
    ).stderr.splitlines()
    *computer, build = computer_facts()
    return [
        *computer,
        ("librdkafka", str(confluent_kafka.libversion()[0])),
        build,
        ("Java", java[0] if java else "?"),
        ("Kafka", f"{os.environ.get('KAFKA_VERSION', '4.3.1')}, {kafka}"),
    ]
