"""Observes and signals processes that are not our children, and finds ports for clusters that run side by
side.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from pathlib import Path

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
END_TIMEOUT_S = 30.0
ASK_AGAIN_S = 0.005
LOWEST, HIGHEST = 20_000, 28_000
RANGE_SIZE = 40
TRIES = 200


def state_of(pid: int) -> str:
    """Returns the letter of /proc/PID/stat (R, S, D, T for stopped, Z for ended but not yet waited for), or
    "" if there is no such process.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z")


def command_line(pid: int) -> list[str]:
    """Returns [] if there is no such process."""
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
    """Sends SIGKILL, also to a frozen process, and returns when the process has ended. It accepts a process
    that has already ended.
    """
    try:
        send(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    await_end(pid)


def cpu_s(pid: int) -> float:
    """Returns user and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S


def pss_bytes(pid: int) -> int:
    """Returns the memory of a process, with its share of shared memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no Pss in smaps_rollup of {pid}")


class PortRange:
    """RANGE_SIZE free ports from `base` on. The last port is held until `release()`, to mark the range as
    used. Ports are below 32768, because the kernel assigns higher ones to clients.
    """

    def __init__(self, step: int = RANGE_SIZE) -> None:
        chance = random.SystemRandom()
        for _ in range(TRIES):
            self.base = LOWEST + step * chance.randrange((HIGHEST - LOWEST) // step)
            self._sign = socket.socket()
            try:
                self._sign.bind(("127.0.0.1", self.base + step - 1))
                for port in range(self.base, self.base + step - 1):
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", port))
            except OSError:
                self._sign.close()
                continue
            return
        raise RuntimeError(f"no free range of {step} ports between {LOWEST} and {HIGHEST}")

    def release(self) -> None:
        self._sign.close()
