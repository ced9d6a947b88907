"""Sends mutated requests to one broker for a time or a number of requests (`make fuzz`).

The broker has an authorizer and three listeners: an open one, whose clients are super users, one with a
login, and one with TLS and a login. A connection sends its requests before or after the login (`Way`).

The run fails if the broker ends, if it logs a traceback, if its memory grows without end, or if it lets
another client wait for too long. The time in which other processes had the CPUs does not count as a wait.
Prints the seed; the same seed sends the same requests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import resource
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from attack.__main__ import BYSTANDER_END_S, BYSTANDERS_TOPIC, memory_mb
from brokerlab.batches import build_batch
from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic
from brokerlab.raw_client import RawClient
from clusterlab.processes import cpu_s
from fuzz.connections import SHARES, USER, Listeners
from fuzz.mutation import RequestSource
from tidelog.records.builder import build_batch as build_compressed
from tidelog.records.compression import Compression
from tidelog.records.record import Record

NAMES: Final = (
    "t",
    "fuzz-topic",
    "group-1",
    "",
    "../../evil",
    "a" * 250,
    "\u00e9\u00e9",
    "__consumer_offsets",
    "0",
    "[a-z]*(",
)
CORPUS: Final = 4_000
RENEWED: Final = 4
"""The requests that are generated anew before each burst."""
PIPELINED: Final = 8
"""The requests that one connection sends before it reads the answers."""
BURSTS: Final = 12
"""The largest number of such groups of requests on one connection."""
CLOSED: Final = b"\xff\xff\xff\xff"
LONGEST_PATIENCE_S: Final = 0.25
SHORTEST_PATIENCE_S: Final = 0.004
"""A request may park; the connection is closed then, and the next requests use a new one. How long a worker
waits for such an answer depends on how fast the broker answers others.
"""
PATIENCE: Final = 8.0
"""The wait for an answer, as a multiple of the usual time of a first answer."""
WORKERS: Final = 6
WORKER_END_S: Final = 10.0
"""The time in which the workers end by themselves. After that they are killed."""
MAX_WAIT_MS: Final = 100.0
MAX_GROWTH_MB: Final = 100.0
WARM_UP_SHARE: Final = 0.3
"""The growth of memory counts after this share of the run: the broker first fills its bounded caches."""


def filled_source(seed: int) -> RequestSource:
    """Returns a source with CORPUS requests. It takes seconds of CPU, so the workers share its result."""
    now_ms = round(time.time() * 1000)
    records = [Record(n, now_ms, b"k", b"v" * 20) for n in range(5)]
    batches = [
        build_batch([b"a", b"b"]),
        *(bytes(build_compressed(records, compression=c)) for c in Compression),
    ]
    source = RequestSource(random.Random(seed), NAMES, batches)
    source.fill(CORPUS)
    return source


def send(
    listeners: Listeners,
    source: RequestSource,
    seed: int,
    until: float,
    limit: int,
    sent: Synchronized[int],
) -> None:
    """Sends requests until `until` (of time.monotonic) or until all workers together sent `limit`. Each
    process has its own copy of the source.
    """
    chosen = random.Random(seed)
    source.choose_by(chosen)
    context = ssl.create_default_context(cafile=str(listeners.certificate))
    patience = Patience()
    while time.monotonic() < until and sent.value < limit:
        (way,) = chosen.choices(list(SHARES), list(SHARES.values()))
        answered = 0
        with contextlib.suppress(OSError), listeners.connect(way, context) as connection:
            answered = _exchange(connection, source, patience)
        with sent.get_lock():
            sent.value += answered


class Patience:
    """The time that a worker waits for an answer before it gives the connection up."""

    def __init__(self) -> None:
        self._usual_s = LONGEST_PATIENCE_S / PATIENCE

    @property
    def seconds(self) -> float:
        return min(max(PATIENCE * self._usual_s, SHORTEST_PATIENCE_S), LONGEST_PATIENCE_S)

    def answered(self, took_s: float) -> None:
        """Adjusts the usual time to one more answer."""
        self._usual_s += (took_s - self._usual_s) / 16

    def gave_up(self) -> None:
        """Waits a little longer from now on, because the broker may be slow. Many answers outweigh this."""
        self._usual_s = min(self._usual_s * 1.1, LONGEST_PATIENCE_S / PATIENCE)


def _exchange(connection: socket.socket, source: RequestSource, patience: Patience) -> int:
    """Sends bursts of requests, each after the answers to the previous one. Returns how many requests were
    answered, or ended the connection. The broker handles further ones behind a parked one.
    """
    answered = 0
    with connection.makefile("rb") as answers:
        try:
            for _ in range(BURSTS):
                source.renew(RENEWED)
                burst = b"".join(source.burst(PIPELINED))
                connection.settimeout(patience.seconds)
                began_s = time.monotonic()
                connection.sendall(burst)
                for number in range(PIPELINED):
                    (size,) = struct.unpack(">i", answers.read(4) or CLOSED)
                    if number == 0:
                        patience.answered(time.monotonic() - began_s)
                    if size >= 0 and len(answers.read(size)) < size:
                        return answered
                    answered += 1
                    if size < 0:
                        return answered
        except TimeoutError:
            patience.gave_up()
        except OSError:
            answered += 1  # the broker closed the connection at this request
    return answered


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--requests", type=int, default=10_000_000, help="stop after this many requests")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--max-wait-ms", type=float, default=MAX_WAIT_MS)
    parser.add_argument("--keep-log", type=Path, help="copy the broker's log to this file")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    console = Console(highlight=False)
    console.print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="tidelog-fuzz-") as name:
        listeners, settings = Listeners.create(Path(name))
        broker = BrokerProcess(
            Path(name) / "data", Path(name) / "broker.log", settings, listeners.open_port
        ).start()
        try:
            faults = attack(broker, listeners, seed, options, console)
        finally:
            broker.kill()
            if options.keep_log:
                options.keep_log.write_text(broker.log_text())
    for fault in faults:
        console.print(fault, style="red")
    console.print("the broker survived" if not faults else f"again: make fuzz FUZZ_ARGS='--seed {seed}'")
    return 1 if faults else 0


def attack(
    broker: BrokerProcess, listeners: Listeners, seed: int, options: argparse.Namespace, console: Console
) -> list[str]:
    """Runs the workers and returns what went wrong."""
    for topic in (BYSTANDERS_TOPIC, "fuzz-topic"):
        create_topic(broker.bootstrap, topic, 2)
    grant_some_rights(broker.bootstrap)
    bystander = subprocess.Popen(
        [sys.executable, "-m", "attack.bystander", broker.bootstrap, BYSTANDERS_TOPIC, str(broker.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert bystander.stdout is not None
    assert bystander.stdout.readline() == "ready\n"
    sent: Synchronized[int] = multiprocessing.Value("q", 0)
    source = filled_source(seed)
    until = time.monotonic() + options.seconds
    workers = [
        multiprocessing.Process(
            target=send, args=(listeners, source, seed + n, until, options.requests, sent)
        )
        for n in range(WORKERS)
    ]
    start_mb = memory_mb(broker.pid, "VmRSS")
    broker_cpu_s, own_cpu_s = cpu_s(broker.pid), children_cpu_s()
    for worker in workers:
        worker.start()
    began, warm_mb = time.monotonic(), 0.0
    log, failures = LogReader(broker.log_path), Counter[str]()
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=None)
        while any(worker.is_alive() for worker in workers) and broker.is_running():
            time.sleep(0.5)
            used_mb = memory_mb(broker.pid, "VmRSS") if broker.is_running() else 0.0
            share = max((time.monotonic() - began) / options.seconds, sent.value / options.requests)
            if not warm_mb and share > WARM_UP_SHARE:
                warm_mb = used_mb
            failures.update(failures_in(log.new_lines()))
            progress.update(task, description=f"{sent.value:,} requests, {used_mb:.0f} MB")
    end_s = time.monotonic() + WORKER_END_S
    for worker in workers:
        worker.join(max(0.0, end_s - time.monotonic()))
        worker.kill()
        worker.join()
    took_s, own_cpu_s = time.monotonic() - began, children_cpu_s() - own_cpu_s
    broker_cpu_s = cpu_s(broker.pid) - broker_cpu_s if broker.is_running() else 0.0
    said, _ = bystander.communicate(timeout=BYSTANDER_END_S)
    felt = json.loads(said)
    is_running = broker.is_running()
    end_mb = memory_mb(broker.pid, "VmRSS") if is_running else 0.0
    console.print(
        f"{sent.value:,} requests in {took_s:.0f} s; longest wait of another client "
        f"{felt['longest_ms']:.0f} ms, of which {felt['longest_hold_ms']:.0f} ms while the broker had a CPU; "
        f"memory {start_mb:.0f} -> {warm_mb:.0f} -> {end_mb:.0f} MB"
    )
    console.print(
        f"{sent.value / took_s:,.0f} requests/s; CPU of the workers {own_cpu_s:.0f} s, of the broker "
        f"{broker_cpu_s:.0f} s ({1e6 * broker_cpu_s / max(1, sent.value):,.0f} us a request)"
    )
    faults = [] if is_running else ["the broker ended"]
    if felt["longest_hold_ms"] > options.max_wait_ms:
        faults.append(f"the broker let another client wait for {felt['longest_hold_ms']:.0f} ms")
    if felt["lost"]:
        faults.append(f"another client lost its connection {felt['lost']} times")
    if warm_mb and end_mb - warm_mb > MAX_GROWTH_MB:
        faults.append(f"memory grew from {warm_mb:.0f} to {end_mb:.0f} MB")
    failures.update(failures_in(log.new_lines()))
    faults += [f"logged {count} times: {failure}" for failure, count in failures.most_common()]
    return faults


def children_cpu_s() -> float:
    """Returns the CPU time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def grant_some_rights(bootstrap: str) -> None:
    """Lets USER do some of what it will ask for, so that requests are allowed, denied and partly denied."""
    with RawClient(bootstrap) as client:
        grants = (
            *((2, "fuzz-topic", 3, operation) for operation in (3, 4, 8, 10)),
            (2, "t", 3, 2),
            (3, "group", 4, 2),
            (5, "0", 3, 2),
            (4, "kafka-cluster", 3, 8),
        )
        answer = client.call(
            "create_acls",
            3,
            creations=[
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "resource_pattern_type": pattern,
                    "principal": f"User:{USER}",
                    "host": "*",
                    "operation": operation,
                    "permission_type": 3,
                }
                for kind, name, pattern, operation in grants
            ],
        )
        assert not any(result.error_code for result in answer.results), answer


class LogReader:
    """Reads a growing log, whole lines at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new_lines(self) -> list[str]:
        """Returns the complete lines that were written since the last call."""
        with self._path.open("rb") as log:
            log.seek(self._position)
            text = log.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._position += len(complete)
        return complete.decode(errors="replace").splitlines()


def failures_in(lines: Iterable[str]) -> Iterator[str]:
    """Yields the event and the exception of each line of the log that reports an error."""
    for line in lines:
        if '"error"' not in line and '"exception"' not in line:
            continue
        with contextlib.suppress(ValueError):  # the first lines of a process are not JSON
            entry = json.loads(line)
            if entry["level"] == "error" or "exception" in entry:
                last = entry.get("exception", "").strip().splitlines()[-1:]
                yield " ".join([entry["event"], *last])


if __name__ == "__main__":
    sys.exit(main())
