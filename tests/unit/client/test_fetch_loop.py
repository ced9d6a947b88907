"""Reading: positions, skipped records and temporary failures."""

from __future__ import annotations

from typing import Any

import pytest

from brokerlab.scripted_broker import ScriptedBroker
from tidelog.client import fetch_loop
from tidelog.client.admin import READ_COMMITTED, READ_UNCOMMITTED
from tidelog.client.cluster import Cluster
from tidelog.client.errors import CorruptFetchError
from tidelog.client.fetch_loop import FetchLoop
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.builder import build_batch, build_end_transaction_batch
from tidelog.records.control import EndTransactionMarker
from tidelog.records.record import Record
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class FetchBroker(ScriptedBroker):
    """A topic `t` with one partition. `answers_left` are its next fetch responses; the last one repeats."""

    def __init__(self, *answers: PartitionData | None) -> None:
        self.answers_left = list(answers)
        super().__init__({ApiKey.METADATA: self._metadata, ApiKey.FETCH: self._fetch})

    def _metadata(self, request: Any, version: int) -> MetadataResponse:
        partitions = [MetadataResponsePartition(0, 0, 1, 0, [1], [1])]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(1, "127.0.0.1", self.port)],
            topics=[MetadataResponseTopic(0, "t", partitions=partitions)],
        )

    def _fetch(self, request: Any, version: int) -> FetchResponse | None:
        answer = self.answers_left.pop(0) if len(self.answers_left) > 1 else self.answers_left[0]
        return (
            None
            if answer is None
            else FetchResponse(responses=[FetchableTopicResponse("t", partitions=[answer])])
        )


def batch(base_offset: int, count: int, **kind: Any) -> bytes:
    rows = [Record(base_offset + i, 1, None, b"%d" % (base_offset + i)) for i in range(count)]
    return bytes(build_batch(rows, **kind))


def values(loop: FetchLoop) -> list[bytes | None]:
    return [record.value for rows in loop.poll() for record in rows.records]


def test_reading_from_the_middle_of_a_batch_to_an_incomplete_one() -> None:
    data = batch(0, 4) + batch(4, 2) + batch(6, 5)[:-3]
    with FetchBroker(PartitionData(0, 0, 11, records=data)) as broker, Cluster(broker.bootstrap) as cluster:
        loop = FetchLoop(cluster, cluster.topic("t"), {0: 2})
        assert values(loop) == [b"2", b"3", b"4", b"5"]
        assert loop.positions == {0: 6}
        (request,) = broker.requests_of(FetchRequest)
        assert request.topics[0].partitions[0].fetch_offset == 2


@pytest.mark.parametrize(("level", "expected"), [(READ_UNCOMMITTED, 5), (READ_COMMITTED, 3)])
def test_aborted_records_are_left_out_of_read_committed(level: int, expected: int) -> None:
    transaction = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    data = batch(0, 1) + batch(1, 2, **transaction)
    data += build_end_transaction_batch(
        EndTransactionMarker(False, 0), base_offset=3, timestamp_ms=1, producer_id=9, producer_epoch=0
    )
    data += batch(4, 2, **transaction)
    answer = PartitionData(0, 0, 6, 6, records=data, aborted_transactions=[AbortedTransaction(9, 1)])
    with FetchBroker(answer) as broker, Cluster(broker.bootstrap) as cluster:
        loop = FetchLoop(cluster, cluster.topic("t"), {0: 0}, isolation_level=level)
        assert len(values(loop)) == expected
        assert loop.positions == {0: 6}


def test_temporary_failures_are_retried() -> None:
    answers = (
        PartitionData(0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        None,
        PartitionData(0, 0, 1, records=batch(0, 1)),
    )
    with FetchBroker(*answers) as broker, Cluster(broker.bootstrap) as cluster:
        loop = FetchLoop(cluster, cluster.topic("t"), {0: 0})
        assert [values(loop), values(loop), values(loop)] == [[], [], [b"0"]]


def test_permanent_failures_are_raised() -> None:
    with FetchBroker(None) as broker, Cluster(broker.bootstrap, timeout_s=0.3) as cluster:
        loop = FetchLoop(cluster, cluster.topic("t"), {0: 0})
        with pytest.raises(Exception, match="closed the connection"):
            for _ in range(100):
                loop.poll()


def test_an_offset_out_of_range() -> None:
    answer = PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE)
    with FetchBroker(answer) as broker, Cluster(broker.bootstrap) as cluster:
        loop = FetchLoop(cluster, cluster.topic("t"), {0: 77})
        with pytest.raises(KafkaError, match="topic 't' partition 0 has no offset 77"):
            loop.poll()


def test_damaged_records_are_refused() -> None:
    data = bytearray(batch(0, 4))
    data[-1] ^= 1
    with (
        FetchBroker(PartitionData(0, 0, 4, records=bytes(data))) as broker,
        Cluster(broker.bootstrap) as cluster,
    ):
        loop = FetchLoop(cluster, cluster.topic("t"), {0: 0})
        with pytest.raises(CorruptFetchError, match=r"partition 0 near offset 0: .* has a wrong CRC"):
            loop.poll()
        assert loop.positions == {0: 0}


def test_records_that_need_much_memory_come_in_several_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_loop, "MAX_DECODED_BYTES", 1_000)
    answer = PartitionData(0, 0, 13, records=batch(0, 10) + batch(10, 3))
    with FetchBroker(answer) as broker, Cluster(broker.bootstrap) as cluster:
        loop = FetchLoop(cluster, cluster.topic("t"), {0: 0})
        polls = [[record.offset for record in loop.poll()[0].records] for _ in range(4)]
    assert polls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12]]


@pytest.mark.parametrize(("limit", "kept"), [(None, 3), (0, 0), (2, 2)])
def test_a_reader_gets_the_headers_that_it_wants(limit: int | None, kept: int) -> None:
    rows = [Record(0, 1, None, b"x", (("a", b"1"), ("b", None), ("c", b"3")))]
    answer = PartitionData(0, 0, 1, records=bytes(build_batch(rows)))
    with FetchBroker(answer) as broker, Cluster(broker.bootstrap) as cluster:
        loop = FetchLoop(cluster, cluster.topic("t"), {0: 0}, max_headers=limit)
        (record,) = loop.poll()[0].records
    assert record.headers == rows[0].headers[:kept]
    assert record.omitted_headers == 3 - kept
