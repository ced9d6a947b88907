"""Systems of Java and the brokers that they run on: processes with the jars of Kafka's ecosystem, workers of
Kafka Connect, and a broker of tidelog or of Apache Kafka for the same assertions.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from brokerlab.broker_process import BrokerProcess, free_port
from brokerlab.kafka_jars import JAVA_OPTIONS, PeerKafka

STOP_S = 20.0
LOG_CONFIGURATION = """status=off
appender.e.type=Console
appender.e.name=E
appender.e.target=SYSTEM_ERR
appender.e.layout.type=PatternLayout
appender.e.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=warn
rootLogger.appenderRef.e.ref=E
"""
LOG_TAIL = 6_000
MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
REQUEST_S = 15.0
START_S = 90.0
TIDELOG, KAFKA = "tidelog", "kafka"
SYSTEMS = (KAFKA, TIDELOG)
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
}
STREAMS_SETTINGS = {
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.initial.rebalance.delay.ms": "1000",
}
"""The members of streams groups get their timeouts from the broker."""


class JavaProcess:
    """`main` is a class of the jars, or a file with a class of ours. Its standard output goes to the log,
    too, unless `talks`.
    """

    def __init__(
        self, jars: Path, directory: Path, name: str, main: str, *arguments: str, talks: bool = False
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        configuration = directory / "log4j2.properties"
        configuration.write_text(LOG_CONFIGURATION)
        self.name = name
        self.log_path = directory / f"{name}.log"
        self._command = [
            *("java", *JAVA_OPTIONS, f"-Dlog4j2.configurationFile={configuration}"),
            *("-cp", f"{jars}/*", main, *arguments),
        ]
        self._talks = talks
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> JavaProcess:
        with self.log_path.open("a") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._talks else log,
                stderr=log,
                text=True,
            )
        return self

    @property
    def stdin(self) -> IO[str]:
        assert self.process is not None and self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[str]:
        assert self.process is not None and self.process.stdout is not None
        return self.process.stdout

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """Sends SIGTERM and waits. A process that takes too long is killed."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def log_tail(self) -> str:
        return f"--- {self.name}\n{self.log_path.read_text(errors='replace')[-LOG_TAIL:]}"


def await_true(holds: Callable[[], bool], within_s: float, what: str, *processes: JavaProcess) -> None:
    """Waits until the condition holds. Raises TimeoutError with the logs of the processes."""
    deadline_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline_s:
            logs = "\n".join(process.log_tail() for process in processes)
            raise TimeoutError(f"{what}: not within {within_s} s\n{logs}")
        time.sleep(0.2)


def write_properties(path: Path, values: Mapping[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return path


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


@contextlib.contextmanager
def running(system: str, directory: Path) -> Iterator[str]:
    """Runs one broker and yields its address."""
    directory.mkdir(parents=True, exist_ok=True)
    if system == TIDELOG:
        broker = BrokerProcess(directory / "data", directory / "broker.log", SETTINGS | STREAMS_SETTINGS)
        try:
            yield broker.start().bootstrap
        finally:
            broker.kill()
        return
    kafka = PeerKafka(directory, f"ecosystem-{uuid.uuid4().hex[:6]}", STREAMS_SETTINGS)
    kafka.start()
    try:
        yield kafka.bootstrap
    finally:
        kafka.stop()
