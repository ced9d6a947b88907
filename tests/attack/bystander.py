"""A client that is not the attacker: `python -m attack.bystander HOST:PORT TOPIC PID [--works] [--pushes]`.

It alternates a Produce of one record and a Metadata request, one at a time, until its standard input is
closed. With `--works`, it produces 300 kB, commits an offset of a group and fetches records; a consumer with
a fetch session waits at several partitions for a record, and so does a member of a share group, which
acknowledges it. With `--pushes`, it pushes metrics, too. With `--console HOST:PORT` instead, it uses a
console. It first does so for QUIET_S. Then it prints one
line of JSON: the number of jobs, the longest waits and the 99th percentiles in milliseconds, and the numbers
of connections that it lost and of jobs in which it was refused. It is a process of its own, so that it does
not share an interpreter with the attacker.

`longest_ms` is the longest wait by the clock. `longest_hold_ms` and the percentiles leave out the time in
which the broker's event loop or this process was ready to run but had no CPU, because other work kept the
machine busy. PID is that of the broker, whose loop runs on the main thread.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from attack.console import Browser
from attack.filling import BYSTANDERS_USER
from attack.work import Job, small_requests, work
from tidelog.client.errors import ClientError

PAUSE_S = 0.005
QUIET_S = 4.0
SERVICE_TIMEOUT_S = 60.0


def time_without_cpu_s(pid: int) -> float:
    """Returns how long the main thread of a process was ready to run without a CPU. Returns 0 if the process
    ended or the kernel does not count this time.
    """
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Bystander:
    """A client that does its jobs in turn, and measures them."""

    def __init__(self, jobs: Sequence[Job], broker_pid: int) -> None:
        self._jobs = jobs
        self.requests = 0
        self.lost = 0
        self.refused = 0
        self.waits_s: list[float] = []
        self.holds_s: list[float] = []
        self._pids = broker_pid, os.getpid()

    def forget(self) -> None:
        """Begins a new measurement."""
        self.waits_s.clear()
        self.holds_s.clear()
        self.refused = 0

    def await_service(self) -> None:
        """Works until all jobs in turn are done without a refusal: coordinators load and groups form."""
        until = time.monotonic() + SERVICE_TIMEOUT_S
        done = 0
        while done < len(self._jobs):
            if time.monotonic() > until:
                raise TimeoutError("the bystander is refused before the attack")
            done = done + 1 if self.ask() else 0
            time.sleep(PAUSE_S)

    def p99_ms(self) -> float:
        """Returns the 99th percentile of the waits, without the time without a CPU."""
        return 1000 * sorted(self.holds_s)[len(self.holds_s) * 99 // 100]

    def ask(self) -> bool:
        """Does the next job, and returns whether it was not refused."""
        job = self._jobs[self.requests % len(self._jobs)]
        without_cpu_s = sum(map(time_without_cpu_s, self._pids))
        began = time.perf_counter()
        is_done = True
        try:
            is_done = job()
        except (OSError, ClientError):
            self.lost += 1
        self.requests += 1
        waited_s = time.perf_counter() - began
        self.refused += not is_done
        self.waits_s.append(waited_s)
        self.holds_s.append(waited_s - (sum(map(time_without_cpu_s, self._pids)) - without_cpu_s))
        return is_done


def main() -> None:
    bootstrap, topic, broker_pid = sys.argv[1:4]
    works = "--works" in sys.argv
    jobs = small_requests(bootstrap, topic)
    if "--console" in sys.argv:
        jobs = Browser(sys.argv[sys.argv.index("--console") + 1], BYSTANDERS_USER).jobs(topic)
    elif works:
        jobs = work(bootstrap, topic, pushes="--pushes" in sys.argv)
    bystander = Bystander(jobs, int(broker_pid))
    for _ in range(4):  # the first requests load code and open the partition
        bystander.ask()
    quiet_p99_ms = 0.0
    if works:
        bystander.await_service()
        bystander.forget()
        quiet_until = time.monotonic() + QUIET_S
        while time.monotonic() < quiet_until:
            bystander.ask()
            time.sleep(PAUSE_S)
        quiet_p99_ms = bystander.p99_ms()
    bystander.forget()
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        bystander.ask()
    print(
        json.dumps(
            {
                "requests": bystander.requests,
                "longest_ms": round(1000 * max(bystander.waits_s), 1),
                "longest_hold_ms": round(1000 * max(bystander.holds_s), 1),
                "p99_ms": round(bystander.p99_ms(), 1),
                "quiet_p99_ms": round(quiet_p99_ms, 1),
                "lost": bystander.lost,
                "refused": bystander.refused,
            }
        )
    )


if __name__ == "__main__":
    main()
