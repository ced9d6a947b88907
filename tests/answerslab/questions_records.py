"""Requests for records, offsets and metadata of topics."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from answerslab.question import (
    CUT,
    FAR,
    MISSING,
    OTHER,
    TOPIC,
    UNKNOWN_TRANSACTION,
    Case,
    Cases,
    Fields,
    Scene,
    batch,
)
from tidelog.wire.api_keys import ApiKey

Maker = Callable[[Scene], Fields]


def _produce(name: str = TOPIC, index: int = 0, records: Callable[[], Any] = batch, **fields: Any) -> Maker:
    def make(scene: Scene) -> Fields:
        part = [{"index": index, "records": records()}]
        data = [{"name": name, "topic_id": scene.id_of(name), "partition_data": part}]
        return {"acks": -1, "timeout_ms": 5000, "topic_data": data, **fields}

    return make


def _corrupt() -> memoryview:
    data = bytearray(batch())
    data[-1] ^= 1
    return memoryview(data)


def _two_batches() -> memoryview:
    return memoryview(bytes(batch()) + bytes(batch()))


def _fetch(name: str = OTHER, partition: int = 0, of_fetch: Fields | None = None, **fields: Any) -> Maker:
    def make(scene: Scene) -> Fields:
        part = [{"partition": partition, "partition_max_bytes": 10_000, **fields}]
        topics = [{"topic": name, "topic_id": scene.id_of(name), "partitions": part}]
        return {"max_wait_ms": 0, "max_bytes": 10_000, "topics": topics, **(of_fetch or {})}

    return make


def _positions(
    name: str = OTHER, partition: int = 0, of_request: Fields | None = None, **fields: Any
) -> Fields:
    part = [{"partition_index": partition, "timestamp": -1, **fields}]
    return {"replica_id": -1, "topics": [{"name": name, "partitions": part}], **(of_request or {})}


def _metadata(*names: str, **fields: Any) -> Fields:
    topics = [{"name": name} for name in names]
    return {"topics": topics, "allow_auto_topic_creation": False, **fields}


def _metadata_by_id(topic: str, name: str | None = None) -> Maker:
    return lambda scene: {
        "topics": [{"topic_id": scene.id_of(topic), "name": name}],
        "allow_auto_topic_creation": False,
    }


def _records(name: str, partition: int = 0, offset: int = 0) -> Fields:
    part = [{"partition_index": partition, "offset": offset}]
    return {"topics": [{"name": name, "partitions": part}], "timeout_ms": 5000}


def _epoch(name: str = OTHER, partition: int = 0, current: int = -1, epoch: int = 0) -> Fields:
    part = [{"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}]
    return {"replica_id": -1, "topics": [{"topic": name, "partitions": part}]}


CASES: Cases = {
    ApiKey.PRODUCE: (
        Case("valid", _produce(), 3),
        Case("unknown topic", _produce(MISSING), 3),
        Case("unknown partition", _produce(index=9), 3),
        Case("negative partition", _produce(index=-1), 3),
        Case("acks that do not exist", _produce(acks=5), 3),
        Case("acks of the leader", _produce(acks=1), 3),
        Case("wrong checksum", _produce(records=_corrupt), 3),
        Case("no records", _produce(records=lambda: memoryview(b"")), 3),
        Case("null records", _produce(records=lambda: None), 3),
        Case("half a batch", _produce(records=lambda: batch()[:40]), 3),
        Case("two batches", _produce(records=_two_batches), 3),
        Case(
            "sequence numbers begin in the middle",
            _produce(records=lambda: batch(producer_id=555_555, producer_epoch=0, base_sequence=9)),
            3,
        ),
        Case(
            "stale producer epoch",
            _produce(CUT, records=lambda: batch(producer_id=444_444, producer_epoch=1, base_sequence=0)),
            3,
        ),
        Case(
            "transactional batch without a transaction",
            _produce(
                records=lambda: batch(
                    producer_id=555_556, producer_epoch=0, base_sequence=0, is_transactional=True
                ),
                transactional_id=UNKNOWN_TRANSACTION,
            ),
            3,
        ),
        Case("no topics", {"acks": -1, "timeout_ms": 5000, "topic_data": []}, 3),
    ),
    ApiKey.FETCH: (
        Case("valid", _fetch()),
        Case("unknown topic", _fetch(MISSING)),
        Case("unknown partition", _fetch(partition=9)),
        Case("leader epoch that is not known yet", _fetch(current_leader_epoch=FAR), 9),
        Case("the current leader epoch", _fetch(current_leader_epoch=0), 9),
        Case("offset beyond the end", _fetch(fetch_offset=1_000)),
        Case("negative offset", _fetch(fetch_offset=-3)),
        Case("last fetched epoch", _fetch(last_fetched_epoch=0), 12),
        Case("last fetched epoch that is not known yet", _fetch(last_fetched_epoch=FAR), 12),
        Case("unknown session", _fetch(of_fetch={"session_id": 4711, "session_epoch": 3}), 7),
        Case("session that ends", _fetch(of_fetch={"session_id": 4711, "session_epoch": -1}), 7),
        Case("read committed", _fetch(of_fetch={"isolation_level": 1})),
        Case("isolation level that does not exist", _fetch(of_fetch={"isolation_level": 9})),
        Case("no topics", {"max_wait_ms": 0, "topics": []}),
    ),
    ApiKey.LIST_OFFSETS: (
        Case("valid", _positions()),
        Case("earliest", _positions(timestamp=-2)),
        Case("greatest timestamp", _positions(timestamp=-3, partition=0), 7),
        Case("earliest local", _positions(timestamp=-4), 8),
        Case("latest tiered", _positions(timestamp=-5), 9),
        Case("earliest pending upload", _positions(timestamp=-6), 11),
        Case("special timestamp that does not exist", _positions(timestamp=-9)),
        Case("greatest timestamp before it exists", _positions(timestamp=-3), 1, 6),
        Case("by time", _positions(timestamp=1)),
        Case("in the future", _positions(timestamp=2**60)),
        Case("unknown topic", _positions(MISSING)),
        Case("unknown partition", _positions(partition=9)),
        Case("leader epoch that is not known yet", _positions(current_leader_epoch=FAR), 4),
        Case("the current leader epoch", _positions(current_leader_epoch=0), 4),
        Case("read committed", _positions(of_request={"isolation_level": 1}), 2),
        Case("isolation level that does not exist", _positions(of_request={"isolation_level": 9}), 2),
        Case(
            "a partition twice",
            {
                "replica_id": -1,
                "topics": [{"name": OTHER, "partitions": [{"timestamp": -1}, {"timestamp": -2}]}],
            },
        ),
        Case("no topics", {"replica_id": -1, "topics": []}),
    ),
    ApiKey.METADATA: (
        Case("valid", _metadata(OTHER)),
        Case("unknown topic", _metadata(MISSING)),
        Case("invalid name", _metadata("not a name!")),
        Case("empty name", _metadata("")),
        Case("by id", _metadata_by_id(OTHER), 12),
        Case("by id with an empty name", _metadata_by_id(OTHER, ""), 12),
        Case("by id with the name", _metadata_by_id(OTHER, OTHER), 12),
        Case("by id before version 12", _metadata_by_id(OTHER), 10, 11),
        Case("unknown id", _metadata_by_id(MISSING), 12),
        Case("null name without id", {"topics": [{"topic_id": uuid.UUID(int=0), "name": None}]}, 10),
        Case("a topic twice", _metadata(OTHER, OTHER)),
        Case("operations on topics", _metadata(OTHER, include_topic_authorized_operations=True), 8),
        Case("cluster", _metadata(OTHER, include_cluster_authorized_operations=True), 8, 10),
        Case("no topics", _metadata(), 1),
    ),
    ApiKey.DELETE_RECORDS: (
        Case("valid", _records(CUT)),
        Case("unknown topic", _records(MISSING)),
        Case("unknown partition", _records(CUT, 9)),
        Case("offset beyond the end", _records(CUT, 0, 1_000_000)),
        Case("to the high watermark", _records(CUT, 0, -1)),
        Case("negative offset", _records(CUT, 0, -2)),
        Case("internal topic", _records("__consumer_offsets")),
        Case("no topics", {"topics": [], "timeout_ms": 5000}),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Case("valid", _epoch()),
        Case("epoch that is not known yet", _epoch(epoch=5)),
        Case("negative epoch", _epoch(epoch=-1)),
        Case("leader epoch that is not known yet", _epoch(current=FAR)),
        Case("unknown topic", _epoch(MISSING)),
        Case("unknown partition", _epoch(partition=9)),
        Case("no topics", {"replica_id": -1, "topics": []}),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (
        Case("valid", {"topics": [{"name": OTHER, "partition_indexes": [0]}]}),
        Case("unknown topic", {"topics": [{"name": MISSING, "partition_indexes": [0]}]}),
        Case("unknown partition", {"topics": [{"name": OTHER, "partition_indexes": [9]}]}),
        Case("invalid name", {"topics": [{"name": "not a name!", "partition_indexes": [0]}]}),
        Case("no topics", {"topics": []}),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        Case("valid", {"topics": [{"name": OTHER}]}),
        Case("unknown topic", {"topics": [{"name": MISSING}]}),
        Case("invalid name", {"topics": [{"name": "not a name!"}]}),
        Case("a topic twice", {"topics": [{"name": OTHER}, {"name": OTHER}]}),
        Case("limit of zero", {"topics": [{"name": OTHER}], "response_partition_limit": 0}),
        Case("limit of one", {"topics": [{"name": OTHER}, {"name": TOPIC}], "response_partition_limit": 1}),
        Case(
            "cursor behind the topic",
            {"topics": [{"name": OTHER}], "cursor": {"topic_name": "z", "partition_index": 0}},
        ),
        Case(
            "cursor with a negative partition",
            {"topics": [{"name": OTHER}], "cursor": {"topic_name": OTHER, "partition_index": -1}},
        ),
    ),
}
