"""Runs one case of clients of groups and transactions in a process: `coordinated_cases.py '{"case": ...}'`.

A minimal client (tidelog's codec, one asyncio loop) drives the groups, so that the coordinator is measured
and not the start of fifty clients. librdkafka drives the transactions. Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from tidelog.model.errors import ErrorCode
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import decode_response_header, encode_request_header
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

FIND_COORDINATOR, JOIN, SYNC, HEARTBEAT, COMMIT = (4, 7, 5, 4, 8)  # versions of the requests
COORDINATOR_LIMIT_S = 60.0
RETRY_S = 0.1
HEARTBEAT_S = 0.1
COMMITS_IN_FLIGHT = 5
"""The unanswered commits of one client, as of a Java consumer with commitAsync."""
TRANSACTION_LIMIT_S = 60
_SIZE = struct.Struct(">i")
RETRIABLE = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


class Connection:
    """A connection on which a request need not wait for the previous response."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._correlation_id = 0
        self._waiting: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        return cls(*await asyncio.open_connection(host, port, limit=1 << 24))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                answer = await reader.readexactly(_SIZE.unpack(await reader.readexactly(4))[0])
                (correlation_id,) = _SIZE.unpack_from(answer)
                key, version, future = self._waiting.pop(correlation_id)
                _, body = decode_response_header(answer, 0, key, version)
                if not future.done():
                    future.set_result(codec.response_decoder(key, version)(answer, body)[0])
        except (asyncio.IncompleteReadError, OSError) as error:
            for _, _, future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionError(f"the broker is gone: {error}"))

    def ask(self, key: int, version: int, request: Any) -> asyncio.Future[Any]:
        self._correlation_id += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._correlation_id] = key, version, future
        payload = encode_request_header(key, version, self._correlation_id, "bench") + b"".join(
            map(bytes, codec.request_encoder(key, version)(request))
        )
        self.writer.write(_SIZE.pack(len(payload)) + payload)
        return future

    async def close(self) -> None:
        self._reading.cancel()
        self.writer.close()


async def connect(bootstrap: str, group_ids: list[str]) -> dict[str, Connection]:
    """Opens a connection to each group's coordinator, once there is one."""
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    asked = await Connection.open(host, int(port))
    found: dict[str, Connection] = {}
    began = time.perf_counter()
    while len(found) < len(group_ids):
        missing = [group_id for group_id in group_ids if group_id not in found]
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=missing)
        answer = await asked.ask(ApiKey.FIND_COORDINATOR, FIND_COORDINATOR, request)
        for place in answer.coordinators:
            if not place.error_code:
                found[place.key] = await Connection.open(place.host, place.port)
        if time.perf_counter() - began > COORDINATOR_LIMIT_S:
            raise TimeoutError(f"{len(missing)} groups have no coordinator")
        if len(found) < len(group_ids):
            await asyncio.sleep(RETRY_S)
    await asked.close()
    return found


class Member:
    """A member of a classic group, which takes part in every rebalance. `generation_id` is that of its last
    assignment.
    """

    def __init__(self, connection: Connection, group_id: str) -> None:
        self._connection = connection
        self._group_id = group_id
        self._member_id = ""
        self.generation_id = -1
        self.stable_at = 0.0

    async def run(self) -> None:
        while True:
            await self._join()
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                request = HeartbeatRequest(self._group_id, self.generation_id, self._member_id)
                answer = await self._connection.ask(ApiKey.HEARTBEAT, HEARTBEAT, request)
                if answer.error_code:
                    break

    async def _join(self) -> None:
        protocol = JoinGroupRequestProtocol("range", b"\0\1" + bytes(40))
        while True:
            request = JoinGroupRequest(
                self._group_id, 30_000, 30_000, self._member_id, None, "consumer", [protocol]
            )
            joined = await self._connection.ask(ApiKey.JOIN_GROUP, JOIN, request)
            self._member_id = joined.member_id or self._member_id
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue
            if joined.error_code:
                await self._pause(joined.error_code)
                continue
            assignments = [
                SyncGroupRequestAssignment(member.member_id, bytes(60)) for member in joined.members
            ]
            sync = SyncGroupRequest(
                self._group_id, joined.generation_id, self._member_id, None, "consumer", "range", assignments
            )
            synced = await self._connection.ask(ApiKey.SYNC_GROUP, SYNC, sync)
            if not synced.error_code:
                self.generation_id, self.stable_at = joined.generation_id, time.perf_counter()
                return
            if synced.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                await self._pause(synced.error_code)

    async def _pause(self, error_code: int) -> None:
        if error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        await asyncio.sleep(RETRY_S if error_code in RETRIABLE else 0)


