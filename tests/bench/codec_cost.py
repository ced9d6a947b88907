"""Measures the cost of the wire codec on this machine, and prints the budget beside it: python
tests/bench/codec_cost.py

Each figure is the best of many short rounds, so other work of the machine does not count.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

from tidelog.wire import codec, headers
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

ROUNDS = 150
SECONDS_PER_ROUND = 0.001
TOPIC = "flights-by-carrier"
TOPIC_ID = UUID("6a1f6e0e-1f0a-4c55-9d43-8cfdbaed5b55")
RECORDS = bytes(16 * 1024)


class Case(NamedTuple):
    name: str
    budget_us: float
    run: Callable[[], Any]


def cases() -> Iterator[Case]:
    """Yields the cases. The budgets are for the versions that current clients use; older versions are for
    comparison.
    """
    for version in (7, 9, 12, 13):
        yield Case(
            f"ProduceRequest 1x1 decode v{version}",
            2.5,
            _decoding(ApiKey.PRODUCE, version, _produce_request()),
        )
        yield Case(
            f"ProduceResponse 1x1 encode v{version}",
            2.0,
            _encoding(ApiKey.PRODUCE, version, _produce_response()),
        )
    for version in (11, 13, 17, 18):
        yield Case(
            f"FetchRequest 1x1 decode v{version}", 3.0, _decoding(ApiKey.FETCH, version, _fetch_request())
        )
        yield Case(
            f"FetchResponse 1x1 encode v{version}", 2.0, _encoding(ApiKey.FETCH, version, _fetch_response())
        )
    for version in (8, 13):
        yield Case(
            f"MetadataResponse 10x10 encode v{version}",
            150.0,
            _encoding(ApiKey.METADATA, version, _metadata()),
        )
    header = memoryview(headers.encode_request_header(ApiKey.PRODUCE, 13, 1, "rdkafka"))
    yield Case("request header decode", 1.0, lambda: headers.decode_request_header(header, 0))
    yield Case("response header encode", 0.5, lambda: headers.response_begin(ApiKey.PRODUCE, 13).pack(0, 1))


def cost_us(run: Callable[[], Any]) -> float:
    """Returns the microseconds of one call."""
    timer = timeit.Timer(run)
    calls = 1
    while timer.timeit(calls) < SECONDS_PER_ROUND:
        calls *= 2
    return min(timer.repeat(ROUNDS, calls)) / calls * 1e6


def _decoding(api_key: ApiKey, version: int, request: Any) -> Callable[[], Any]:
    frame = memoryview(bytearray(b"".join(codec.request_encoder(api_key, version)(request))))
    decode = codec.request_decoder(api_key, version)
    return lambda: decode(frame, 0)


def _encoding(api_key: ApiKey, version: int, response: Any) -> Callable[[], Any]:
    encode = codec.response_encoder(api_key, version)
    return lambda: encode(response)


def _produce_request() -> ProduceRequest:
    topic = TopicProduceData(TOPIC, TOPIC_ID, [PartitionProduceData(3, RECORDS)])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def _produce_response() -> ProduceResponse:
    partition = PartitionProduceResponse(3, 0, base_offset=1_234_567, log_start_offset=0)
    return ProduceResponse([TopicProduceResponse(TOPIC, TOPIC_ID, [partition])])


def _fetch_request() -> FetchRequest:
    partition = FetchPartition(3, current_leader_epoch=5, fetch_offset=1_234_567, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=500, min_bytes=1, session_id=77, topics=[FetchTopic(TOPIC, TOPIC_ID, [partition])]
    )


def _fetch_response() -> FetchResponse:
    partition = PartitionData(
        3,
        high_watermark=1_234_567,
        last_stable_offset=1_234_567,
        log_start_offset=0,
        aborted_transactions=None,
        records=RECORDS,
    )
    return FetchResponse(session_id=77, responses=[FetchableTopicResponse(TOPIC, TOPIC_ID, [partition])])


def _metadata() -> MetadataResponse:
    brokers = [MetadataResponseBroker(n, f"broker-{n}.tidelog.svc", 9092, f"zone-{n}") for n in range(3)]
    topics = [
        MetadataResponseTopic(
            name=f"{TOPIC}-{t}",
            topic_id=UUID(int=t + 1),
            partitions=[
                MetadataResponsePartition(0, p, p % 3, 5, replica_nodes=[0, 1, 2], isr_nodes=[0, 1, 2])
                for p in range(10)
            ],
        )
        for t in range(10)
    ]
    return MetadataResponse(brokers=brokers, cluster_id="tide", controller_id=0, topics=topics)


def main() -> int:
    over = 0
    for case in cases():
        spent = cost_us(case.run)
        over += spent > case.budget_us
        mark = "   OVER" if spent > case.budget_us else ""
        print(f"{case.name:36} {spent:8.2f} us   budget {case.budget_us:6.1f} us{mark}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
