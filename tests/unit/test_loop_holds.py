"""Measures for how long one request holds the event loop, with the worst requests that the broker accepts.

A generator builds, for each API in its last version, requests that spend the API's whole limit of elements on
one array: with names that exist, with names that do not, with long names, with as many of the longest names
as fit, and with the longest ids of groups and members around names that exist. Other tests append thousands
of batches with one request, and create, change and delete thousands of topics. The requests go to an embedded
cluster (broker, controller and group coordinator on one event loop). The test measures the CPU time of each
iteration of this loop, so that a busy machine does not fail it.

CPU time also grows on a slow machine, and while neighbors use the caches of the processor. The test therefore
measures a fixed piece of Python beside each request and divides by its slowdown. The limit of 50 ms is for a
machine that does this piece in REFERENCE_MS.
"""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from brokerlab.batches import build_batch
from brokerlab.raw_client import ConnectionClosedError, RawClient, frame
from tidelog.broker.requests.apis import APIS
from tidelog.embedded.cluster import EmbeddedCluster
from tidelog.model.topics import MAX_NAME_BYTES
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey, max_elements
from tidelog.wire.headers import encode_request_header
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.schema import Message, Struct

T = TypeVar("T")
MAX_HOLD_MS: Final = 50
APPENDED_BATCHES: Final = 4_000
PARTITIONS: Final = 100
TOPIC: Final = "events"
ANSWER_TIMEOUT_S: Final = 60
TAGGED_FIELDS: Final = 3
"""Room for the tagged fields of a request, which count as elements."""
ATTEMPTS: Final = 5
"""A request is repeated if it held the loop for long, because the garbage collector may have run."""
CLUSTERS: Final = 3
"""Requests that change something are repeated in a new cluster, up to this number."""
REFERENCE_OBJECTS: Final = 20_000
REFERENCE_MS: Final = 4.0
"""The CPU time of `reference_work` on the machine for which the limit was set (3 GHz, otherwise idle)."""
LONG: Final = 200
"""The length of long names. The largest request of an API other than Produce has 8 MiB."""
LONGEST: Final = 32_000
MOST_OF_THE_LONGEST: Final = 250
"""The longest names of which a request may have so many."""
MANY_TOPICS: Final = 4_980
"""One request may create almost as many topics, with PARTITIONS_OF_MANY partitions each."""
PARTITIONS_OF_MANY: Final = 2
REST_S: Final = 1
"""The time after an administrative request in which the services still react to it."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class MeasuredLoop(asyncio.SelectorEventLoop):
    """An event loop that remembers its longest iteration, in seconds of CPU time."""

    longest_s = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest_s = max(self.longest_s, time.thread_time() - began)


def reference_work() -> None:
    """Builds and looks up names, as most requests do, with few containers, so that no collection begins."""
    names = [f"name-{number}" for number in range(REFERENCE_OBJECTS)]
    index = {name: number for number, name in enumerate(names)}
    assert sum(index[name] for name in names) == sum(range(REFERENCE_OBJECTS))


def slowdown() -> float:
    """Returns how many times slower than the reference this machine is now, and at least 1."""
    began = time.thread_time()
    reference_work()
    return max(1.0, (time.thread_time() - began) * 1000 / REFERENCE_MS)


def hold(loop: MeasuredLoop, act: Callable[[], T], rest_s: float = 0.02) -> tuple[float, T]:
    """Returns for how many ms `act` held the loop on a machine of reference speed, and the result of `act`.

    A slowdown counts only if it was there both before and after.
    """
    before = slowdown()
    time.sleep(0.02)
    loop.longest_s = 0.0
    result = act()
    time.sleep(rest_s)
    longest_s = loop.longest_s
    return longest_s * 1000 / min(before, slowdown()), result


class Names:
    """The names and ids in a request: known ones, unknown ones, or long ones.

    With "long ids", the names are known, and group ids, member ids and transactional ids have the most bytes
    that a request may have which changes something.
    """

    def __init__(self, mode: str, topic_id: uuid.UUID) -> None:
        self.mode = mode
        self._topic_id = topic_id
        self._count = 0

    def text(self, field: str = "") -> str:
        self._count += 1
        if self.mode == "long ids" and field.endswith("_id"):
            return "x" * MAX_NAME_BYTES
        if self.mode in ("known", "long ids"):
            return TOPIC
        length = {"long": LONG, "longest": LONGEST}.get(self.mode, 1)
        return f"{'x' * length}{self._count}"

    def identity(self) -> uuid.UUID:
        self._count += 1
        return self._topic_id if self.mode in ("known", "long ids") else uuid.UUID(int=self._count)


def array_paths(kind: type[Struct], version: int) -> Iterator[tuple[str, ...]]:
    """Yields the path of each array of a struct, at any depth."""
    for field in kind.FIELDS:
        if not field.is_in(version):
            continue
        inner = field.kind[0] if isinstance(field.kind, tuple) else field.kind
        if isinstance(field.kind, tuple):
            yield (field.name,)
        if not isinstance(inner, str):
            for path in array_paths(inner, version):
                yield (field.name, *path)


def build(kind: type[Struct], version: int, path: tuple[str, ...], count: int, names: Names) -> Any:
    """Returns a struct with `count` elements in the array at `path`, and one in the arrays around it."""
    values: dict[str, Any] = {}
    for field in kind.FIELDS:
        if not field.is_in(version):
            continue
        is_on_path = bool(path) and field.name == path[0]
        if field.is_tagged_in(version) and not is_on_path:
            continue
        if isinstance(field.kind, tuple):
            size = 0 if not is_on_path else count if len(path) == 1 else 1
            values[field.name] = [
                value(field.kind[0], version, path[1:] if is_on_path else (), count, names, n)
                for n in range(size)
            ]
        elif not field.is_nullable_in(version) or is_on_path or field.kind == "string":
            default = getattr(kind(), field.name)
            if field.kind == "string":
                values[field.name] = names.text(field.name)
            elif field.kind == "uuid" or not isinstance(field.kind, str):
                values[field.name] = value(
                    field.kind, version, path[1:] if is_on_path else (), count, names, 0
                )
            else:
                values[field.name] = NUMBERS.get(field.name, default)
    return kind(**values)


NUMBERS: Final = {
    "timeout_ms": 1_000,
    "replica_id": -1,
    "session_epoch": -1,
    "session_timeout_ms": 30_000,
    "rebalance_timeout_ms": 30_000,
    "generation_id": -1,
    "acks": 1,
    "include_topic_authorized_operations": True,
    "include_authorized_operations": True,
    "include_synonyms": True,
    "include_documentation": True,
    "resource_type": 2,
    "validate_only": True,
}


def value(kind: Any, version: int, path: tuple[str, ...], count: int, names: Names, number: int) -> Any:
    if not isinstance(kind, str):
        return build(kind, version, path, count, names)
    if kind == "string":
        return names.text()
    if kind == "uuid":
        return names.identity()
    if kind in ("bytes", "records"):
        return b""
    return number % 100 if kind == "int8" else bool(number) if kind == "bool" else number


def requests(api_key: int, version: int, topic_id: uuid.UUID) -> Iterator[tuple[str, bytes]]:
    """Yields a description and the body of each request."""
    message: type[Message] = codec.request_class(api_key)
    limit = max_elements(api_key)
    for path in [*array_paths(message, version), ()]:
        for mode in ("known", "unknown", "long", "longest", "long ids"):
            names, count = Names(mode, topic_id), limit - len(path) - TAGGED_FIELDS
            if mode == "longest":
                count = min(count, MOST_OF_THE_LONGEST)
            made = build(message, version, path, count, names)
            body = b"".join(bytes(c) for c in codec.request_encoder(api_key, version)(made))
            yield f"{'.'.join(path) or 'empty'} {mode}", body


def ask(address: str, api_key: int, version: int, body: bytes) -> str:
    with RawClient(address, ANSWER_TIMEOUT_S) as client:
        header = encode_request_header(api_key, version, 1, "attacker")
        try:
            client.send_bytes(frame(header + body))
            return f"{len(client.read_frame())} bytes"
        except (ConnectionClosedError, BrokenPipeError, ConnectionResetError):
            return "closed"


def attack(address: str, loop: MeasuredLoop) -> dict[str, tuple[float, str, str]]:
    """Returns the longest hold in ms of each API, with its request and the outcome."""
    with RawClient(address, ANSWER_TIMEOUT_S) as client:
        topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1}
        client.call("create_topics", 7, topics=[{**topic, "assignments": [], "configs": []}], timeout=10_000)
        wanted = {"topic_id": uuid.UUID(int=0), "name": TOPIC}
        answer = client.call("metadata", 12, topics=[wanted], include_topic_authorized_operations=False)
        topic_id = answer.topics[0].topic_id
        for key_type in (0, 1):
            client.call("find_coordinator", 4, key_type=key_type, coordinator_keys=[TOPIC])
    time.sleep(2)  # the coordinator loads its shards
    found = {}
    for api_key, served in APIS.items():
        version = served.max_version
        ask(
            address, api_key, version, list(requests(api_key, version, topic_id))[-1][1]
        )  # compiles the codec
        worst = (0.0, "", "")
        for title, body in requests(api_key, version, topic_id):
            held_ms: list[float] = []
            while len(held_ms) < ATTEMPTS and min(held_ms, default=MAX_HOLD_MS) > MAX_HOLD_MS / 2:
                hold_ms, outcome = hold(loop, partial(ask, address, api_key, version, body))
                held_ms.append(hold_ms)
            worst = max(worst, (min(held_ms), title, f"{len(body)} -> {outcome}"))
        found[ApiKey(api_key).name_in_kafka] = worst
    return found


def measured(tmp_path: Path, attacker: Callable[[str, MeasuredLoop], T]) -> T:
    """Returns the result of `attacker`, which runs in a thread beside the loop of a cluster."""
    gc.collect()
    gc.freeze()  # a collection shall not walk through what other tests of this process have left
    settings = BrokerSettings.parse(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "auto.create.topics.enable": "false",
        }
    )

    async def run() -> T:
        cluster = await EmbeddedCluster.start(settings, tmp_path)
        gc.freeze()  # as the broker's process does
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeasuredLoop)
        try:
            return await asyncio.to_thread(attacker, cluster.address, loop)
        finally:
            await cluster.stop()

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        return runner.run(run())


def send_and_read(client: RawClient, sent: bytes, answers: int) -> None:
    client.send_bytes(sent)
    for _ in range(answers):
        client.read_frame()


def append_many(address: str, loop: MeasuredLoop) -> dict[str, float]:
    """Returns the longest hold in ms of a Produce request with APPENDED_BATCHES batches, by acks."""
    topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1}
    with RawClient(address, ANSWER_TIMEOUT_S) as client:
        client.call("create_topics", 7, topics=[{**topic, "assignments": [], "configs": []}], timeout=10_000)
    batch = build_batch([b"x"])
    partitions = [PartitionProduceData(number % PARTITIONS, batch) for number in range(APPENDED_BATCHES)]
    found = {}
    for acks in (0, 1, -1):
        request = ProduceRequest(None, acks, 10_000, [TopicProduceData(TOPIC, partition_data=partitions)])
        body = b"".join(bytes(chunk) for chunk in codec.request_encoder(ApiKey.PRODUCE, 12)(request))
        sent = frame(encode_request_header(ApiKey.PRODUCE, 12, 1, "attacker") + body)
        # Its answer says that the produce request without acknowledgment has been served.
        next_request = frame(encode_request_header(ApiKey.API_VERSIONS, 0, 2, "attacker"))
        held_ms = []
        with RawClient(address, ANSWER_TIMEOUT_S) as client:
            for _ in range(ATTEMPTS):
                hold_ms, _ = hold(loop, partial(send_and_read, client, sent + next_request, 2 if acks else 1))
                held_ms.append(hold_ms)
        found[f"acks={acks}"] = min(held_ms)
    with RawClient(address, ANSWER_TIMEOUT_S) as client:
        answer = client.call(
            "list_offsets",
            1,
            replica_id=-1,
            topics=[{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        )
        (offset,) = [int(part.offset) for found_topic in answer.topics for part in found_topic.partitions]
    assert offset == 3 * ATTEMPTS * APPENDED_BATCHES // PARTITIONS
    return found


def test_many_batches_do_not_hold_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(tmp_path, append_many)
    with capsys.disabled():
        print(found)
    assert max(found.values()) <= MAX_HOLD_MS


def administrative_requests(names: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yields requests that change something and have about as many elements as are allowed."""

    def first(api_key: int, elements_of_each: int) -> list[str]:
        return names[: (max_elements(api_key) - TAGGED_FIELDS) // elements_of_each]

    new = {"num_partitions": PARTITIONS_OF_MANY, "replication_factor": 1, "assignments": [], "configs": []}
    created = [{"name": name, **new} for name in first(ApiKey.CREATE_TOPICS, 1)]
    yield "create_topics", 7, {"topics": created, "timeout": 60_000}
    grown = [
        {"name": name, "count": PARTITIONS_OF_MANY + 1, "assignments": None}
        for name in first(ApiKey.CREATE_PARTITIONS, 1)
    ]
    yield "create_partitions", 3, {"topics": grown, "timeout": 60_000, "validate_only": False}
    elected = [{"topic": name, "partitions": [0]} for name in first(ApiKey.ELECT_LEADERS, 2)]
    yield "elect_leaders", 2, {"election_type": 0, "topic_partitions": elected, "timeout": 60_000}
    yield "elect_leaders", 2, {"election_type": 0, "topic_partitions": None, "timeout": 60_000}
    moved = [
        {"name": name, "partitions": [{"partition_index": 0, "replicas": [1]}]}
        for name in first(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 3)
    ]
    yield "alter_partition_reassignments", 0, {"timeout": 60_000, "topics": moved}
    changed = [
        {
            "resource_type": 2,
            "resource_name": name,
            "configs": [{"name": "retention.ms", "config_operation": 0, "value": str(1_000_000 + number)}],
        }
        for number, name in enumerate(first(ApiKey.INCREMENTAL_ALTER_CONFIGS, 2))
    ]
    yield "incremental_alter_configs", 1, {"resources": changed, "validate_only": False}
    described = [
        {"resource_type": 2, "resource_name": name, "configuration_keys": None}
        for name in first(ApiKey.DESCRIBE_CONFIGS, 1)
    ]
    shown = {"include_synonyms": True, "include_documentation": True}
    yield "describe_configs", 4, {"resources": described, **shown}
    deleted = [{"name": name, "topic_id": uuid.UUID(int=0)} for name in first(ApiKey.DELETE_TOPICS, 1)]
    yield "delete_topics", 6, {"topics": deleted, "timeout": 60_000}


def administer(address: str, loop: MeasuredLoop) -> dict[str, float]:
    """Returns the longest hold in ms of each administrative request, with its reaction in all services."""
    found = {}
    # A collection of the garbage of 15,000 partitions lasts longer than any of these requests.
    gc.disable()
    try:
        with RawClient(address, ANSWER_TIMEOUT_S * 5) as client:
            for api, version, fields in administrative_requests([f"t{n}" for n in range(MANY_TOPICS)]):
                hold_ms, answer = hold(loop, partial(client.call, api, version, **fields), REST_S)
                found[f"{api} {fields.get('topic_partitions') and 'some'}"] = hold_ms
                assert not any(item.error_code for item in getattr(answer, "topics", ())), api
    finally:
        gc.enable()
    return found


def test_requests_of_administrators_do_not_hold_the_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    least: dict[str, float] = {}
    for number in range(CLUSTERS):
        directory = tmp_path / str(number)
        directory.mkdir()
        for request, hold_ms in measured(directory, administer).items():
            least[request] = min(hold_ms, least.get(request, hold_ms))
        with capsys.disabled():
            print(least)
        if max(least.values()) <= MAX_HOLD_MS:
            break
    assert max(least.values()) <= MAX_HOLD_MS


def test_no_request_holds_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(tmp_path, attack)
    with capsys.disabled():
        for api, (hold_ms, title, outcome) in sorted(found.items(), key=lambda row: -row[1][0]):
            print(f"{hold_ms:8.1f} ms  {api:32} {title:40} {outcome}")
    slow = {api: row for api, row in found.items() if row[0] > MAX_HOLD_MS}
    assert not slow
