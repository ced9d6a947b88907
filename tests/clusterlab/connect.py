"""Workers of Kafka Connect in distributed mode, and their REST interface."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from brokerlab.broker_process import free_port
from clusterlab.java_process import JavaProcess, await_true, write_properties

MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
REQUEST_S = 15.0
START_S = 90.0


class ConnectWorker:
    """One worker. Workers with the same bootstrap server form a cluster."""

    def __init__(self, jars: Path, directory: Path, bootstrap: str, number: int) -> None:
        self.port = free_port()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect",
            "listeners": f"http://127.0.0.1:{self.port}",
            "rest.advertised.host.name": "127.0.0.1",
            "rest.advertised.port": self.port,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "plugin.discovery": "service_load",
            "exactly.once.source.support": "enabled",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_000,
            "scheduled.rebalance.max.delay.ms": 0,
            "offset.flush.interval.ms": 1_000,
        }
        for kind in ("config", "offset", "status"):
            settings[f"{kind}.storage.topic"] = f"connect-{kind}"
            settings[f"{kind}.storage.replication.factor"] = 1
        for kind in ("offset", "status"):
            settings[f"{kind}.storage.partitions"] = 2
        file = write_properties(directory / f"worker-{number}.properties", settings)
        self.process = JavaProcess(jars, directory, f"worker-{number}", MAIN, str(file))

    @property
    def worker_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> ConnectWorker:
        self.process.start()
        return self

    def await_ready(self) -> None:
        await_true(self._answers, START_S, "the worker answers", self.process)

    def _answers(self) -> bool:
        try:
            self.ask("GET", "/connectors")
        except (OSError, ValueError):
            return False
        return True

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request and returns the decoded answer. Raises OSError."""
        request = urllib.request.Request(
            f"http://{self.worker_id}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def create(self, name: str, config: dict[str, str]) -> None:
        """Creates a connector. While the workers rebalance, they refuse it, so this repeats the request."""

        def created() -> bool:
            try:
                self.ask("PUT", f"/connectors/{name}/config", config)
            except urllib.error.HTTPError as error:
                if error.code in {409, 500, 503}:
                    return False
                raise AssertionError(f"{name}: {error.code} {error.read().decode()[:500]}") from error
            return True

        await_true(created, START_S, f"{name} is created", self.process)

    def task_owner(self, name: str) -> str:
        """Returns the id of the worker that runs the connector's task, "" if none does."""
        try:
            status = self.ask("GET", f"/connectors/{name}/status")
        except OSError:
            return ""
        tasks = [task for task in status["tasks"] if task["state"] == "RUNNING"]
        return str(tasks[0]["worker_id"]) if tasks else ""
