"""Measures what an authorizer costs: the CPU time of the broker's event loop per Produce and Fetch request.

Two brokers of one build run side by side, one without an authorizer and one with it. They get the same
requests in turn, so that other work on the machine meets both. In the second one, ACLs allow the client what
it does, and others concern other principals. Prints the median and the quartiles of the ratio for each case:

    make compiled
    TIDELOG_BUILD=build/compiled PYTHONPATH=tests .venv/bin/python tests/bench/authorizer_cost.py
"""

from __future__ import annotations

import argparse
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic
from brokerlab.raw_client import RawClient
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import decode_response_header, encode_request_header
from tidelog.wire.messages import fetch, produce

TOPICS: Final = tuple(f"bench-{number}" for number in range(20))
IN_FLIGHT: Final = 5
OTHER_ACLS: Final = 200
ANY_PRINCIPAL, ANONYMOUS = "User:someone-{}", "User:ANONYMOUS"
AUTHORIZED: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",  # until there are ACLs of topics, and for the cluster
}


def encoded(request: Any, version: int) -> bytes:
    key = ApiKey(request.API_KEY)
    payload = bytes(encode_request_header(key, version, 1, "bench")) + b"".join(
        map(bytes, codec.request_encoder(key, version)(request))
    )
    return struct.pack(">i", len(payload)) + payload


def produce_frame(topics: tuple[str, ...]) -> bytes:
    now_ms = round(time.time() * 1000)
    batch = build_batch([Record(0, now_ms, None, b"x" * 100, [])])
    data = [
        produce.TopicProduceData(
            name, partition_data=[produce.PartitionProduceData(0, memoryview(bytes(batch)))]
        )
        for name in topics
    ]
    return encoded(produce.ProduceRequest(None, 1, 30_000, data), 9)


def fetch_frame(topics: tuple[str, ...]) -> bytes:
    part = [fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=500)]
    wanted = [fetch.FetchTopic(name, partitions=part) for name in topics]
    request = fetch.FetchRequest(max_wait_ms=0, max_bytes=50_000, session_epoch=-1, topics=wanted)
    return encoded(request, 12)


CASES: Final = {
    "Produce, 1 topic": produce_frame(TOPICS[:1]),
    "Produce, 20 topics": produce_frame(TOPICS),
    "Fetch, 1 topic": fetch_frame(TOPICS[:1]),
    "Fetch, 20 topics": fetch_frame(TOPICS),
}


class Side:
    """One broker and a connection to it."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        directory.mkdir()
        self.broker = BrokerProcess(directory / "data", directory / "broker.log", settings).start()
        for name in TOPICS:
            create_topic(self.broker.bootstrap, name, 1)
        if settings:
            self._create_acls()
        self._socket = socket.create_connection((self.broker.host, self.broker.port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb", 1 << 20)

    def _create_acls(self) -> None:
        rules = [(name, ANONYMOUS, operation) for name in TOPICS for operation in (3, 4)]
        rules += [(TOPICS[n % len(TOPICS)], ANY_PRINCIPAL.format(n), 3) for n in range(OTHER_ACLS)]
        with RawClient(self.broker.bootstrap) as client:
            answer = client.call(
                "create_acls",
                3,
                creations=[
                    {
                        "resource_type": 2,
                        "resource_name": name,
                        "resource_pattern_type": 3,
                        "principal": principal,
                        "host": "*",
                        "operation": operation,
                        "permission_type": 3,
                    }
                    for name, principal, operation in rules
                ],
            )
            assert not any(result.error_code for result in answer.results)

    def cpu_us(self, frame: bytes, count: int) -> float:
        """Returns the CPU time of the event loop per request, in microseconds."""
        before_ns = self._cpu_ns()
        for _ in range(count // IN_FLIGHT):
            self._socket.sendall(frame * IN_FLIGHT)
            for _ in range(IN_FLIGHT):
                (size,) = struct.unpack(">i", self._answers.read(4))
                self._answers.read(size)
        return (self._cpu_ns() - before_ns) / 1000 / count

    def check(self, frame: bytes) -> None:
        """Raises AssertionError if the broker answers a request with an error."""
        self._socket.sendall(frame)
        (size,) = struct.unpack(">i", self._answers.read(4))
        payload = self._answers.read(size)
        key, version = struct.unpack_from(">hh", frame, 4)
        _, position = decode_response_header(payload, 0, ApiKey(key), version)
        answer = codec.response_decoder(ApiKey(key), version)(payload, position)[0]
        for topic in answer.responses:
            for part in topic.partition_responses if key == ApiKey.PRODUCE else topic.partitions:
                assert part.error_code == ErrorCode.NONE, part

    def _cpu_ns(self) -> int:
        pid = self.broker.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])

    def close(self) -> None:
        self._socket.close()
        self.broker.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=1_000, help="requests of one measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelog-authorizer-") as name:
        sides = [Side(Path(name) / "without", {}), Side(Path(name) / "with", AUTHORIZED)]
        try:
            for side in sides:
                for frame in CASES.values():
                    side.check(frame)
                    side.cpu_us(frame, options.requests)  # the first requests load code
            costs: dict[str, tuple[list[float], list[float]]] = {case: ([], []) for case in CASES}
            for turn in range(options.rounds):
                for case, frame in CASES.items():
                    for index in (0, 1) if turn % 2 else (1, 0):
                        costs[case][index].append(sides[index].cpu_us(frame, options.requests))
        finally:
            for side in sides:
                side.close()
    for case, (without, with_one) in costs.items():
        low, middle, high = statistics.quantiles([b / a for a, b in zip(without, with_one, strict=True)], n=4)
        print(
            f"{case}: {statistics.median(without):.1f} -> {statistics.median(with_one):.1f} us per request; "
            f"ratio {middle:.3f} (quartiles {low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
