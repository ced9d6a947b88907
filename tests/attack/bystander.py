"""A client that is not the attacker: `python -m attack.bystander HOST:PORT TOPIC PID`.

It alternates a Produce of one record and a Metadata request, one at a time, until its standard input is
closed. Then it prints one line of JSON: the number of requests, the longest waits in milliseconds, and the
number of connections that it lost. It is a process of its own, so that it does not share an interpreter with
the attacker.

`longest_ms` is the longest wait by the clock. `longest_hold_ms` leaves out the time in which the broker's
event loop or this process was ready to run but had no CPU, because other work kept the machine busy. PID is
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
TIMEOUT_S = 90.0
"""A request that waits longer counts as this long."""
METADATA_V1_NO_TOPICS = struct.pack(">hhih3si", 3, 1, 1, 3, b"ok1", 0)


def produce_request(topic: str) -> bytes:
    """Returns the payload of a Produce v3 request with acks=1."""
    name = topic.encode()
    batch = build_batch([b"bystander"])
    return (
        struct.pack(">hhih3s", 0, 3, 2, 3, b"ok1")
        + struct.pack(">hhii", -1, 1, 30_000, 1)
        + struct.pack(f">h{len(name)}sii", len(name), name, 1, 0)
        + struct.pack(">i", len(batch))
        + batch
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

    def __init__(self, bootstrap: str, topic: str, broker_pid: int) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._address = host, int(port)
        self._payloads = METADATA_V1_NO_TOPICS, produce_request(topic)
        self._socket: socket.socket | None = None
        self.requests = 0
        self.lost = 0
        self.longest_s = 0.0
        self.longest_hold_s = 0.0
        self._pids = broker_pid, os.getpid()

    def ask(self) -> None:
        payload = self._payloads[self.requests % 2]
        without_cpu_s = sum(map(time_without_cpu_s, self._pids))
        began = time.perf_counter()
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, TIMEOUT_S)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(struct.pack(">i", len(payload)) + payload)
            (size,) = struct.unpack(">i", self._read(4))
            self._read(size)
        except OSError:
            self.lost += 1
            if self._socket is not None:
                self._socket.close()
            self._socket = None
        self.requests += 1
        waited_s = time.perf_counter() - began
        self.longest_s = max(self.longest_s, waited_s)
        if waited_s > self.longest_hold_s:
            hold_s = waited_s - (sum(map(time_without_cpu_s, self._pids)) - without_cpu_s)
            self.longest_hold_s = max(self.longest_hold_s, hold_s)

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
    bystander = Bystander(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    for _ in range(4):  # the first requests load code and open the partition
        bystander.ask()
    bystander.longest_s = bystander.longest_hold_s = 0.0
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        bystander.ask()
    print(
        json.dumps(
            {
                "requests": bystander.requests,
                "longest_ms": round(bystander.longest_s * 1000, 1),
                "longest_hold_ms": round(bystander.longest_hold_s * 1000, 1),
                "lost": bystander.lost,
            }
        )
    )


if __name__ == "__main__":
    main()
