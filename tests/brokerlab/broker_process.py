"""A real `tidelog dev` process: start, wait for `ready:`, stop, kill, start again."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

READY_LINE = re.compile(r"^ready: (\S+):(\d+)\s*$", re.MULTILINE)
DEFAULTS = {"tidelog.log.level": "info", "group.initial.rebalance.delay.ms": "3000"}
"""Kafka's defaults of what `tidelog dev` changes for interactive use."""
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
LOG_TAIL_BYTES = 20_000
BUILD_VARIABLE = "TIDELOG_BUILD"
"""The variable that names a directory with another build of tidelog (`make compiled`) to start processes
from.
"""


class BrokerStartError(RuntimeError):
    """The process ended, or did not print `ready:` in time. The message contains its output."""


def free_port() -> int:
    """Returns a TCP port that is free now. In rare cases another process takes it before the broker does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def tidelog_command() -> list[str]:
    """Returns the command that runs the tidelog of this environment, or of the build that BUILD_VARIABLE
    names.
    """
    script = Path(sys.executable).with_name("tidelog")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "tidelog.cli.main"]
    build = os.environ.get(BUILD_VARIABLE)
    if not build:
        return command
    paths = [str(Path(build).resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return ["env", f"PYTHONPATH={os.pathsep.join(paths)}", *command]


class BrokerProcess:
    """One `tidelog dev`, which keeps its port and data directory over restarts."""

    def __init__(
        self,
        data_dir: Path,
        log_path: Path,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        file_size_limit_bytes: int | None = None,
        has_own_session: bool = False,
    ) -> None:
        self.data_dir = data_dir
        self.log_path = log_path
        self.settings = dict(settings or {})
        self.host = "127.0.0.1"
        self.port = port or free_port()
        self.file_size_limit_bytes = file_size_limit_bytes
        self.has_own_session = has_own_session
        self.process: subprocess.Popen[bytes] | None = None
        self.start_seconds = 0.0

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker was never started"
        return self.process.pid

    def command(self) -> list[str]:
        command = [*tidelog_command(), "dev", "--listen", self.bootstrap, "--data-dir", str(self.data_dir)]
        for name, value in {**DEFAULTS, **self.settings}.items():
            command += ["--set", f"{name}={value}"]
        if self.file_size_limit_bytes is not None:
            command = ["prlimit", f"--fsize={self.file_size_limit_bytes}", *command]
        return command

    def spawn(self) -> subprocess.Popen[bytes]:
        """Starts the process without waiting."""
        assert not self.is_running(), "the broker already runs"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=self.has_own_session,
            )
        return self.process

    def start(self, timeout_s: float = START_TIMEOUT_S) -> BrokerProcess:
        log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        began = time.monotonic()
        process = self.spawn()
        while True:
            output = self.log_text(log_start)
            if READY_LINE.search(output):
                self.start_seconds = time.monotonic() - began
                return self
            if process.poll() is not None:
                raise BrokerStartError(f"tidelog ended with {process.returncode}:\n{output}")
            if time.monotonic() - began > timeout_s:
                self.kill()
                raise BrokerStartError(f"no `ready:` within {timeout_s} s:\n{output}")
            time.sleep(0.01)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Sends SIGTERM, waits, and returns the exit code. If the process does not end in time, it is killed,
        and TimeoutExpired is raised.
        """
        assert self.process is not None
        if self.is_running():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Sends SIGKILL and waits."""
        if self.process is not None and self.is_running():
            self.process.kill()
            self.process.wait()

    def log_text(self, from_byte: int = 0) -> str:
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(from_byte)
            return log.read().decode(errors="replace")

    def log_tail(self) -> str:
        size = self.log_path.stat().st_size if self.log_path.exists() else 0
        return self.log_text(max(0, size - LOG_TAIL_BYTES))
