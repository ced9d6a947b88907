"""A data directory of Apache Kafka is read while Kafka runs, and after its SIGKILL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from brokerlab.clients import consume_messages, create_topic, new_producer, produce_values
from brokerlab.kafka_jars import PEER, KafkaUnavailableError, PeerKafka, find_jars
from tidelog.pipeline.segments.log_files import READ_UNCOMMITTED, PartitionLog
from tidelog.pipeline.segments.slices import SegmentPlanner, SliceReader
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.records.columns.rows import RowBounds

pytestmark = [
    pytest.mark.java,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("java-tools"),
]
CHECKPOINT_TIMEOUT_S = 60.0
RECORDS = 2000
END = RECORDS + 22
"""Two transactions of ten records and their markers."""
STABLE = END
OPEN = 10


class Written(NamedTuple):
    committed: list[tuple[int, bytes]]
    while_it_ran: PartitionLog
    directory: Path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    try:
        find_jars()
    except KafkaUnavailableError as error:
        pytest.skip(str(error))
    if not (PEER / "kafka-up.sh").exists():
        pytest.skip("shared/peer is not beside the checkout")
    kafka = PeerKafka(tmp_path_factory.mktemp("peer"), "segments")
    kafka.start()
    try:
        create_topic(kafka.bootstrap, "t", 1, {"segment.bytes": "1048576"})
        values = [b"%06d" % number + bytes(900) for number in range(RECORDS)]
        produce_values(kafka.bootstrap, "t", values, compression_type="none", batch_num_messages=25)
        for commits in (True, False, None):
            producer = new_producer(kafka.bootstrap, transactional_id=f"x-{commits}")
            producer.init_transactions(30)
            producer.begin_transaction()
            for number in range(10):
                producer.produce("t", b"in transaction %d" % number, partition=0)
            producer.flush(30)
            if commits is not None:  # the last transaction stays open
                (producer.commit_transaction if commits else producer.abort_transaction)(30)
        messages = consume_messages(kafka.bootstrap, "t", RECORDS + 10, isolation_level="read_committed")
        running = wait_for_checkpoint(kafka.data_dir, END + OPEN)
        kafka.kill()
        yield Written([(m.offset(), m.value()) for m in messages], running, kafka.data_dir)
    finally:
        kafka.stop()


def wait_for_checkpoint(directory: Path, high_watermark: int) -> PartitionLog:
    deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S
    while time.monotonic() < deadline:
        [log] = visible_logs(Storage(), [str(directory)], ["t"], unknown_is_empty=True)
        if log.high_watermark >= high_watermark:
            return log
        time.sleep(0.2)
    raise AssertionError(f"visible to {log.high_watermark} only")


def test_ends_and_aborted_transactions_are_found_in_a_running_and_a_killed_broker(written: Written) -> None:
    [killed] = visible_logs(Storage(), [str(written.directory)])
    for log in (written.while_it_ran, killed):
        assert (log.high_watermark, log.last_stable_offset) == (END + OPEN, STABLE)
        assert [(one.first_offset, one.last_offset) for one in log.aborted] == [(END - 11, END - 1)]
        assert len(log.segments) > 1
        assert log.topic_id and log.leader_epochs[0][1] == 0
    [uncommitted] = visible_logs(Storage(), [str(written.directory)], ["t"], READ_UNCOMMITTED)
    assert (uncommitted.end_offset, uncommitted.aborted) == (END + OPEN, ())


def test_records_equal_those_of_a_consumer(written: Written) -> None:
    storage = Storage()
    [log] = visible_logs(storage, [str(written.directory)])
    reader = SliceReader(storage, ("offset", "value"))
    rows = [
        (row["offset"], row["value"])
        for part in SegmentPlanner(storage, split_bytes=300_000).slices(log, RowBounds())
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    assert rows == written.committed
