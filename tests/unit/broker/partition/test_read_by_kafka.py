"""Apache Kafka's DumpLogSegments reads the batches and the producer snapshots made here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from brokerlab.kafka_jars import JavaTools, KafkaUnavailableError, find_jars
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.records.batch import EndTransactionMarker, parse_header
from tidelog.records.builder import build_batch, build_end_transaction_batch
from tidelog.records.compression import Compression
from tidelog.records.record import Record

NOW_MS = 1_700_000_000_000
pytestmark = pytest.mark.java

TIME_MS = 1_700_000_000_000
RECORDS_A_BATCH = 12
ROUNDS = 7


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    try:
        return JavaTools(find_jars(), tmp_path_factory.mktemp("java"))
    except KafkaUnavailableError as missing:
        pytest.skip(str(missing))


def _record(offset: int, number: int) -> Record:
    return Record(
        offset,
        TIME_MS + number,
        b"key%d" % number if number % 5 else None,
        b"value %d " % number * 5 if number != 7 else None,
        (("h", b"x"), ("n", None)) if number % 6 == 0 else (),
    )


def _write(directory: Path) -> tuple[Path, Path]:
    """Writes a segment with every codec, a committed and an open transaction; and the snapshot at its end."""
    state, log, offset = ProducerState(), bytearray(), 0

    def append(batch: bytearray, marker: EndTransactionMarker | None = None) -> None:
        nonlocal offset
        header = parse_header(batch)
        state.update(header, NOW_MS, marker)
        log.extend(batch)
        offset = header.last_offset + 1

    for number in range(ROUNDS):
        for codec in Compression:
            append(
                build_batch(
                    [_record(offset + i, i) for i in range(RECORDS_A_BATCH)],
                    compression=codec,
                    producer_id=1_000 + codec,
                    producer_epoch=3,
                    base_sequence=number * RECORDS_A_BATCH,
                    leader_epoch=number,
                )
            )
    for producer_id in (2_000, 2_001):
        records = [Record(offset, TIME_MS, b"t", b"t")]
        append(
            build_batch(
                records,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=2**31 - 1,
                is_transactional=True,
            )
        )
    commit = EndTransactionMarker(is_commit=True, coordinator_epoch=5)
    append(
        build_end_transaction_batch(
            commit, base_offset=offset, timestamp_ms=TIME_MS, producer_id=2_000, producer_epoch=0
        ),
        commit,
    )
    append(build_batch([Record(offset, 5, b"late", None)], log_append_time_ms=TIME_MS + 77))
    segment, snapshot = directory / f"{0:020}.log", directory / f"{offset:020}.snapshot"
    segment.write_bytes(log)
    snapshot.write_bytes(state.snapshot())
    return segment, snapshot


def test_kafka_reads_batches_and_snapshot(java: JavaTools, tmp_path: Path) -> None:
    segment, snapshot = _write(tmp_path)
    printed = java.check(
        "DumpLogSegments", "--deep-iteration", "--print-data-log", "--files", f"{segment},{snapshot}"
    )
    lines = printed.splitlines()
    batches = [line for line in lines if line.startswith("baseOffset:")]
    codecs = Counter(line.partition("compresscodec: ")[2].split()[0] for line in batches)
    assert codecs == {codec.name.lower(): ROUNDS + 4 * (codec == Compression.NONE) for codec in Compression}
    assert all("isvalid: true" in line for line in batches)
    records = [line for line in lines if line.startswith("| offset:")]
    assert len(records) == ROUNDS * len(Compression) * RECORDS_A_BATCH + 4
    for number, line in enumerate(records[:-4]):
        record = _record(number, number % RECORDS_A_BATCH)
        assert line.startswith(f"| offset: {number} CreateTime: {record.timestamp} ")
        assert f"headerKeys: [{','.join(name for name, _ in record.headers)}]" in line
        assert ("key: " + (record.key or b"").decode() in line) == (record.key is not None)
        assert ("payload: " + (record.value or b"").decode().rstrip() in line) == (record.value is not None)
    assert "endTxnMarker: COMMIT coordinatorEpoch: 5" in records[-2]
    assert "LogAppendTime: 1700000000077" in records[-1]
    producers = [line for line in lines if line.startswith("producerId:")]
    assert len(producers) == 5 * len(Compression) + 2  # the last five batches of each
    last = {line.split()[1]: line for line in producers}
    assert "lastSequence: 83 lastOffset: 371" in last["1000"]
    assert "currentTxnFirstOffset: OptionalLong.empty" in last["2000"]
    assert "currentTxnFirstOffset: OptionalLong[421]" in last["2001"]
