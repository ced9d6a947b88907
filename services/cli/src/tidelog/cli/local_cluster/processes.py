"""The processes of a local cluster: started apart from this one, found again by `pids.json`, signalled,
waited for.

A pid alone proves nothing, it may have been given to another program since. So a process counts as one of the
cluster's only if its command line names the cluster's directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PIDS_FILE: Final = "pids.json"
POLL_S: Final = 0.02
EMPTY_POLLS: Final = 10
TAIL_LINES: Final = 15
_LOCK_FILE: Final = ".pids.lock"
_TAIL_BYTES: Final = 20_000


class ProcessTable:
    """`directory` is absolute: it stands in the command lines."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    # -- pids.json

    def pids(self) -> dict[str, int]:
        """By name; {} without the file."""
        try:
            found: dict[str, int] = json.loads((self._directory / PIDS_FILE).read_text())
        except FileNotFoundError:
            return {}
        return found

    def _note(self, name: str, pid: int) -> None:
        """Two commands may start two processes at once: neither forgets the other's."""
        path = self._directory / PIDS_FILE
        with (self._directory / _LOCK_FILE).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps({**self.pids(), name: pid}) + "\n")
            temporary.replace(path)

    def forget_all(self) -> None:
        (self._directory / PIDS_FILE).unlink(missing_ok=True)

    # -- one process

    def spawn(self, name: str, command: Sequence[str], log_path: Path) -> int:
        """In a session of its own, so that it outlives this one and its terminal. Raises OSError."""
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
        """None if it doesn't run."""
        pid = self.pids().get(name)
        return pid if pid is not None and self._is_ours(pid) else None

    def is_stopped(self, name: str) -> bool:
        """By SIGSTOP."""
        pid = self.pid(name)
        return pid is not None and _state(pid) == "T"

    def signal(self, name: str, number: int) -> bool:
        """False if it doesn't run."""
        pid = self.pid(name)
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_until_gone(self, names: Sequence[str], timeout_s: float) -> list[str]:
        """Those that are still there after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while left := [name for name in names if self.pid(name) is not None]:
            if time.monotonic() >= deadline_s:
                return left
            time.sleep(POLL_S)
        return []

    def stop(self, names: Sequence[str], timeout_s: float) -> list[str]:
        """SIGTERM to all at once, SIGKILL to those that are still there after `timeout_s`; names those."""
        for name in names:
            self.signal(name, signal.SIGTERM)
            self.signal(name, signal.SIGCONT)  # one that was frozen can't end
        left = self.wait_until_gone(names, timeout_s)
        for name in left:
            self.signal(name, signal.SIGKILL)
        self.wait_until_gone(left, timeout_s)
        return left

    def _is_ours(self, pid: int) -> bool:
        child = self._children.get(pid)
        if child is not None:
            return child.poll() is None  # which also takes the dead one away
        return _state(pid) not in ("", "Z") and str(self._directory) in _command_line(pid)


def _state(pid: int) -> str:
    """The letter of /proc/PID/stat: Z has ended, T is stopped; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _command_line(pid: int) -> str:
    """Empty for a moment in a process that has just begun to execute its program."""
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
    """The log's last lines; "" without one."""
    try:
        with log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
