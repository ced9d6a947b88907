"""Apache Kafka's brokers from shared/peer with the same methods to break them, which proves the harness
itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from brokerlab.kafka_jars import PEER
from clusterlab import processes
from clusterlab.processes import PortRange
from clusterlab.topic_view import topic_view

COMMAND_TIMEOUT_S = 180
SAME_AS_OURS = "broker.session.timeout.ms=6000\ncontroller.quorum.election.timeout.ms=1000"


class KafkaCluster:
    """Combined brokers and controllers, named broker-1 to broker-3."""

    name = "kafka"

    def __init__(
        self, state_dir: Path, *, brokers: int = 3, heap: str = "512m", properties: str = ""
    ) -> None:
        self.brokers = brokers
        self._name = f"cluster-{os.getpid()}"
        self._ports = PortRange()
        self._home = state_dir / f"kafka-{self._name}"
        self._environment = {
            **os.environ,
            "NAME": self._name,
            "BASE_PORT": str(self._ports.base),
            "STATE_DIR": str(state_dir),
            "KAFKA_HEAP": heap,
            "EXTRA_PROPS_TEXT": f"{SAME_AS_OURS}\n{properties}",
        }
        self.addresses = {f"broker-{n + 1}": f"127.0.0.1:{self._ports.base + n}" for n in range(brokers)}
        self._pids: dict[str, int] = {}
        self._started_as: dict[str, tuple[list[str], dict[str, str]]] = {}

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [str(PEER / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")

    def up(self) -> KafkaCluster:
        self._run("kafka-up.sh", str(self.brokers))
        for name, pid in zip(self.addresses, (self._home / "pids").read_text().split(), strict=True):
            self._pids[name] = int(pid)
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")[:-1]
            pairs = dict(entry.split("=", 1) for entry in environment)
            self._started_as[name] = (processes.command_line(int(pid)), pairs)
        return self

    def start(self, name: str) -> None:
        """Starts the process with its former command line and waits until it answers."""
        command, environment = self._started_as[name]
        with (self._home / name.split("-")[1] / "server.log").open("ab") as log:
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pids[name] = child.pid
        deadline_s = time.monotonic() + COMMAND_TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                topic_view(self.addresses[name], "no-such-topic")
            except KeyError:
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError(f"{name} does not answer")

    def destroy(self) -> None:
        for pid in self._pids.values():
            processes.kill(pid)
        self._run("kafka-down.sh", self._name)
        self._ports.release()

    def pid(self, name: str) -> int:
        return self._pids[name]

    def signal(self, name: str, number: signal.Signals) -> float:
        now_s = time.monotonic()
        processes.send(self._pids[name], number)
        return now_s

    def kill(self, name: str) -> float:
        now_s = time.monotonic()
        processes.kill(self._pids[name])
        return now_s

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    def address(self, broker_id: int) -> str:
        return self.addresses[f"broker-{broker_id}"]

    def live_addresses(self) -> list[str]:
        return [
            a for n, a in self.addresses.items() if processes.state_of(self._pids[n]) not in ("", "Z", "T")
        ]

    def log_dir(self, broker_id: int) -> Path:
        return self._home / str(broker_id) / "data"

    def log_tails(self) -> str:
        return ""
