"""A data directory: its lock, its owner, the marker of a clean stop, and its checkpoints."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from brokerlab.logs import OwnedLog, append_batches, read_all
from tidelog.broker.log.directory_files import LogStorageError, read_meta_properties, write_meta_properties
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.log.previous_life import Life, LogDirectoryInUseError
from tidelog.log_format.directory import (
    CLEAN_SHUTDOWN_FILE,
    CorruptFileError,
    MetaProperties,
    parse_partition_directory_name,
    renamed_directory_name,
)
from tidelog.model.topics import TopicPartition, parse_topic_id, topic_id_text

ONE = TopicPartition("one", 0)
TWO = TopicPartition("two-2", 11)
ID = uuid.UUID("26b44a9a-c3ff-4bd9-8c95-4b2a3a4bc9b0")
CONFIG = LogConfig(file_delete_delay_ms=1000)
SMALL_SEGMENTS = LogConfig(segment_bytes=200)


def open_directory(path: Path) -> LogDirectory:
    return LogDirectory.open(path, cluster_id="abc", node_id=3)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_checkpoint_beyond_the_log_is_refused_until_its_line_is_removed(
    tmp_path: Path, is_clean: bool
) -> None:
    directory = open_directory(tmp_path)
    log = OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0))
    batches = append_batches(log, 5)
    directory.checkpoint_high_watermarks({ONE: 5})
    directory.close(broker_epoch=42)
    checkpoint = tmp_path / "log-start-offset-checkpoint"
    checkpoint.write_text(f"0\n1\none 0 {10**12}\n")
    if not is_clean:
        (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    again = open_directory(tmp_path)
    with pytest.raises(LogStorageError, match=r"states that it starts at 10{12}\."):
        again.open_partition(ONE, ID, CONFIG, now_ms=0)
    again.close()
    checkpoint.write_text("0\n0\n")
    confirmed = open_directory(tmp_path)
    assert read_all(OwnedLog(confirmed.open_partition(ONE, ID, CONFIG, now_ms=0))) == batches
    confirmed.close()


def test_a_deleted_last_segment_is_reported(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    config = LogConfig(segment_bytes=300)
    append_batches(OwnedLog(directory.open_partition(ONE, ID, config, now_ms=0)), 9)
    directory.checkpoint_high_watermarks({ONE: 9})
    directory.close(broker_epoch=42)
    segments = sorted((tmp_path / "one-0").glob("*.log"))
    assert len(segments) > 1
    segments[-1].unlink()
    again = open_directory(tmp_path)
    with pytest.raises(LogStorageError, match="segments are missing"):
        again.open_partition(ONE, ID, config, now_ms=0)
    again.close()
    (tmp_path / "one-0" / "segments-checkpoint").unlink()
    again = open_directory(tmp_path)
    with pytest.raises(LogStorageError, match="its high watermark was 9 when the broker stopped"):
        again.open_partition(ONE, ID, config, now_ms=0)
    again.close()


def small_segments(path: Path) -> Path:
    """Leaves a directory with a partition of four segments, and returns the file of the second one."""
    directory = open_directory(path)
    log = OwnedLog(directory.open_partition(ONE, ID, SMALL_SEGMENTS, now_ms=0))
    append_batches(log, 8)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6]
    directory.close()
    return path / "one-0" / f"{2:020d}.log"


@pytest.mark.parametrize("ending", ["clean", "killed", "clean without a remembered life"])
@pytest.mark.parametrize("numbers", [[2], [0, 2, 4, 6]])
def test_deleted_segments_take_the_partition_offline(tmp_path: Path, numbers: list[int], ending: str) -> None:
    middle = small_segments(tmp_path)
    for _ in range(2):
        directory = open_directory(tmp_path)
        directory.open_partition(ONE, ID, SMALL_SEGMENTS, now_ms=0)
        if ending == "clean":
            directory.remember(Life(broker_epoch=9))
        directory.close(broker_epoch=9)
    if ending == "killed":
        directory = open_directory(tmp_path)
        directory.open_partition(ONE, ID, SMALL_SEGMENTS, now_ms=0)
        directory.abandon()
    for base_offset in numbers:
        middle.with_name(f"{base_offset:020d}.log").unlink()
    directory = open_directory(tmp_path)
    with pytest.raises(LogStorageError, match="segments are missing"):
        directory.open_partition(ONE, ID, SMALL_SEGMENTS, now_ms=0)
    directory.abandon()


@pytest.mark.parametrize("broker", ["Apache Kafka", "tidelog before the list", "the same, killed"])
def test_segments_that_another_broker_removed_are_not_missing(tmp_path: Path, broker: str) -> None:
    middle = small_segments(tmp_path)
    middle.unlink()
    if broker == "Apache Kafka":  # it leaves its own broker epoch in the marker
        (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    else:  # it registers with another epoch and keeps properties that it does not know
        meta = tmp_path / "meta.properties"
        meta.write_text(meta.read_text().replace("tidelog.broker.epoch=-1", "tidelog.broker.epoch=7"))
        marker = tmp_path / ".kafka_cleanshutdown"
        marker.unlink()
        if broker != "the same, killed":
            marker.write_text('{"version":0,"brokerEpoch":7}')
    directory = open_directory(tmp_path)
    log = OwnedLog(directory.open_partition(ONE, ID, SMALL_SEGMENTS, now_ms=0))
    assert len(read_all(log)) == 6
    directory.remember(Life(broker_epoch=8))
    directory.close(broker_epoch=8)
    middle.with_name(f"{4:020d}.log").unlink()
    directory = open_directory(tmp_path)
    with pytest.raises(LogStorageError, match="segments are missing"):
        directory.open_partition(ONE, ID, SMALL_SEGMENTS, now_ms=0)
    directory.abandon()


def test_a_checkpointed_log_start_never_passes_the_high_watermark(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    append_batches(OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0)), 5)
    directory.checkpoint_high_watermarks({ONE: 1})
    directory.partitions[ONE].increment_log_start_offset(3)
    directory.checkpoint_log_start_offsets()
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\none 0 3\n"
    directory.close()


def test_partitions_come_back_after_a_clean_stop(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    assert not directory.was_clean
    batches = {}
    for partition in (ONE, TWO):
        log = OwnedLog(directory.open_partition(partition, ID, CONFIG, now_ms=0))
        batches[partition] = append_batches(log, 5)
    directory.partitions[ONE].increment_log_start_offset(2)
    directory.checkpoint_high_watermarks({ONE: 5, TWO: 4})
    directory.close(broker_epoch=42)
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).read_text() == '{"version":0,"brokerEpoch":42}'
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n2\none 0 5\ntwo-2 11 5\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n2\none 0 2\ntwo-2 11 0\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n2\none 0 5\ntwo-2 11 4\n"

    again = open_directory(tmp_path)
    assert (again.was_clean, again.previous_broker_epoch) == (True, 42)
    assert not (tmp_path / CLEAN_SHUTDOWN_FILE).exists(), "it is not clean from now on"
    assert again.topic_partitions_on_disk() == [ONE, TWO]
    assert again.topic_id_on_disk(ONE) == ID
    assert again.high_watermarks == {ONE: 5, TWO: 4}
    log = OwnedLog(again.open_partition(ONE, ID, CONFIG, now_ms=0))
    assert (log.log_start_offset, log.recovery_point) == (2, 5)
    assert read_all(log) == batches[ONE][2:]
    again.close()


def test_checkpoints_of_partitions_not_opened_stay(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    append_batches(OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0)), 5)
    directory.close()
    directory = open_directory(tmp_path)
    append_batches(OwnedLog(directory.open_partition(TWO, ID, CONFIG, now_ms=0)), 5)
    directory.checkpoint_recovery_points()
    directory.abandon()
    assert "one 0 5\n" in (tmp_path / "recovery-point-offset-checkpoint").read_text()


def test_no_marker_while_a_partition_still_needs_recovery(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    for partition in (ONE, TWO):
        append_batches(OwnedLog(directory.open_partition(partition, ID, CONFIG, now_ms=0)), 5)
    directory.abandon()
    directory = open_directory(tmp_path)
    assert not directory.was_clean
    OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0))
    directory.close()
    assert not (tmp_path / CLEAN_SHUTDOWN_FILE).exists()
    directory = open_directory(tmp_path)
    for partition in (ONE, TWO):
        assert OwnedLog(directory.open_partition(partition, ID, CONFIG, now_ms=0)).log_end_offset == 5
    directory.close()
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()


def test_a_new_topic_of_the_same_name_does_not_inherit_checkpoints(tmp_path: Path) -> None:
    """The process is killed before the checkpoints are due again."""
    directory = open_directory(tmp_path)
    for partition in (ONE, TWO):
        log = OwnedLog(directory.open_partition(partition, ID, CONFIG, now_ms=0))
        append_batches(log, 20)
        log.flush()
        log.increment_log_start_offset(15)
    directory.checkpoint_recovery_points()
    directory.checkpoint_log_start_offsets()
    directory.checkpoint_high_watermarks({ONE: 20, TWO: 20})
    directory.delete_partition(ONE, 0)
    log = OwnedLog(directory.open_partition(ONE, uuid.UUID(int=7), CONFIG, now_ms=0))
    batches = append_batches(log, 5)
    directory.abandon()

    again = open_directory(tmp_path)
    log = OwnedLog(again.open_partition(ONE, uuid.UUID(int=7), CONFIG, now_ms=0))
    assert (log.log_start_offset, log.recovery_point, again.high_watermarks) == (0, 0, {TWO: 20})
    assert read_all(log) == batches
    log = OwnedLog(again.open_partition(TWO, ID, CONFIG, now_ms=0))
    assert (log.log_start_offset, log.recovery_point) == (15, 20)
    again.abandon()


def test_a_partition_closed_and_opened_again(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    batches = append_batches(OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0)), 5)
    directory.close_partition(ONE)
    directory.close_partition(ONE)
    assert read_all(OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0))) == batches
    directory.close()


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    with pytest.raises(LogDirectoryInUseError, match="in use by another process"):
        open_directory(tmp_path)
    tried = (
        "import sys; from tidelog.broker.log.log_directory import LogDirectory;"
        "LogDirectory.open(sys.argv[1], cluster_id='abc', node_id=3)"
    )
    other = subprocess.run(
        [sys.executable, "-c", tried, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "LogDirectoryInUseError" in other.stderr
    directory.close()
    open_directory(tmp_path).close()


def test_another_clusters_or_nodes_directory_is_refused(tmp_path: Path) -> None:
    open_directory(tmp_path).close()
    with pytest.raises(CorruptFileError, match=r"cluster\.id=abc"):
        LogDirectory.open(tmp_path, cluster_id="xyz", node_id=3)
    with pytest.raises(CorruptFileError, match=r"node\.id=3"):
        LogDirectory.open(tmp_path, cluster_id="abc", node_id=4)
    open_directory(tmp_path).close()


def test_meta_properties_as_apache_kafka_writes_them(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text(
        "#\n#Sat Nov 21 13:43:05 UTC 2026\nnode.id=1\ndirectory.id=W_CcISKpYYlfb0BiQQpDAQ\nversion=1\n"
        "cluster.id=98KBsqBqQu6CEnTn1FuTUw\nown.setting=a\\=b\\:c\n"
    )
    meta = read_meta_properties(tmp_path)
    assert meta == MetaProperties(
        "98KBsqBqQu6CEnTn1FuTUw", 1, "W_CcISKpYYlfb0BiQQpDAQ", {"own.setting": "a=b:c"}
    )
    write_meta_properties(tmp_path, meta)
    assert read_meta_properties(tmp_path) == meta
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=7\ncluster.id=x\n")
    assert read_meta_properties(tmp_path) == MetaProperties("x", 7)
    for senseless in (
        "version=2\nnode.id=1\ncluster.id=x",
        "version=1\nnode.id=one\ncluster.id=x",
        "node.id=1",
    ):
        (tmp_path / "meta.properties").write_text(senseless)
        with pytest.raises(CorruptFileError):
            read_meta_properties(tmp_path)


def test_a_deleted_partition_is_renamed_at_once_and_removed_later(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0))
    batches = append_batches(log, 5)
    being_sent = log.read(0, 10_000, 5)
    assert being_sent is not None
    directory.delete_partition(ONE, 100)
    assert directory.topic_partitions_on_disk() == []
    assert being_sent.read() == b"".join(batches)
    being_sent.release()
    assert directory.remove_deleted_partitions(1099) == 0
    new = OwnedLog(directory.open_partition(ONE, uuid.uuid4(), CONFIG, now_ms=0))
    assert new.log_end_offset == 0
    assert directory.remove_deleted_partitions(1100) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["one-0"]
    directory.delete_partition(ONE, 2000)
    directory.abandon()
    directory = open_directory(tmp_path)
    assert directory.remove_deleted_partitions(0) == 1, "a start removes what the last run deleted"
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    directory.close()


def test_unexpected_partitions_are_renamed_and_kept(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    for partition in (ONE, TWO):
        append_batches(OwnedLog(directory.open_partition(partition, ID, CONFIG, now_ms=0)), 5)
    directory.close()
    directory = open_directory(tmp_path)
    assert directory.remove_strays({ONE}) == [TWO]
    assert directory.topic_partitions_on_disk() == [ONE]
    (aside,) = tmp_path.glob("*-stray")
    assert aside.name.startswith("two-2-11.")
    assert (aside / f"{0:020d}.log").stat().st_size
    directory.close()


def test_the_directory_of_another_topic_id_is_renamed(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    append_batches(OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0)), 5)
    directory.close()
    directory = open_directory(tmp_path)
    assert OwnedLog(directory.open_partition(ONE, uuid.uuid4(), CONFIG, now_ms=0)).log_end_offset == 0
    assert len(list(tmp_path.glob("*-stray"))) == 1
    directory.close()


def test_errors_name_the_damaged_file(tmp_path: Path) -> None:
    open_directory(tmp_path).close()
    path = tmp_path / "recovery-point-offset-checkpoint"
    for damaged in ("0\n1\none 0 x\n", "0\n2\none 0 1\n", "7\n0\n", "rubbish\n"):
        path.write_text(damaged)
        open_directory(tmp_path).close()  # rebuilt
        assert path.read_text() == "0\n0\n"
    path.write_text("")
    directory = open_directory(tmp_path)
    OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0))
    directory.close_partition(ONE)
    (tmp_path / "one-0" / "partition.metadata").write_text("version: 0\ntopic_id: !\n")
    with pytest.raises(LogStorageError, match=r"partition\.metadata"):
        OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0))
    directory.close()


def test_a_damaged_epoch_checkpoint_is_rebuilt(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0))
    append_batches(log, 3, leader_epoch=4)
    directory.close_partition(ONE)
    (tmp_path / "one-0" / "leader-epoch-checkpoint").write_text("0\n1\n")
    log = OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0))
    assert [tuple(entry) for entry in log.leader_epochs] == [(4, 0)]
    directory.close()


def test_the_metadata_log_and_other_directories_are_not_partitions(tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0").mkdir()
    (tmp_path / "__cluster_metadata-0" / f"{0:020d}.log").write_bytes(b"")
    (tmp_path / "backup-20240101").mkdir()
    directory = open_directory(tmp_path)
    assert directory.topic_partitions_on_disk() == []
    assert directory.remove_strays(set()) == []
    directory.close()
    assert (tmp_path / "__cluster_metadata-0").is_dir()
    assert (tmp_path / "backup-20240101").is_dir()


def test_directory_names() -> None:
    assert parse_partition_directory_name("a-b.c_d-12") == TopicPartition("a-b.c_d", 12)
    for other in ("nodash", "-1", "a-", "a-x", "a-1.0123-delete", "a-1.0123-stray", "a-1.0123-future", "a-²"):
        assert parse_partition_directory_name(other) is None
    assert renamed_directory_name(ONE, ID, "-delete") == f"one-0.{ID.hex}-delete"
    longest = renamed_directory_name(TopicPartition("x" * 249, 10), ID, "-delete")
    assert len(longest) == 255
    assert longest.endswith(f"x-10.{ID.hex}-delete")


def test_uuids_in_kafkas_text_form() -> None:
    assert parse_topic_id(topic_id_text(ID)) == ID
    assert parse_topic_id("W_CcISKpYYlfb0BiQQpDAQ").hex == "5bf09c2122a961895f6f4062410a4301"
    for senseless in ("", "!", "AAAA"):
        with pytest.raises(ValueError, match=r".*"):
            parse_topic_id(senseless)
