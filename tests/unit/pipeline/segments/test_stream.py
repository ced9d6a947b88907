"""Batches, restarts, limits and losses of the streaming source in Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokerlab.logs import append, make_batch, make_marker, open_log
from tidelog.broker.log.directory_files import write_offsets
from tidelog.broker.log.log_config import LogConfig
from tidelog.log_format.directory import HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]
BATCH_TIMEOUT_S = 120


class Directory:
    """A broker's directory with partitions 0 and 1 of topic t."""

    def __init__(self, root: Path) -> None:
        self.root = root
        config = LogConfig(segment_bytes=2000, index_interval_bytes=100, file_delete_delay_ms=0)
        self.logs = [open_log(root / f"t-{number}", config) for number in range(2)]

    def write(self, batches: int) -> None:
        for log in self.logs:
            for _ in range(batches):
                append(log, make_batch(log.log_end_offset, 3))
        self.checkpoint()

    def abort_on_0(self) -> None:
        log = self.logs[0]
        batch = make_batch(
            log.log_end_offset, 2, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        append(log, batch)
        append(log, make_marker(log.log_end_offset, is_commit=False, producer_id=9))

    def checkpoint(self) -> None:
        places = {TopicPartition("t", number): log for number, log in enumerate(self.logs)}
        ends = {place: log.log_end_offset for place, log in places.items()}
        write_offsets(self.root / HIGH_WATERMARK_CHECKPOINT, ends)
        starts = {place: log.log_start_offset for place, log in places.items()}
        write_offsets(self.root / LOG_START_OFFSET_CHECKPOINT, starts)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    (tmp_path / "data").mkdir()
    made = Directory(tmp_path / "data")
    yield made
    for log in made.logs:
        log.close_files()


class Sink:
    def __init__(self) -> None:
        self.rows: Counter[tuple[int, int]] = Counter()
        self.batches: list[int] = []

    def take(self, batch: DataFrame, batch_id: int) -> None:
        found = [(row.partition, row.offset) for row in batch.select("partition", "offset").collect()]
        self.rows.update(found)
        self.batches.append(len(found))


def run_to_the_end(spark: SparkSession, directory: Directory, checkpoint: Path, **options: str) -> Sink:
    from tidelog.pipeline.segments import register

    register(spark)
    sink = Sink()
    stream = spark.readStream.format("tidelog").options(**options).load(str(directory.root))
    query = (
        stream.writeStream.foreachBatch(sink.take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(BATCH_TIMEOUT_S)
    finally:
        query.stop()
    return sink


def expected(directory: Directory, aborted: set[int]) -> Counter[tuple[int, int]]:
    return Counter(
        (number, offset)
        for number, log in enumerate(directory.logs)
        for offset in range(log.log_end_offset)
        if number or offset not in aborted
    )


def test_each_record_once_over_restarts(spark: SparkSession, directory: Directory, tmp_path: Path) -> None:
    directory.write(40)
    directory.abort_on_0()
    directory.write(1)
    first = run_to_the_end(
        spark, directory, tmp_path / "checkpoint", subscribe="t", maxOffsetsPerTrigger="150"
    )
    assert len(first.batches) == 2 and max(first.batches) <= 150
    directory.write(30)
    second = run_to_the_end(spark, directory, tmp_path / "checkpoint", subscribe="t")
    assert first.rows + second.rows == expected(directory, {120, 121, 122})
    assert (tmp_path / "checkpoint" / "offsets" / "2").read_text().splitlines()[-1] == (
        f'{{"t": {{"0": {directory.logs[0].log_end_offset}, "1": {directory.logs[1].log_end_offset}}}}}'
    )


def test_offsets_lost_between_two_runs_are_named(
    spark: SparkSession, directory: Directory, tmp_path: Path
) -> None:
    directory.write(10)
    run_to_the_end(spark, directory, tmp_path / "checkpoint", subscribe="t")
    directory.write(20)
    directory.logs[1].increment_log_start_offset(45)
    directory.checkpoint()
    with pytest.raises(Exception, match="t-1: offsets 30 to 44 cannot be read"):
        run_to_the_end(spark, directory, tmp_path / "checkpoint", subscribe="t")
    later = run_to_the_end(spark, directory, tmp_path / "checkpoint", subscribe="t", failOnDataLoss="false")
    assert sorted(later.rows)[-1] == (1, 89)
    assert min(offset for partition, offset in later.rows if partition == 1) == 45
    assert set(later.rows.values()) == {1} and len(later.rows) == 60 + 45
