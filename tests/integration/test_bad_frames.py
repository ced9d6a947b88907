"""Malformed requests: the broker responds as Kafka does, or closes the connection with one log line."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from brokerlab.batches import build_batch
from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import consume_messages, produce_values
from brokerlab.raw_client import ConnectionClosedError, RawClient, decode_response, frame, request_header

pytestmark = pytest.mark.integration
METADATA, PRODUCE, FETCH, API_VERSIONS, CREATE_TOPICS = 3, 0, 1, 18, 19
UNSUPPORTED_VERSION = 35
HUGE = 2**31 - 1


def request(api_key: int, version: int, body: bytes, is_flexible: bool = False) -> bytes:
    return frame(request_header(api_key, version, 1, is_flexible) + body)


CLOSING = {
    "negative frame size": struct.pack(">i", -1),
    "least frame size": struct.pack(">i", -(2**31)),
    "frame larger than socket.request.max.bytes": struct.pack(">i", 104857601) + b"x" * 100,
    "greatest frame size": struct.pack(">i", HUGE),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls hello": bytes.fromhex("16030100f8010000f40303") + b"\0" * 100,
    "empty frame": frame(b""),
    "frame without a whole header": frame(b"\0\3\0"),
    "unknown api": request(9999, 0, b""),
    "negative api": request(-3, 0, b""),
    "api of the controller only": request(62, 0, b"\0" * 40),
    "version too new": request(METADATA, 99, b"\0\0\0\0"),
    "negative version": request(METADATA, -1, b"\0\0\0\0"),
    "client id longer than the frame": frame(struct.pack(">hhih", METADATA, 1, 1, 30000) + b"abc"),
    "body cut off": request(METADATA, 1, b"\0\0"),
    "array longer than the frame": request(METADATA, 1, struct.pack(">i", HUGE)),
    "negative array length": request(METADATA, 1, struct.pack(">i", -9)),
    "string longer than the frame": request(METADATA, 1, struct.pack(">ih", 1, 32000) + b"abc"),
    "negative string length": request(METADATA, 1, struct.pack(">ih", 1, -2)),
    "invalid utf-8": request(METADATA, 1, struct.pack(">ih", 1, 2) + b"\xff\xfe"),
    "compact array of 2^32 - 1": request(METADATA, 9, b"\xff\xff\xff\xff\x0f", True),
    "varint without an end": request(METADATA, 9, b"\xff" * 12, True),
    "tagged field longer than the frame": request(METADATA, 9, b"\x01\0\0\0\x01\x05\xff\xff\xff\x7f", True),
    "records longer than the frame": request(
        PRODUCE,
        3,
        struct.pack(">hhiihbii", -1, 1, 1000, 1, 1, ord("t"), 1, 0) + struct.pack(">i", HUGE) + b"x",
    ),
    "negative records size": request(
        PRODUCE, 3, struct.pack(">hhiihbii", -1, 1, 1000, 1, 1, ord("t"), 1, 0) + struct.pack(">i", -77)
    ),
}


LENIENT = {
    "negative array length",
    "invalid utf-8",
    "negative records size",
}  # Apache Kafka reads null or U+FFFD


def log_lines_about(broker: BrokerProcess, port: int, from_byte: int) -> list[str]:
    return [
        line for line in broker.log_text(from_byte).splitlines() if f":{port}" in line or f"={port}" in line
    ]


@pytest.mark.parametrize("name", CLOSING)
def test_only_the_connection_of_the_bad_frame_is_closed(
    bootstrap: str, topic: str, name: str, shared_broker: BrokerProcess | None
) -> None:
    produce_values(bootstrap, topic, [b"kept"])
    log_start = len(shared_broker.log_text().encode()) if shared_broker else 0
    with RawClient(bootstrap) as bystander, RawClient(bootstrap) as bad:
        bystander.call("api_versions", 0)
        bad.send_bytes(CLOSING[name])
        is_closed = bad.is_closed_by_broker()
        assert is_closed or name in LENIENT, "the connection is still open"
        assert bystander.call("api_versions", 0).error_code == 0
        port = bad.socket.getsockname()[1]
    assert [m.value() for m in consume_messages(bootstrap, topic, 1)] == [b"kept"]
    if shared_broker is not None and is_closed:
        assert shared_broker.is_running()
        assert len(log_lines_about(shared_broker, port, log_start)) == 1, "one log line naming the peer"


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(raw: RawClient) -> None:
    for version in (99, 6):
        raw.send_bytes(request(API_VERSIONS, version, b"\0\0\0", True))
        correlation_id, answer = decode_response("api_versions", 0, raw.read_frame())
        assert correlation_id == 1
        assert answer.error_code == UNSUPPORTED_VERSION
        assert {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}[API_VERSIONS][1] >= 3
    assert raw.call("api_versions", 3, client_software_name="x", client_software_version="1").error_code == 0


def test_api_versions_equals_kafkas(raw: RawClient) -> None:
    answer = raw.call("api_versions", 3, client_software_name="librdkafka", client_software_version="2.0")
    served = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
    assert served[PRODUCE] == (0, 13), "version 0: librdkafka needs it although versions 0 to 2 are rejected"
    assert served[FETCH][0] == 4
    assert served[FETCH][1] >= 17
    assert served[METADATA] == (0, 13)
    assert served[CREATE_TOPICS] == (2, 7)


def test_a_client_software_name_that_is_not_valid(raw: RawClient) -> None:
    assert raw.call("api_versions", 3, client_software_name="", client_software_version="").error_code == 42


def test_a_request_byte_by_byte(raw: RawClient) -> None:
    raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in request(METADATA, 1, struct.pack(">i", 0)):
        raw.send_bytes(bytes([byte]))
        time.sleep(0.001)
    assert struct.unpack_from(">i", raw.read_frame()) == (1,)


def test_many_requests_in_one_write(raw: RawClient) -> None:
    raw.send_bytes(request(METADATA, 1, struct.pack(">i", 0)) * 200)
    answers = [raw.read_frame() for _ in range(200)]
    assert len(set(answers)) == 1


def test_a_good_request_before_a_bad_one_is_answered(raw: RawClient) -> None:
    raw.send_bytes(request(METADATA, 1, struct.pack(">i", 0)) + request(9999, 0, b""))
    assert struct.unpack_from(">i", raw.read_frame()) == (1,)
    assert raw.is_closed_by_broker()


def test_a_peer_that_leaves_in_the_middle_of_a_frame(bootstrap: str, topic: str) -> None:
    batch = build_batch([b"x" * 100_000])
    for size in (1, 3, 10, 50_000):
        with RawClient(bootstrap) as client:
            client.send_bytes(struct.pack(">i", len(batch))[:size] + batch[: max(0, size - 4)])
    with RawClient(bootstrap) as client:
        assert client.call("api_versions", 0).error_code == 0


def test_a_peer_that_never_reads_does_not_stop_others(bootstrap: str, topic: str) -> None:
    produce_values(bootstrap, topic, [b"x" * 500_000] * 20)
    with RawClient(bootstrap) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(50):
            deaf.send_bytes(request(METADATA, 1, struct.pack(">i", -1)))
        for _ in range(20):
            deaf.send(
                "fetch",
                12,
                max_wait=100,
                min_bytes=1,
                max_bytes=50_000_000,
                replica_id=-1,
                topics=[
                    {
                        "topic": topic,
                        "partitions": [
                            {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000_000}
                        ],
                    }
                ],
                forgotten_topics_data=[],
            )
        began = time.monotonic()
        produce_values(bootstrap, topic, [b"y"])
        assert time.monotonic() - began < 5


def test_random_bytes(bootstrap: str) -> None:
    """Sends a fixed pseudo-random stream of malformed frames with valid API keys."""
    state = 12345
    for api_key in range(76):
        body = bytearray()
        for _ in range(60):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            body.append(state >> 16 & 0xFF)
        with RawClient(bootstrap, timeout_s=2) as client:
            try:
                client.send_bytes(request(api_key, api_key % 3, bytes(body)))
                client.read_frame()
            except (ConnectionClosedError, TimeoutError, BrokenPipeError):
                continue
    with RawClient(bootstrap) as client:
        assert client.call("api_versions", 0).error_code == 0
