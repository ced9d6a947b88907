"""Runs one case of share consumers in a process: `share_cases.py '{"case": ...}'`.

A lean client (tidelog's codec, one selector for all connections) sends the requests of share consumers, so
that 64 consumers on one machine leave the broker its CPU. Each member joins the group as a client does, and
has a connection of its own to the leader of the partition. Prints one line of JSON.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import struct
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from clusterlab.processes import cpu_s
from tidelog.client.address import Address, parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.codec import request_encoder, response_decoder
from tidelog.wire.headers import decode_response_header, encode_request_header
from tidelog.wire.messages import (
    find_coordinator,
    incremental_alter_configs,
    metadata,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

VERSION = 2
"""The version of ShareFetch and ShareAcknowledge that Kafka 4.3 and tidelog serve."""
GROUP_RESOURCE, SET = 32, 0
ACCEPT, RELEASE = 1, 2
MAX_RECORDS = 500
"""The default of `max.poll.records`."""
MAX_WAIT_MS = 500
MAX_BYTES = 50 * 1024 * 1024
PRODUCED_AT_ONCE = 20
"""The unanswered Produce requests while a topic is filled."""
BATCHES_IN_A_REQUEST = 8
JOIN_LIMIT_S, CASE_LIMIT_S = 60.0, 120.0
JOIN_PAUSE_S = 0.05
WARM_UP_S = 0.5
RELEASE_EVERY_S = 0.01
"""The time between two releases of one record, among all consumers of a case."""
RELEASES_S = 2.0
FIRST_BUFFER_BYTES = 256 * 1024
_SIZE = struct.Struct(">i")


def call(address: Address, request: Any, response: Any) -> Any:
    with BrokerConnection.open(address) as connection:
        return connection.call(request, response)


class Place:
    """The partition 0 of a topic, and the brokers that serve it and the group."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.group = group
        self.topic = topic
        self.first = parse_bootstrap(bootstrap)[0]
        request = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=topic)])
        answer = call(self.first, request, metadata.MetadataResponse)
        (found,) = answer.topics
        self.topic_id = found.topic_id
        leader = found.partitions[0].leader_id
        (self.leader,) = [Address(b.host, b.port) for b in answer.brokers if b.node_id == leader]

    def join(self, members: list[str]) -> None:
        """Makes the group begin with the first record, and lets the members join it."""
        config = incremental_alter_configs.AlterableConfig("share.auto.offset.reset", SET, "earliest")
        resource_ = incremental_alter_configs.AlterConfigsResource(GROUP_RESOURCE, self.group, [config])
        answer = call(
            self.first,
            incremental_alter_configs.IncrementalAlterConfigsRequest([resource_]),
            incremental_alter_configs.IncrementalAlterConfigsResponse,
        )
        if answer.responses[0].error_code:
            raise RuntimeError(f"the group's settings: {answer.responses[0]}")
        deadline_s = time.monotonic() + JOIN_LIMIT_S
        with BrokerConnection.open(self._coordinator(deadline_s)) as coordinator:
            epochs = dict.fromkeys(members, 0)
            waiting = set(members)
            while waiting:
                for member in sorted(waiting):
                    answer = self._beat(coordinator, member, epochs[member])
                    if not answer.error_code:
                        epochs[member] = answer.member_epoch
                        if answer.assignment is not None and answer.assignment.topic_partitions:
                            waiting.discard(member)
                if waiting and time.monotonic() > deadline_s:
                    raise TimeoutError(f"{len(waiting)} members have no partition: {answer}")
                time.sleep(JOIN_PAUSE_S if waiting else 0)

    def leave(self, members: list[str]) -> None:
        with BrokerConnection.open(self._coordinator(time.monotonic() + JOIN_LIMIT_S)) as coordinator:
            for member in members:
                self._beat(coordinator, member, -1)

    def _coordinator(self, deadline_s: float) -> Address:
        request = find_coordinator.FindCoordinatorRequest(coordinator_keys=[self.group])
        while True:
            answer = call(self.first, request, find_coordinator.FindCoordinatorResponse)
            found = answer.coordinators[0]
            if not found.error_code:
                return Address(found.host, found.port)
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the group has no coordinator: {found}")
            time.sleep(JOIN_PAUSE_S)

    def _beat(self, coordinator: BrokerConnection, member: str, epoch: int) -> Any:
        topics = [self.topic] if epoch == 0 else None
        request = share_group_heartbeat.ShareGroupHeartbeatRequest(self.group, member, epoch, None, topics)
        return coordinator.call(request, share_group_heartbeat.ShareGroupHeartbeatResponse)