async def _rebalance(bootstrap: str, members: int, rounds: int) -> dict[str, float]:
    first_s, again_s = [], []
    for _ in range(rounds):
        group_id = f"bench-{uuid.uuid4().hex}"
        place = (await connect(bootstrap, [group_id]))[group_id]
        host, port = place.writer.get_extra_info("peername")[:2]
        connections = [place] + [await Connection.open(host, port) for _ in range(members)]
        everyone = [Member(connection, group_id) for connection in connections[:members]]
        began = time.perf_counter()
        tasks = [asyncio.create_task(member.run()) for member in everyone]
        first_s.append(await _stable(everyone, tasks, began))
        late = Member(connections[members], group_id)
        everyone.append(late)
        began = time.perf_counter()
        tasks.append(asyncio.create_task(late.run()))
        again_s.append(await _stable(everyone, tasks, began))
        for task in tasks:
            task.cancel()
        for connection in connections:
            await connection.close()
    return {
        "bytes": 1,
        "seconds": sum(first_s) + sum(again_s),
        "first_s": sorted(first_s)[rounds // 2],
        "again_s": sorted(again_s)[rounds // 2],
    }


async def _stable(members: list[Member], tasks: list[asyncio.Task[None]], began: float) -> float:
    """Returns the seconds from `began` until all members have an assignment of the same generation."""
    while True:
        await asyncio.sleep(0.01)
        for task in tasks:
            if task.done():
                task.result()
        generations = {member.generation_id for member in members}
        if (
            len(generations) == 1
            and -1 not in generations
            and min(member.stable_at for member in members) > began
        ):
            return max(member.stable_at for member in members) - began
        if time.perf_counter() - began > COORDINATOR_LIMIT_S:
            raise TimeoutError(f"generations {sorted(generations)} after {COORDINATOR_LIMIT_S} s")


def rebalance(bootstrap: str, topic: str, members: int, rounds: int) -> dict[str, float]:
    """Forms a group, then adds one member, and returns the seconds until all members have an assignment."""
    return asyncio.run(_rebalance(bootstrap, members, rounds))


def _commit(group_id: str, topic: str, partitions: int, offset: int) -> OffsetCommitRequest:
    rows = [OffsetCommitRequestPartition(index, offset, -1, "") for index in range(partitions)]
    return OffsetCommitRequest(group_id, topics=[OffsetCommitRequestTopic(topic, partitions=rows)])


async def _commit_all(
    connection: Connection, group_id: str, topic: str, partitions: int, end: float | None
) -> int:
    """Commits until `end`, or once if it is None, and returns the number of acknowledged commits."""
    count = 0
    while True:
        request = _commit(group_id, topic, partitions, count)
        answer = await connection.ask(ApiKey.OFFSET_COMMIT, COMMIT, request)
        codes = {row.error_code for found in answer.topics for row in found.partitions}
        if codes & RETRIABLE:
            await asyncio.sleep(RETRY_S)
        elif codes != {0}:
            raise RuntimeError(f"commit of {group_id}: error codes {sorted(codes)}")
        else:
            count += 1
            if end is None:
                return count
        if end is not None and time.perf_counter() > end:
            return count


async def _commits(bootstrap: str, topic: str, groups: int, seconds: float) -> dict[str, float]:
    group_ids = [f"bench-{uuid.uuid4().hex}" for _ in range(groups)]
    connections = await connect(bootstrap, group_ids)
    await asyncio.gather(*(_commit_all(connections[g], g, topic, 1, None) for g in group_ids))
    in_flight = COMMITS_IN_FLIGHT if groups == 1 else 1
    began = time.perf_counter()
    counts = await asyncio.gather(
        *(
            _commit_all(connections[g], g, topic, 1, began + seconds)
            for g in group_ids
            for _ in range(in_flight)
        )
    )
    elapsed = time.perf_counter() - began
    for connection in connections.values():
        await connection.close()
    return {"bytes": sum(counts), "seconds": elapsed, "per_s": sum(counts) / elapsed}


def commits(bootstrap: str, topic: str, groups: int, seconds: float) -> dict[str, float]:
    """Commits offsets of one partition, for one group with a few commits in flight or many with one each."""
    return asyncio.run(_commits(bootstrap, topic, groups, seconds))


async def _many_groups(bootstrap: str, topic: str, groups: int, partitions: int) -> dict[str, float]:
    group_ids = [f"bench-{uuid.uuid4().hex}" for _ in range(groups)]
    began = time.perf_counter()
    for at in range(0, groups, 50):
        part = group_ids[at : at + 50]
        connections = await connect(bootstrap, part)
        await asyncio.gather(*(_commit_all(connections[g], g, topic, partitions, None) for g in part))
        for connection in connections.values():
            await connection.close()
    return {"bytes": groups * partitions, "seconds": time.perf_counter() - began}


def many_groups(bootstrap: str, topic: str, groups: int, partitions: int) -> dict[str, float]:
    """Commits offsets once for each group. The caller measures the memory that the groups take."""
    return asyncio.run(_many_groups(bootstrap, topic, groups, partitions))


def transactions(
    bootstrap: str, topic: str, producers: int, messages: int, size: int, seconds: float
) -> dict[str, float]:
    """Runs transactions of `messages` messages each; each producer runs one after the other."""
    counts = [0] * producers
    failed: list[Exception] = []
    start = threading.Barrier(producers + 1)
    value = b"x" * size

    def one(number: int) -> None:
        try:
            producer = Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "transactional.id": f"bench-{uuid.uuid4().hex}",
                    "linger.ms": 0 if messages == 1 else 5,
                    "batch.num.messages": 100_000,
                }
            )
            producer.init_transactions(TRANSACTION_LIMIT_S)
            _transaction(producer)
            start.wait(TRANSACTION_LIMIT_S)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                _transaction(producer)
                counts[number] += 1
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            failed.append(error)
            start.abort()

    def _transaction(producer: Producer) -> None:
        producer.begin_transaction()
        for _ in range(messages):
            producer.produce(topic, value)
        producer.commit_transaction(TRANSACTION_LIMIT_S)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    try:
        start.wait(TRANSACTION_LIMIT_S)
    except threading.BrokenBarrierError:
        raise RuntimeError(f"a producer failed: {failed}") from None
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    if failed:
        raise RuntimeError(f"a producer failed: {failed}")
    size_bytes = sum(counts) * messages * size
    return {
        "bytes": size_bytes,
        "seconds": elapsed,
        "per_s": sum(counts) / elapsed,
        "mb_per_s": size_bytes / elapsed / 1e6,
    }


CASES: dict[str, Callable[..., dict[str, float]]] = {
    "rebalance": rebalance,
    "commits": commits,
    "many_groups": many_groups,
    "transactions": transactions,
}


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    print(json.dumps(CASES[arguments.pop("case")](**arguments)))
