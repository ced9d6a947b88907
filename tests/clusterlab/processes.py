"""Processes that are not our children: are they there, are they frozen, signals, memory, CPU."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
END_TIMEOUT_S = 30.0
ASK_AGAIN_S = 0.005


def state_of(pid: int) -> str:
    """The letter of /proc/PID/stat (R, S, D, T stopped, Z ended and not yet waited for), "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z")


def command_line(pid: int) -> list[str]:
    """[] if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def send(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)


def await_end(pid: int, timeout_s: float = END_TIMEOUT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while is_alive(pid):
        if time.monotonic() > deadline_s:
            raise TimeoutError(
                f"process {pid} ({' '.join(command_line(pid))[:80]}) did not end in {timeout_s} s"
            )
        time.sleep(ASK_AGAIN_S)


def kill(pid: int) -> None:
    """SIGKILL, also of a frozen process; returns when it is gone. One that is gone already is no error."""
    try:
        send(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    await_end(pid)


def cpu_s(pid: int) -> float:
    """User and system time of a process, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S


def pss_bytes(pid: int) -> int:
    """Memory of a process; what it shares with others is counted by its share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no Pss in smaps_rollup of {pid}")