def produce(connection: BrokerConnection, topic: str, batches: list[bytes]) -> None:
    """Sends batches to partition 0, several requests at a time."""
    waiting = []
    for begin in range(0, len(batches), BATCHES_IN_A_REQUEST):
        # Kafka accepts one batch of a partition in each request.
        for batch in batches[begin : begin + BATCHES_IN_A_REQUEST]:
            data = PartitionProduceData(0, memoryview(batch))
            request = ProduceRequest(None, -1, 30_000, [TopicProduceData(name=topic, partition_data=[data])])
            waiting.append(connection.send(request, at_most=12))
        while len(waiting) > PRODUCED_AT_ONCE:
            _check_produced(connection.receive(waiting.pop(0), ProduceResponse))
    for pending in waiting:
        _check_produced(connection.receive(pending, ProduceResponse))


def _check_produced(answer: ProduceResponse) -> None:
    error = answer.responses[0].partition_responses[0].error_code
    if error:
        raise RuntimeError(f"a record was not appended: {ErrorCode(error).name}")


def batch_of(count: int, size: int) -> bytes:
    now_ms = int(time.time() * 1000)
    return bytes(build_batch([Record(at, now_ms, None, b"x" * size, ()) for at in range(count)]))


class Consumer:
    """A member's connection to the leader. One request is in progress at a time."""

    def __init__(self, place: Place, member: str, selector: selectors.BaseSelector) -> None:
        self._place = place
        self._member = member
        self._socket = socket.create_connection((place.leader.host, place.leader.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(FIRST_BUFFER_BYTES)
        self._filled = 0
        self._epoch = 0
        self._sent_key = 0
        self._encoders = {
            key: request_encoder(key, VERSION)
            for key in (
                share_fetch.ShareFetchRequest.API_KEY,
                share_acknowledge.ShareAcknowledgeRequest.API_KEY,
            )
        }
        self._decoders = {key: response_decoder(key, VERSION) for key in self._encoders}
        self._header = {key: encode_request_header(key, VERSION, 1, "bench") for key in self._encoders}
        self.acknowledging: list[tuple[int, int, int]] = []
        """The first and last offsets and the types of the acknowledgements in the request in progress."""
        selector.register(self._socket, selectors.EVENT_READ, self)

    def close(self) -> None:
        self._socket.close()

    def fetch(self, accepted: list[tuple[int, int, int]], max_wait_ms: int = MAX_WAIT_MS) -> None:
        """Sends a ShareFetch with acknowledgements (first offset, last offset, type)."""
        batches = [share_fetch.AcknowledgementBatch(first, last, [kind]) for first, last, kind in accepted]
        topics = []
        if self._epoch == 0 or batches:
            topics = [share_fetch.FetchTopic(self._place.topic_id, [share_fetch.FetchPartition(0, batches)])]
        request = share_fetch.ShareFetchRequest(
            self._place.group, self._member, self._epoch, max_wait_ms, 1, MAX_BYTES, MAX_RECORDS, MAX_RECORDS,
            topics=topics,
        )  # fmt: skip
        self._send(request, accepted)

    def acknowledge(self, acknowledged: list[tuple[int, int, int]]) -> None:
        batches = [
            share_acknowledge.AcknowledgementBatch(first, last, [kind]) for first, last, kind in acknowledged
        ]
        partition = share_acknowledge.AcknowledgePartition(0, batches)
        topic = share_acknowledge.AcknowledgeTopic(self._place.topic_id, [partition])
        request = share_acknowledge.ShareAcknowledgeRequest(
            self._place.group, self._member, self._epoch, topics=[topic]
        )
        self._send(request, acknowledged)

    def _send(self, request: Any, acknowledging: list[tuple[int, int, int]]) -> None:
        key = self._sent_key = request.API_KEY
        self._epoch += 1
        self.acknowledging = acknowledging
        chunks = [self._header[key], *self._encoders[key](request)]
        self._socket.sendall(b"".join([_SIZE.pack(sum(map(len, chunks))), *chunks]))

    def received(self) -> Any:
        """Reads what has arrived. Returns the response, None if it is not complete."""
        count = self._socket.recv_into(memoryview(self._buffer)[self._filled :])
        if not count:
            raise RuntimeError("the broker closed a consumer's connection")
        self._filled += count
        if self._filled < _SIZE.size:
            return None
        size = _SIZE.unpack_from(self._buffer)[0] + _SIZE.size
        if size > len(self._buffer):
            self._buffer.extend(bytes(size - len(self._buffer)))
        if self._filled < size:
            return None
        self._filled = 0
        _, body = decode_response_header(self._buffer, _SIZE.size, self._sent_key, VERSION)
        answer = self._decoders[self._sent_key](memoryview(self._buffer)[:size], body)[0]
        if answer.error_code:
            raise RuntimeError(f"a share consumer's request failed: {answer}")
        return answer


def accepted_of(consumer: Consumer, answer: Any) -> list[tuple[int, int]]:
    """Returns the ranges that the response says are accepted."""
    for topic in answer.responses:
        for part in topic.partitions:
            fetched = isinstance(part, share_fetch.PartitionData)
            error = part.acknowledge_error_code if fetched else part.error_code
            if error:
                raise RuntimeError(f"an acknowledgement failed: {ErrorCode(error).name} {part}")
    return [(first, last) for first, last, kind in consumer.acknowledging if kind == ACCEPT]


def acquired_of(answer: Any) -> list[tuple[int, int]]:
    """Returns the ranges that a ShareFetch acquired."""
    found = []
    for topic in answer.responses:
        for part in topic.partitions:
            if part.error_code:
                raise RuntimeError(f"a fetch failed: {ErrorCode(part.error_code).name} {part.error_message}")
            found += [(acquired.first_offset, acquired.last_offset) for acquired in part.acquired_records]
    return found


def client_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class Load:
    """Consumers that accept what they get at full speed. With `releases`, one of them releases a record every
    now and then.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.requests = 0
        self.waits_ms: list[float] = []
        """The times from a release until a consumer got the record again."""
        self.ranges: list[tuple[int, int]] = []
        self.releases = False
        self._next_release_s = 0.0
        self._released_s: dict[int, float] = {}

    def answered(self, consumer: Consumer, answer: Any) -> None:
        """Counts a response, and sends the next request."""
        now_s = time.perf_counter()
        self.requests += 1
        for first, last in accepted_of(consumer, answer):
            self.accepted += last - first + 1
            self.ranges.append((first, last))
        if isinstance(answer, share_acknowledge.ShareAcknowledgeResponse):
            consumer.fetch([])
            return
        acquired = acquired_of(answer)
        if self._released_s:
            for offset in [
                o for o in self._released_s if any(first <= o <= last for first, last in acquired)
            ]:
                self.waits_ms.append((now_s - self._released_s.pop(offset)) * 1000)
        if (
            self.releases
            and now_s >= self._next_release_s
            and len(acquired)
            and acquired[0][0] < acquired[0][1]
        ):
            # The release is a request of its own, so that another consumer can get the record first.
            self._next_release_s = now_s + RELEASE_EVERY_S
            (first, last), *others = acquired
            self._released_s[first] = now_s
            consumer.acknowledge(
                [(first, first, RELEASE), (first + 1, last, ACCEPT), *((*other, ACCEPT) for other in others)]
            )
            return
        consumer.fetch([(first, last, ACCEPT) for first, last in acquired])


def run_until(
    selector: selectors.BaseSelector, answered: Callable[[Consumer, Any], None], is_over: Callable[[], bool]
) -> None:
    deadline_s = time.monotonic() + CASE_LIMIT_S
    while not is_over():
        events = selector.select(1.0)
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the case did not end in {CASE_LIMIT_S} s")
        for key, _ in events:
            answer = key.data.received()
            if answer is not None:
                answered(key.data, answer)


def throughput(
    bootstrap: str, topic: str, consumers: int, seconds: float, messages: int, pids: list[int]
) -> dict[str, float]:
    """Consumes and accepts for `seconds`, or until three quarters of the topic's `messages` are accepted.
    Then measures releases under the same load, if there is more than one consumer.
    """
    place = Place(bootstrap, topic, f"bench-{uuid.uuid4().hex[:8]}")
    members = [str(uuid.uuid4()) for _ in range(consumers)]
    place.join(members)
    load = Load()
    most = messages * 3 // 4

    def is_over(began_s: float, lasts_s: float, accepted: int = most) -> Callable[[], bool]:
        return lambda: time.perf_counter() - began_s >= lasts_s or load.accepted >= accepted

    with selectors.DefaultSelector() as selector:
        running = [Consumer(place, member, selector) for member in members]
        for consumer in running:
            consumer.fetch([])
        run_until(selector, load.answered, lambda: load.accepted > 0)
        run_until(selector, load.answered, is_over(time.perf_counter(), WARM_UP_S, most // 2))
        accepted, requests, client_s = load.accepted, load.requests, client_cpu_s()
        brokers_s, began_s = sum(map(cpu_s, pids)), time.perf_counter()
        run_until(selector, load.answered, is_over(began_s, seconds))
        elapsed_s, brokers_s = time.perf_counter() - began_s, sum(map(cpu_s, pids)) - brokers_s
        accepted, requests = load.accepted - accepted, load.requests - requests
        client_s = client_cpu_s() - client_s
        if consumers > 1:
            load.releases = True
            run_until(selector, load.answered, is_over(time.perf_counter(), RELEASES_S, messages * 9 // 10))
        for consumer in running:
            consumer.close()
    place.leave(members)
    _check_disjoint(load.ranges)
    sample = {
        "bytes": 1.0,
        "records_per_s": accepted / elapsed_s,
        "cpu_s_per_million": brokers_s / accepted * 1e6,
        "requests_per_s": requests / elapsed_s,
        "client_share": client_s / elapsed_s,
        "elapsed_s": elapsed_s,
    }
    if load.waits_ms:
        sample |= {
            "p50_ms": percentile(load.waits_ms, 50),
            "p99_ms": percentile(load.waits_ms, 99),
            "releases": len(load.waits_ms),
        }
    return sample


def _check_disjoint(ranges: list[tuple[int, int]]) -> None:
    """Raises RuntimeError if a record was accepted twice."""
    end = -1
    for first, last in sorted(ranges):
        if first <= end:
            raise RuntimeError(f"offset {first} was accepted twice")
        end = last


def release(bootstrap: str, topic: str, rounds: int, seconds: float, size: int) -> dict[str, float]:
    """Measures the time from a release by one consumer until another one, whose fetch waits, has the record.
    The topic is new. Ends after `rounds` or `seconds`.
    """
    place = Place(bootstrap, topic, f"bench-{uuid.uuid4().hex[:8]}")
    members = [str(uuid.uuid4()) for _ in range(2)]
    place.join(members)
    waits_ms: list[float] = []
    batch = batch_of(1, size)
    answers: dict[Consumer, Any] = {}
    with selectors.DefaultSelector() as selector, BrokerConnection.open(place.leader) as producer:
        one, two = (Consumer(place, member, selector) for member in members)

        def await_answer(consumer: Consumer) -> Any:
            run_until(selector, answers.__setitem__, lambda: consumer in answers)
            return answers.pop(consumer)

        def records_of(consumer: Consumer) -> list[tuple[int, int]]:
            while not (found := acquired_of(await_answer(consumer))):
                consumer.fetch([])
            return found

        over_s = time.perf_counter() + seconds
        while len(waits_ms) < rounds and time.perf_counter() < over_s:
            one.fetch([])
            produce(producer, topic, [batch])
            ((first, last),) = records_of(one)
            two.fetch([])
            began_s = time.perf_counter()
            one.acknowledge([(first, last, RELEASE)])
            taken = records_of(two)
            waits_ms.append((time.perf_counter() - began_s) * 1000)
            await_answer(one)
            two.acknowledge([(*found, ACCEPT) for found in taken])
            accepted_of(two, await_answer(two))
            one, two = two, one
        one.close()
        two.close()
    place.leave(members)
    return {
        "bytes": 1.0,
        "p50_ms": percentile(waits_ms, 50),
        "p99_ms": percentile(waits_ms, 99),
        "releases": len(waits_ms),
    }


def fill(bootstrap: str, topic: str, messages: int, size: int, batch: int) -> dict[str, float]:
    """Fills partition 0 of the topic with batches of `batch` records."""
    place = Place(bootstrap, topic, "")
    with BrokerConnection.open(place.leader) as connection:
        produce(connection, topic, [batch_of(batch, size)] * (messages // batch))
    return {"bytes": float(messages * size), "messages": float(messages)}


CASES: dict[str, Callable[..., dict[str, float]]] = {
    "share_throughput": throughput,
    "share_release": release,
    "share_fill": fill,
}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    print(json.dumps(CASES[arguments.pop("case")](**arguments)))


if __name__ == "__main__":
    main()
