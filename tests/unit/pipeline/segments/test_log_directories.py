"""Partitions are found in directories, and directories that cannot be read are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerlab.logs import append, make_batch, open_log
from tidelog.broker.log.directory_files import write_offsets
from tidelog.log_format.directory import CLEANER_OFFSET_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs


def make_partition(root: Path, topic: str, partition: int, records: int) -> None:
    log = open_log(root / f"{topic}-{partition}")
    for _ in range(records):
        append(log, make_batch(log.log_end_offset))
    log.close()


def checkpoint(root: Path, **ends: int) -> None:
    write_offsets(
        root / HIGH_WATERMARK_CHECKPOINT, {TopicPartition(topic, 0): end for topic, end in ends.items()}
    )


def found(*roots: Path | str, topics: list[str] | None = None) -> dict[str, int]:
    logs = visible_logs(Storage(), [str(root) for root in roots], topics)
    return {f"{log.topic}-{log.partition}": log.end_offset for log in logs}


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Two brokers below one directory. The second broker is behind with topic a and is the only one with
    topic b.
    """
    for broker in ("broker-1", "broker-2"):
        (tmp_path / broker / "data").mkdir(parents=True)
    one, two = (tmp_path / broker / "data" for broker in ("broker-1", "broker-2"))
    make_partition(one, "a", 0, 5)
    make_partition(two, "a", 0, 3)
    make_partition(two, "b", 0, 4)
    make_partition(two, "__consumer_offsets", 0, 2)
    checkpoint(one, a=5)
    checkpoint(two, a=3, b=4, __consumer_offsets=2)
    return tmp_path


def test_all_brokers_below_a_directory_are_found(cluster: Path) -> None:
    assert found(cluster) == {"a-0": 5, "b-0": 4}
    assert found(cluster / "broker-2" / "data") == {"a-0": 3, "b-0": 4}
    assert found(cluster / "broker-1" / "data", cluster / "broker-2" / "data/") == {"a-0": 5, "b-0": 4}
    assert found(cluster, f"file://{cluster}") == {"a-0": 5, "b-0": 4}


def test_internal_topics_are_read_only_when_named(cluster: Path) -> None:
    assert found(cluster, topics=["__consumer_offsets"]) == {"__consumer_offsets-0": 2}


def test_missing_directories_are_reported(cluster: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="contains no partition of c, d"):
        found(cluster, topics=["a", "d", "c"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match="empty is not a log directory: name a broker"):
        found(tmp_path / "empty")
    with pytest.raises(PipelineError, match="nowhere is not a log directory"):
        found(tmp_path / "nowhere")
    with pytest.raises(PipelineError, match="isolation level 'dirty'"):
        visible_logs(Storage(), [str(cluster)], None, "dirty")


def test_a_partition_without_a_checkpoint_is_refused(cluster: Path) -> None:
    data = cluster / "broker-2" / "data"
    checkpoint(data, a=3)
    with pytest.raises(PipelineError, match="no checkpoint says how far b-0"):
        found(data)
    assert found(data, topics=["a"]) == {"a-0": 3}


def test_damaged_files_are_named(cluster: Path) -> None:
    data = cluster / "broker-1" / "data"
    whole = (data / HIGH_WATERMARK_CHECKPOINT).read_bytes()
    (data / HIGH_WATERMARK_CHECKPOINT).write_text("0\n1\na 0\n")
    with pytest.raises(
        PipelineError, match=r"replication-offset-checkpoint, line 3: .*copy the directory again"
    ):
        found(data)
    (data / HIGH_WATERMARK_CHECKPOINT).write_bytes(whole)
    (data / "a-0" / "leader-epoch-checkpoint").write_text("0\n7\n0 0\n")
    with pytest.raises(PipelineError, match=r"leader-epoch-checkpoint cannot be read .*7 entries announced"):
        found(data)


def test_a_compacted_topic_is_recognized(cluster: Path) -> None:
    data = cluster / "broker-1" / "data"
    assert not visible_logs(Storage(), [str(data)])[0].is_compacted
    write_offsets(data / CLEANER_OFFSET_CHECKPOINT, {TopicPartition("a", 0): 2})
    assert visible_logs(Storage(), [str(data)])[0].is_compacted


def test_directories_of_deleted_partitions_do_not_count(cluster: Path) -> None:
    data = cluster / "broker-1" / "data"
    (data / "a-0").rename(data / "a-0.0123456789abcdef0123456789abcdef-delete")
    with pytest.raises(PipelineError, match="contains no partition of a"):
        found(data, topics=["a"])
