"""An Apache Kafka of the test's own, from shared/peer, whose data directory remains after its end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from brokerlab.kafka_jars import PEER

START_TIMEOUT_S = 180


class PeerKafka:
    def __init__(
        self, state_dir: Path, name: str = "served", settings: Mapping[str, str] | None = None
    ) -> None:
        """`settings` are settings of the broker besides those of shared/peer."""
        self._name = name
        port = random.SystemRandom().randrange(20_000, 28_000)
        self._environment = {
            **os.environ,
            "NAME": name,
            "BASE_PORT": str(port),
            "STATE_DIR": str(state_dir),
            "KAFKA_HEAP": "512m",
        }
        if settings:
            lines = [f"{name}={value}" for name, value in settings.items()]
            self._environment["EXTRA_PROPS_TEXT"] = "\n".join(lines)
        self._home = state_dir / f"kafka-{name}"
        self.data_dir = self._home / "1" / "data"
        self.bootstrap = f"127.0.0.1:{port}"

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [str(PEER / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        self._run("kafka-up.sh", "1")

    def stop(self) -> None:
        self._run("kafka-down.sh", self._name, "--keep")

    def kill(self) -> None:
        """Sends SIGKILL. Logs keep their state, and indexes keep their full preallocated length."""
        for pid in (self._home / "pids").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        self.stop()
