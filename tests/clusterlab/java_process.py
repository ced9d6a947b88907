"""A process of Java with the jars of Kafka's ecosystem, whose output goes to a file."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from brokerlab.kafka_jars import JAVA_OPTIONS

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
