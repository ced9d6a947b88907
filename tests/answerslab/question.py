"""The form of the questions in `questions_*.py`, and the things that their requests name."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from answerslab.client import Client
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import add_partitions_to_txn, init_producer_id, offset_commit

TOPIC, OTHER, CUT, MISSING = "answers-t", "answers-u", "answers-cut", "answers-none"
GROUP = "answers-group"
TRANSACTION, UNKNOWN_TRANSACTION = "answers-transaction", "answers-unknown"
UNKNOWN_ID = uuid.UUID(int=77)
MANY_MS = 300_000
FAR = 7
"""An epoch that no leader has had yet."""

Fields: TypeAlias = dict[str, Any]


@dataclass
class Scene:
    """The things that a request may name. `tag` is unique, for things that the request creates."""

    client: Client
    topic_ids: Mapping[str, uuid.UUID]
    broker_id: int
    log_dir: str
    version: int = 0
    tag: str = ""
    wait_s: float = field(default=15.0)

    def id_of(self, topic: str) -> uuid.UUID:
        """Returns the id of a topic that exists, or another id."""
        return self.topic_ids.get(topic, UNKNOWN_ID)

    def producer(self, transactional_id: str) -> tuple[int, int]:
        """Returns the producer id and epoch of a transactional id, which a new producer takes over."""
        deadline = time.monotonic() + self.wait_s
        while True:
            request = init_producer_id.InitProducerIdRequest(transactional_id, MANY_MS)
            response = self.client.call(request, 4)
            if not response.error_code:
                return response.producer_id, response.producer_epoch
            assert time.monotonic() < deadline, f"no producer id for {transactional_id}: {response}"
            time.sleep(0.1)

    def begin(self, transactional_id: str) -> tuple[int, int]:
        """Begins a transaction with one partition. Returns the producer id and epoch."""
        producer_id, epoch = self.producer(transactional_id)
        topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(TOPIC, [0])]
        request = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )
        results = self.client.call(request, 3).results_by_topic_v3_and_below
        assert not results[0].results_by_partition[0].partition_error_code, results
        return producer_id, epoch

    def commit(self, group: str) -> None:
        """Commits an offset, so that the group exists."""
        part = [offset_commit.OffsetCommitRequestPartition(0, 5)]
        topics = [offset_commit.OffsetCommitRequestTopic(TOPIC, partitions=part)]
        response = self.client.call(offset_commit.OffsetCommitRequest(group, topics=topics), 8)
        assert not response.topics[0].partitions[0].error_code, response


class Case(NamedTuple):
    """A request of an API in the versions from `first` to `last`. `fields` are its fields, or make them."""

    name: str
    fields: Fields | Callable[[Scene], Fields]
    first: int = 0
    last: int = 99


Cases: TypeAlias = Mapping[ApiKey, tuple[Case, ...]]
"""The first case of an API is a valid request, from which the malformed ones are derived."""


def batch(after_ms: int = 0, **fields: Any) -> memoryview:
    """Returns a batch of one record, whose timestamp is this long after now."""
    timestamp = int(time.time() * 1000) + after_ms
    return memoryview(build_batch([Record(0, timestamp, None, b"x", [])], **fields))
