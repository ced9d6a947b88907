"""Measures the cost of tracing for a produce and a fetch: the CPU time of a request in the broker's code,
without sockets.

.venv/bin/python tests/bench/tracing_cost.py [ROUNDS]

The variants run in turns in one process. Rounds are so short that most are not interrupted, and the least
time of a variant's rounds is its cost. `off` is a broker without tracing, and so is `off again`: their
difference is the error of the method. The other variants trace that share of requests, with an exporter that
does nothing.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

ROUNDS = 200
REQUESTS_A_ROUND = 50
WARM_UP_REQUESTS = 5
RECORDS = 10
VALUE = b"x" * 100
VERSIONS = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12}
SHARES = (0.0, 0.01, 1.0)


class Plug:
    """A connection that discards its responses."""

    peer_host, peer_port = "127.0.0.1", 50_000
    is_closed = False
    unsent_bytes = 0

    listener_name = "PLAINTEXT"

    class listener:  # noqa: N801  an attribute
        name, port = "PLAINTEXT", 9092

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.last_active = time.monotonic()
        self.answers = 0

    def answer_now(self, context: Any, chunks: Sequence[Any]) -> None:
        self._answered(chunks)

    def answer_later(self, context: Any, chunks: Sequence[Any]) -> None:
        self._answered(chunks)

    def _answered(self, chunks: Sequence[Any]) -> None:
        self.answers += 1
        for chunk in chunks:
            if hasattr(chunk, "release"):
                chunk.release()

    def wait_for(self, context: Any) -> None:
        """Does nothing, because the request is answered in this turn."""

    def is_waiting_for(self, context: Any) -> bool:
        return False


def _header(api_key: ApiKey) -> bytes:
    name = b"bench"
    flexible = b"\x00"
    return struct.pack(">hhih", api_key, VERSIONS[api_key], 1, len(name)) + name + flexible


def _frame(api_key: ApiKey, request: Any) -> bytes:
    body = b"".join(bytes(chunk) for chunk in codec.request_encoder(api_key, VERSIONS[api_key])(request))
    return _header(api_key) + body


def produce_frame(topic: str, now_ms: int) -> bytes:
    batch = build_batch([Record(number, now_ms, None, VALUE, []) for number in range(RECORDS)])
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, batch)])
    return _frame(ApiKey.PRODUCE, ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data]))


def fetch_frame(topic: str, offset: int) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    return _frame(ApiKey.FETCH, request)


class Variant:
    def __init__(self, number: int, name: str, lab: InMemoryBroker, dispatcher: Dispatcher) -> None:
        self.number = number
        self.name = name
        self.costs_us: dict[str, list[float]] = {"produce": [], "fetch and produce": []}
        self._lab = lab
        self._dispatcher = dispatcher
        self._plug = Plug(lab.runner.get_loop())

    def produce(self) -> None:
        """Appends a batch, which is answered at once."""
        frame = produce_frame("t", self._lab.clock.wall_ms())
        self._measure("produce", lambda: self._dispatch(frame), answers=1)

    def fetch_and_produce(self) -> None:
        """Waits with a fetch at the log's end until a produce ends the wait."""
        frame, replica = (
            produce_frame("t", self._lab.clock.wall_ms()),
            self._lab.broker.hosted.leader_replica("t", 0),
        )
        fetch = bytearray(fetch_frame("t", 0))
        place = fetch.index(struct.pack(">qi", 0, -1))  # fetch offset and last fetched epoch

        def both() -> None:
            struct.pack_into(">q", fetch, place, replica.core.log_end_offset)
            self._dispatch(bytes(fetch))
            self._dispatch(frame)

        self._measure("fetch and produce", both, answers=2)

    def _dispatch(self, frame: bytes) -> None:
        self._plug.last_active = time.monotonic()
        self._dispatcher.dispatch(self._plug, memoryview(bytearray(frame)))  # type: ignore[arg-type]

    def _measure(self, what: str, request: Callable[[], None], *, answers: int) -> None:
        loop = self._plug.loop
        for _ in range(WARM_UP_REQUESTS):
            request()
        loop.run_until_complete(asyncio.sleep(0))
        before = self._plug.answers
        core = self._lab.broker.hosted.leader_replica("t", 0).core
        end_offset = core.log_end_offset + REQUESTS_A_ROUND * RECORDS
        began_s = time.thread_time()
        for _ in range(REQUESTS_A_ROUND):
            request()
        loop.run_until_complete(asyncio.sleep(0))
        spent_s = time.thread_time() - began_s
        assert self._plug.answers - before == REQUESTS_A_ROUND * answers, "not all were answered"
        assert core.log_end_offset == end_offset, "not all were appended"
        self.costs_us[what].append(spent_s / REQUESTS_A_ROUND * 1e6)


def variants(directory: Path) -> list[Variant]:
    made = []
    names: list[tuple[str, float | None]] = [("off", None), ("off again", None)]
    names += [(f"{share:.0%} of requests", share) for share in SHARES]
    for number, (name, share) in enumerate(names):
        path = directory / str(number)
        path.mkdir()
        lab = InMemoryBroker(path)
        lab.add_topic("t")
        dispatcher = (
            Dispatcher(lab.handlers, lab.broker.telemetry, lab.broker.quotas)
            if share is None
            else _tracing(lab, share)
        )
        made.append(Variant(number, name, lab, dispatcher))
    return made


def _tracing(lab: InMemoryBroker, share: float) -> Dispatcher:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    from tidelog.broker.requests.tracing import RequestTracer
    from tidelog.tracing.tracer import Tracing

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    tracing = Tracing(
        Nowhere(),
        Resource.get_empty(),
        sampling_ratio=share,
        max_traces_per_second=1_000_000,
        max_queued_spans=4096,
    )
    tracer = RequestTracer(tracing, lab.broker.metadata.topic_names)
    return Dispatcher(lab.handlers, lab.broker.telemetry, lab.broker.quotas, tracer)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as directory:
        made = variants(Path(directory))
        shuffled = random.Random(1)
        for _ in range(rounds):
            shuffled.shuffle(made)  # a variant that follows an expensive one finds cold caches
            for variant in made:
                variant.produce()
                variant.fetch_and_produce()
        made.sort(key=lambda variant: variant.number)
        for what in made[0].costs_us:
            least = min(made[0].costs_us[what])
            print(f"{what}: CPU a request, {rounds} rounds of {REQUESTS_A_ROUND}")
            for variant in made:
                costs = variant.costs_us[what]
                print(
                    f"  {variant.name:18s} {min(costs):7.2f} us  ({min(costs) - least:+.2f})"
                    f"  median {statistics.median(costs):7.2f} us"
                )


if __name__ == "__main__":
    main()
