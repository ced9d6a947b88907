"""Cleans a log as the broker does, without worker process and event loop, or with Apache Kafka's cleaner."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from brokerlab.kafka_jars import JAVA_OPTIONS
from brokerlab.logs import OwnedLog, files
from tidelog.broker.hosting.log_cleaner import Dirtiness, dirtiness, last_records_of
from tidelog.broker.log.cleaning.cleaning_job import CleanedSegment, CleaningDone, CleaningJob, SourceSegment
from tidelog.broker.log.cleaning.segment_swap import SegmentSwap
from tidelog.broker.log.cleaning.worker import clean
from tidelog.records.batch import BatchHeader, iterate_headers
from tidelog.records.record import Record, iterate_records
from tidelog.settings.topic_settings import TopicSettings

COMPACT = TopicSettings(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, index_interval_bytes=512)
DELETE_HORIZON_BIT = 0x40


def stable_end(log: OwnedLog) -> int:
    """The last stable offset of a log in which every record is replicated."""
    unstable = log.producer_state.first_unstable_offset
    return log.log_end_offset if unstable is None else unstable


def dirt(log: OwnedLog, now_ms: int, settings: TopicSettings = COMPACT) -> Dirtiness:
    log.producer_state.on_high_watermark(log.log_end_offset)
    return dirtiness(log, settings, stable_end(log), now_ms)


def cleaning_job(
    log: OwnedLog,
    now_ms: int,
    *,
    delete_retention_ms: int = 86_400_000,
    dedupe_buffer_bytes: int = 1 << 20,
    io_buffer_bytes: int = 64 * 1024,
) -> CleaningJob:
    found = dirt(log, now_ms)
    return CleaningJob(
        log.directory.path,
        tuple(
            SourceSegment(s.base_offset, s.next_offset, s.size_bytes, 8 * s.offset_index.entry_count, 0)
            for s in log.segments
            if s.base_offset < found.first_uncleanable_offset
        ),
        found.first_dirty_offset,
        found.first_uncleanable_offset,
        now_ms,
        delete_retention_ms,
        log.config.segment_bytes,
        log.config.segment_index_bytes,
        512,
        dedupe_buffer_bytes,
        0.9,
        io_buffer_bytes,
        1e18,
        last_records_of(log.producer_state),
        tuple(log.aborted_across(found.first_uncleanable_offset)),
    )


def swap_in(log: OwnedLog, cleaned: CleanedSegment, now_ms: int = 0) -> None:
    sources = [segment for segment in log.segments if segment.base_offset in cleaned.replaces]
    swap = SegmentSwap(log, sources, cleaned)
    swap.announce()
    assert swap.install()
    swap.finish()
    swap.finished(now_ms)


def clean_log(log: OwnedLog, job: CleaningJob) -> CleaningDone:
    for answer in clean(job):
        if isinstance(answer, CleaningDone):
            log.clean_offset = answer.clean_offset
            return answer
        swap_in(log, answer, job.now_ms)
    raise AssertionError("the cleaner did not report the end of the job")


class SeenBatch(NamedTuple):
    """All of a batch that readers can see; the base timestamp only if it is the delete horizon."""

    segment: int
    header: BatchHeader
    horizon_ms: int
    records: tuple[Record, ...]


def contents(directory: Path) -> list[SeenBatch]:
    """Returns every batch on disk, read from the files alone."""
    seen = []
    for path in files(directory, ".log"):
        data = path.read_bytes()
        for at, header in iterate_headers(data):
            seen.append(
                SeenBatch(
                    int(path.stem),
                    header._replace(batch_length=0, crc=0, base_timestamp=0),
                    header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else -1,
                    tuple(iterate_records(data[at : at + header.size_bytes])),
                )
            )
    return seen


def transaction_indexes(directory: Path) -> dict[str, list[tuple[int, ...]]]:
    """Returns the transaction indexes of the segments that have one with entries."""
    return {
        path.name: list(struct.iter_unpack(">hqqqq", path.read_bytes()))
        for path in files(directory, ".txnindex")
        if path.stat().st_size
    }


class KafkasJob(NamedTuple):
    directory: Path
    job: CleaningJob


def clean_with_kafka(jars: Path, jobs: Sequence[KafkasJob], *, map_bytes: int = 1 << 20) -> list[list[int]]:
    """Lets Apache Kafka clean each directory. Each job is the end of the clean part and the time in ms."""
    lines = [
        "\t".join(
            str(field)
            for field in (
                place,
                job.now_ms,
                job.first_dirty_offset,
                job.first_uncleanable_offset,
                job.delete_retention_ms,
                job.segment_bytes,
                map_bytes,
            )
        )
        for place, job in jobs
    ]
    done = subprocess.run(
        ["java", *JAVA_OPTIONS, "-cp", f"{jars}/*", str(Path(__file__).with_name("CleanLog.java"))],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [[int(field) for field in line.split("\t")] for line in done.stdout.splitlines()]


def copy_log(directory: Path, target: Path) -> Path:
    shutil.copytree(directory, target)
    return target
