"""Transactions in directories that Apache Kafka wrote, and Kafka's DumpLogSegments on transactions of ours.

One of Kafka's directories was left by a clean stop, the other by SIGKILL.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from brokerlab.clients import create_topic
from brokerlab.kafka_jars import PEER, JavaTools, PeerKafka
from brokerlab.logs import OwnedLog, append, files, kill, make_batch, make_marker, open_log, read_all
from tidelog.broker.log.log_config import LogConfig
from tidelog.log_format.entries import decode_aborted_transactions
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import parse_header
from tidelog.records.record import iterate_records

pytestmark = [
    pytest.mark.java,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("java-tools"),
]

CONFIG = LogConfig(segment_bytes=1_048_576)
ROUNDS = 24


class Written(NamedTuple):
    directory: Path
    committed: list[tuple[int, bytes]]  # offset and value that a read_committed consumer of Kafka received
    was_stopped: bool


@pytest.fixture(scope="module", params=["stopped", "killed"])
def written(
    request: pytest.FixtureRequest, java: JavaTools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Written]:
    if not (PEER / "kafka-up.sh").exists():
        pytest.skip("shared/peer is not beside the checkout")
    kafka = PeerKafka(tmp_path_factory.mktemp("peer"), name=f"txn-{request.param}")
    kafka.start()
    try:
        create_topic(kafka.bootstrap, "t", 1, {"segment.bytes": "1048576"})
        produce_transactions(kafka.bootstrap)
        committed = committed_messages(kafka.bootstrap)
        if request.param == "stopped":
            kafka.stop()
        else:
            kafka.kill()
        yield Written(kafka.data_dir / "t-0", committed, request.param == "stopped")
    finally:
        kafka.stop()


def produce_transactions(bootstrap: str) -> None:
    """Three producers whose transactions overlap, over several segments; one transaction stays open."""
    producers = [
        Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"x{number}",
                "transaction.timeout.ms": 900_000,
                "batch.num.messages": 20,
            }
        )
        for number in range(3)
    ]
    for producer in producers:
        producer.init_transactions(60)
        producer.begin_transaction()
    for round_number in range(ROUNDS):
        ending, other = producers[round_number % 3], producers[(round_number + 1) % 3]
        for producer in (ending, other):
            for number in range(60):
                producer.produce("t", b"%d %d " % (round_number, number) + bytes(700))
            producer.flush(60)
        if round_number % 5 < 2:
            ending.abort_transaction(60)
        else:
            ending.commit_transaction(60)
        ending.begin_transaction()
    for producer in producers[
        1:
    ]:  # the first transaction stays open, so its last records and those after them are not visible
        producer.produce("t", b"behind")
        producer.commit_transaction(60)


def committed_messages(bootstrap: str) -> list[tuple[int, bytes]]:
    """The records that a read_committed consumer of Kafka receives up to the last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    seen: list[tuple[int, bytes]] = []
    while True:
        message = consumer.poll(60)
        assert message is not None
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF
            consumer.close()
            return seen
        seen.append((message.offset(), message.value()))


def read_committed(log: OwnedLog) -> list[tuple[int, bytes]]:
    """Reads like a client: the batches up to the last stable offset, without aborted transactions."""
    state = log.producer_state
    state.on_high_watermark(log.log_end_offset)
    stable = log.log_end_offset if state.first_unstable_offset is None else state.first_unstable_offset
    aborted = sorted(log.aborted_transactions(0, stable), key=lambda entry: entry.first_offset)
    active: dict[int, int] = {}
    seen = []
    for batch in read_all(log):
        header = parse_header(batch)
        if header.last_offset >= stable:
            break
        while aborted and aborted[0].first_offset <= header.last_offset:
            entry = aborted.pop(0)
            active[entry.producer_id] = entry.last_offset
        if header.is_control:
            if active.get(header.producer_id) == header.base_offset:
                del active[header.producer_id]
            continue
        if header.is_transactional and header.producer_id in active:
            continue
        seen += [(record.offset, bytes(record.value or b"")) for record in iterate_records(batch)]
    return seen


def test_kafkas_transaction_index_is_read(written: Written, tmp_path: Path) -> None:
    copied = tmp_path / "t-0"
    shutil.copytree(written.directory, copied)
    log = open_log(copied, CONFIG, clean=written.was_stopped)
    state = log.producer_state
    opened = [row for row in state.describe() if row.current_txn_start_offset >= 0]
    assert len(opened) == 1, "one is still open"
    assert read_committed(log) == written.committed
    assert len(written.committed) > 500
    assert all(value != b"behind" for _, value in written.committed)
    assert len(log.segments) > 1
    kill(log)


def test_a_rebuilt_transaction_index_equals_kafkas(written: Written, tmp_path: Path) -> None:
    """Only the `.log` files remain: no index, no transaction index and no snapshot."""
    copied = tmp_path / "t-0"
    shutil.copytree(written.directory, copied)
    kafkas = {path.name: path.read_bytes() for path in files(copied, ".txnindex")}
    for suffix in (".txnindex", ".snapshot", ".index", ".timeindex"):
        for path in files(copied, suffix):
            path.unlink()
    log = open_log(copied, CONFIG)
    ours = {path.name: path.read_bytes() for path in files(copied, ".txnindex")}
    assert ours == {name: data for name, data in kafkas.items() if data}
    assert sum(map(len, ours.values())) > 5 * 34
    kill(log)


def test_kafka_reads_our_transaction_index(java: JavaTools, tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    log = open_log(directory, LogConfig(segment_bytes=2_000, index_interval_bytes=200))
    for number in range(60):
        pid = 100 + number % 4
        sequence = number // 4
        batch = make_batch(
            log.log_end_offset,
            value_bytes=50,
            producer_id=pid,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        append(log, batch)
        if number % 3 == 2:
            append(log, make_marker(log.log_end_offset, is_commit=number % 2 == 0, producer_id=pid))
    log.close()
    ours: list[AbortedTransaction] = []
    for path in files(directory, ".txnindex"):
        ours += decode_aborted_transactions(path.read_bytes(), int(path.stem))
    assert len(ours) > 5
    names = ",".join(map(str, files(directory, ".txnindex")))
    said = java.check("DumpLogSegments", "--files", names)
    theirs = [
        AbortedTransaction(*map(int, row))
        for row in re.findall(
            r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", said
        )
    ]
    assert theirs == ours, said
    snapshot = files(directory, ".snapshot")[-1]
    said = java.check("DumpLogSegments", "--files", str(snapshot))
    for row in log.producer_state.describe():
        line = [line for line in said.splitlines() if f"producerId: {row.producer_id} " in line][-1]
        first = row.current_txn_start_offset
        assert (
            f"currentTxnFirstOffset: {f'OptionalLong[{first}]' if first >= 0 else 'OptionalLong.empty'}"
            in line
        )
