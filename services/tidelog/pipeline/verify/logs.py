"""The two logs that a table is compared with: the one that the brokers store, whose records Spark's Kafka
connector reads and whose batches our own client reads, and the one that segment files contain, without a
broker.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.client.admin.logs import OffsetRange, epochs_of_ranges, fetch_batches
from tidelog.client.admin.offsets import list_offsets
from tidelog.client.admin.topics import describe_topics_setting
from tidelog.client.cluster import Cluster
from tidelog.client.security import parse_security
from tidelog.model import protocol_values
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.log_files import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    PartitionLog,
    SegmentFile,
    batch_position,
    by_name,
    scan_batches,
)
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.pipeline.verify.log_reader import Epochs, LogExtent, Partition, SeenBatch, Span
from tidelog.records.aborted import AbortedBatches, visible_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class SegmentLog:
    """`roots` are data directories, or copies or exports of them."""

    roots: tuple[str, ...]
    storage: Storage = field(default_factory=Storage)
    is_committed: bool = True
    """Set to False if the archive read with read_uncommitted."""
    _logs: dict[Partition, PartitionLog] = field(default_factory=dict, init=False)

    @property
    def place(self) -> str:
        return f"the segments in {', '.join(self.roots)}"

    def extents(self, topics: Collection[str]) -> dict[Partition, LogExtent]:
        found = by_name(visible_logs(self.storage, self.roots, topics, self._isolation_level))
        self._logs |= found
        return {
            place: LogExtent(log.start_offset, log.end_offset, log.topic_id, log.is_compacted)
            for place, log in found.items()
        }

    @property
    def _isolation_level(self) -> str:
        return READ_COMMITTED if self.is_committed else READ_UNCOMMITTED

    def epochs(self, spans: Mapping[Partition, Span]) -> dict[Partition, Epochs]:
        return {
            place: [(epoch, begin) for epoch, begin in self._logs[place].epochs_of(start, end)]
            for place, (start, end) in spans.items()
        }

    def records(self, spark: SparkSession, spans: Mapping[Partition, Span]) -> DataFrame:
        from tidelog.pipeline.segments import register

        register(spark)
        topics = {topic for topic, _ in spans}
        starting: dict[str, dict[str, int]] = {topic: {} for topic in topics}
        ending: dict[str, dict[str, int]] = {topic: {} for topic in topics}
        for (topic, partition), log in self._logs.items():
            if topic in topics:
                nothing = (log.end_offset, log.end_offset)
                start, end = spans.get((topic, partition), nothing)
                starting[topic][str(partition)], ending[topic][str(partition)] = start, end
        reader = (
            spark.read.format("tidelog")
            .option("subscribe", ",".join(sorted(topics)))
            .option("isolationLevel", self._isolation_level)
            .option("startingOffsets", json.dumps(starting))
            .option("endingOffsets", json.dumps(ending))
            # Retention continues during the read. Missing records are detected by comparing what remains.
            .option("failOnDataLoss", "false")
        )
        for name, value in self.storage.settings.items():
            reader = reader.option(f"storage.{name}", value)
        return reader.load(list(self.roots))

    def opener(self) -> SegmentBatches:
        return SegmentBatches(self.storage, dict(self._logs))


@dataclass(frozen=True, slots=True)
class SegmentBatches:
    storage: Storage
    logs: Mapping[Partition, PartitionLog]

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[SeenBatch]:
        log = self.logs[topic, partition]
        aborted = AbortedBatches(log.aborted)
        for segment in log.segments_of(start, end):
            try:
                yield from self._of_segment(segment, start, end, aborted)
            except FileNotFoundError as error:
                raise PipelineError(f"{segment.log_path} has been deleted: verify again") from error

    def _of_segment(
        self, segment: SegmentFile, start: int, end: int, aborted: AbortedBatches
    ) -> Iterator[SeenBatch]:
        with self.storage.open(segment.log_path) as file:
            size = file.size()
            position = batch_position(self.storage, segment, start, size)
            for batch in scan_batches(file, segment, position, size):
                header = batch.header
                if header.base_offset >= end:
                    return
                yield SeenBatch(
                    header,
                    header in aborted,
                    lambda at=batch.position, size=header.size_bytes: file.read_at(size, at),  # type: ignore[misc]
                )


@dataclass(frozen=True)
class BrokerLog:
    """`client_settings` are for Spark's Kafka clients, with Kafka's names. Those of TLS and SASL are also for
    the connections of this process and of the executors.
    """

    bootstrap: str
    client_settings: Mapping[str, str] = field(default_factory=dict)
    is_committed: bool = True
    """Set to False if the archive read with read_uncommitted."""

    @property
    def place(self) -> str:
        return f"the brokers at {self.bootstrap}"

    def extents(self, topics: Collection[str]) -> dict[Partition, LogExtent]:
        found: dict[Partition, LogExtent] = {}
        with Cluster(self.bootstrap, security=parse_security(self.client_settings)) as cluster:
            existing = cluster.topics(topics)
            policies = describe_topics_setting(cluster, existing, "cleanup.policy")
            for name in existing:
                topic = cluster.topic(name)
                starts = list_offsets(
                    cluster, topic, EARLIEST_TIMESTAMP, isolation_level=protocol_values.READ_UNCOMMITTED
                )
                ends = list_offsets(cluster, topic, LATEST_TIMESTAMP, isolation_level=self._isolation_level)
                is_compacted = "compact" in (policies.get(name) or "")
                for index, end in ends.items():
                    start = starts[index].offset
                    extent = LogExtent(start, max(end.offset, start), str(topic.topic_id), is_compacted)
                    found[name, index] = extent
        return found

    @property
    def _isolation_level(self) -> int:
        return protocol_values.READ_COMMITTED if self.is_committed else protocol_values.READ_UNCOMMITTED

    def epochs(self, spans: Mapping[Partition, Span]) -> dict[Partition, Epochs]:
        with Cluster(self.bootstrap, security=parse_security(self.client_settings)) as cluster:
            asked = {TopicPartition(*place): OffsetRange(*span) for place, span in spans.items()}
            found = epochs_of_ranges(cluster, asked)
        return {(place.topic, place.partition): epochs for place, epochs in found.items()}

    def records(self, spark: SparkSession, spans: Mapping[Partition, Span]) -> DataFrame:
        partitions: dict[str, list[int]] = {}
        starting: dict[str, dict[str, int]] = {}
        ending: dict[str, dict[str, int]] = {}
        for (topic, partition), (start, end) in sorted(spans.items()):
            partitions.setdefault(topic, []).append(partition)
            starting.setdefault(topic, {})[str(partition)] = start
            ending.setdefault(topic, {})[str(partition)] = end
        reader = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("kafka.isolation.level", "read_committed" if self.is_committed else "read_uncommitted")
            .option("assign", json.dumps(partitions))
            .option("startingOffsets", json.dumps(starting))
            .option("endingOffsets", json.dumps(ending))
            .option("includeHeaders", "true")
            # Retention continues during the read. Missing records are detected by comparing what remains.
            .option("failOnDataLoss", "false")
        )
        for name, value in self.client_settings.items():
            reader = reader.option(f"kafka.{name}", value)
        return reader.load()

    def opener(self) -> BrokerBatches:
        return BrokerBatches(self.bootstrap, self._isolation_level, self.client_settings)


@dataclass(frozen=True, slots=True)
class BrokerBatches:
    bootstrap: str
    isolation_level: int
    client_settings: Mapping[str, str] = field(default_factory=dict)

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[SeenBatch]:
        offset = start
        with Cluster(self.bootstrap, security=parse_security(self.client_settings)) as cluster:
            described = cluster.topic(topic)
            while offset < end:
                page = fetch_batches(
                    cluster, described, partition, offset, isolation_level=self.isolation_level
                )
                before = offset
                for position, header, is_visible in visible_batches(
                    page.data, page.aborted, checks_crc=False
                ):
                    offset = max(offset, header.last_offset + 1)
                    raw = page.data[position : position + header.size_bytes]
                    is_aborted = not is_visible and not header.is_control
                    yield SeenBatch(header, is_aborted, lambda raw=raw: raw)  # type: ignore[misc]
                if offset == before:
                    return
