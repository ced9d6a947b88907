"""A client that is not the attacker: `python -m attack.bystander HOST:PORT TOPIC PID [--works]`.

It alternates a Produce of one record and a Metadata request, one at a time, until its standard input is
closed. With `--works`, it produces 300 kB, commits an offset of a group and fetches records, and first does
so for QUIET_S. Then it prints one line of JSON: the number of requests, the longest waits and the 99th
percentiles in milliseconds, and the numbers of connections that it lost and of commits that were refused. It
is a process of its own, so that it does not share an interpreter with the attacker.

`longest_ms` is the longest wait by the clock. `longest_hold_ms` and the percentiles leave out the time in
which the broker's event loop or this process was ready to run but had no CPU, because other work kept the
machine busy. PID is
that of the broker, whose loop runs on the main thread.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path

from brokerlab.batches import build_batch

PAUSE_S = 0.005
QUIET_S = 4.0
WORK_BYTES = 300_000
OFFSET_COMMIT = 8
COORDINATOR_TIMEOUT_S = 60.0
TIMEOUT_S = 90.0
"""A request that waits longer counts as this long."""
METADATA_V1_NO_TOPICS = struct.pack(">hhih3si", 3, 1, 1, 3, b"ok1", 0)


def produce_request(topic: str, value: bytes = b"bystander") -> bytes:
    """Returns the payload of a Produce v3 request with acks=1."""
    name = topic.encode()
    batch = build_batch([value])
    return (
        struct.pack(">hhih3s", 0, 3, 2, 3, b"ok1")
        + struct.pack(">hhii", -1, 1, 30_000, 1)
        + struct.pack(f">h{len(name)}sii", len(name), name, 1, 0)
        + struct.pack(">i", len(batch))
        + batch
    )


def commit_request(topic: str) -> bytes:
    """Returns the payload of an OffsetCommit v2 of a group without members."""
    name = topic.encode()
    return (
        struct.pack(">hhih3s", 8, 2, 4, 3, b"ok1")
        + struct.pack(">h9sih", 9, b"bystander", -1, 0)
        + struct.pack(">qi", -1, 1)
        + struct.pack(f">h{len(name)}sii", len(name), name, 1, 0)
        + struct.pack(">qh", 1, -1)
    )


def fetch_request(topic: str) -> bytes:
    """Returns the payload of a Fetch v4 of the first records."""
    name = topic.encode()
    return (
        struct.pack(">hhih3s", 1, 4, 5, 3, b"ok1")
        + struct.pack(">iiiibi", -1, 500, 1, 1 << 16, 0, 1)
        + struct.pack(f">h{len(name)}sii", len(name), name, 1, 0)
        + struct.pack(">qi", 0, 1 << 16)
    )


def time_without_cpu_s(pid: int) -> float:
    """Returns how long the main thread of a process was ready to run without a CPU. Returns 0 if the process
    ended or the kernel does not count this time.
    """
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Bystander:
    """One connection, which is opened again if the broker closes it."""

    def __init__(self, bootstrap: str, topic: str, broker_pid: int, *, works: bool = False) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._address = host, int(port)
        self._payloads: tuple[bytes, ...] = METADATA_V1_NO_TOPICS, produce_request(topic)
        if works:
            large = produce_request(topic, os.urandom(WORK_BYTES))
            self._payloads = large, commit_request(topic), fetch_request(topic)
        self._socket: socket.socket | None = None
        self.requests = 0
        self.lost = 0
        self.refused = 0
        self.waits_s: list[float] = []
        self.holds_s: list[float] = []
        self._pids = broker_pid, os.getpid()
        self.answer = b""

    def forget(self) -> None:
        """Begins a new measurement."""
        self.waits_s.clear()
        self.holds_s.clear()
        self.refused = 0

    def await_coordinator(self) -> None:
        """Works until its group's coordinator answers without an error."""
        until = time.monotonic() + COORDINATOR_TIMEOUT_S
        while time.monotonic() < until:
            payload = self.ask()
            if payload[:2] == struct.pack(">h", OFFSET_COMMIT) and self.answer[-2:] == b"\0\0":
                return
            time.sleep(PAUSE_S)
        raise TimeoutError("the bystander's group has no coordinator")

    def p99_ms(self) -> float:
        """Returns the 99th percentile of the waits, without the time without a CPU."""
        return 1000 * sorted(self.holds_s)[len(self.holds_s) * 99 // 100]

    def ask(self) -> bytes:
        """Sends the next request, waits for its answer, and returns the request."""
        payload = self._payloads[self.requests % len(self._payloads)]
        without_cpu_s = sum(map(time_without_cpu_s, self._pids))
        began = time.perf_counter()
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, TIMEOUT_S)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(struct.pack(">i", len(payload)) + payload)
            (size,) = struct.unpack(">i", self._read(4))
            self.answer = self._read(size)
        except OSError:
            self.lost += 1
            self.answer = b"lost"
            if self._socket is not None:
                self._socket.close()
            self._socket = None
        self.requests += 1
        waited_s = time.perf_counter() - began
        is_commit = payload[:2] == struct.pack(">h", OFFSET_COMMIT)
        self.refused += is_commit and self.answer[-2:] != b"\0\0"
        self.waits_s.append(waited_s)
        self.holds_s.append(waited_s - (sum(map(time_without_cpu_s, self._pids)) - without_cpu_s))
        return payload

    def _read(self, size: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return bytes(data)


def main() -> None:
    works = "--works" in sys.argv
    bystander = Bystander(sys.argv[1], sys.argv[2], int(sys.argv[3]), works=works)
    for _ in range(4):  # the first requests load code and open the partition
        bystander.ask()
    quiet_p99_ms = 0.0
    if works:
        bystander.await_coordinator()
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
