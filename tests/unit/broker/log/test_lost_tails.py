"""After an unclean stop, a broker knows which replicas may have lost records and which certainly did."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerlab.logs import OwnedLog, append_batches
from tidelog.broker.log.directory_files import read_meta_properties
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.log_directory import LogDirectory, find_lost_tails
from tidelog.broker.log.previous_life import Life, is_log_suspect, life_of
from tidelog.model.topics import TopicPartition

ONE = TopicPartition("one", 0)
TWO = TopicPartition("two", 1)
ID = uuid.UUID("26b44a9a-c3ff-4bd9-8c95-4b2a3a4bc9b0")
CONFIG = LogConfig()
RECORDS = 20


def open_directory(path: Path) -> LogDirectory:
    return LogDirectory.open(path, cluster_id="abc", node_id=3)


def killed_directory(path: Path, high_watermark: int = 0) -> Path:
    """Creates two partitions as a killed process leaves them. Returns the segment of the first one."""
    directory = open_directory(path)
    for partition in (ONE, TWO):
        append_batches(OwnedLog(directory.open_partition(partition, ID, CONFIG, now_ms=0)), RECORDS)
    directory.checkpoint_high_watermarks({ONE: high_watermark, TWO: high_watermark})
    directory.abandon()
    return path / "one-0" / f"{0:020d}.log"


def lost_tails(directory: LogDirectory) -> tuple[TopicPartition, ...]:
    return find_lost_tails(directory, CONFIG, threads=2, now_ms=0)


def test_a_killed_process_loses_no_records(tmp_path: Path) -> None:
    killed_directory(tmp_path, high_watermark=RECORDS)
    directory = open_directory(tmp_path)
    assert lost_tails(directory) == ()
    log = OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0))
    assert log.log_end_offset == RECORDS
    directory.close()
    assert open_directory(tmp_path).was_clean


def cut_within_the_last_batch(content: bytearray) -> None:
    del content[-3:]


def cut_batches_off(content: bytearray) -> None:
    del content[len(content) // 2 :]


def flip_a_bit_in_the_middle(content: bytearray) -> None:
    content[len(content) // 2] ^= 1


def flip_a_bit_at_the_end(content: bytearray) -> None:
    content[-1] ^= 1


@pytest.mark.parametrize(
    ("damage", "high_watermark", "has_lost"),
    [
        (cut_within_the_last_batch, RECORDS - 1, False),  # the lost batch was not acknowledged
        (cut_within_the_last_batch, RECORDS, True),
        (cut_batches_off, RECORDS, True),
        (flip_a_bit_in_the_middle, 0, True),
        (flip_a_bit_at_the_end, 0, True),
    ],
)
def test_replicas_that_lost_records_are_found(
    tmp_path: Path, damage: Callable[[bytearray], None], high_watermark: int, has_lost: bool
) -> None:
    segment = killed_directory(tmp_path, high_watermark)
    content = bytearray(segment.read_bytes())
    damage(content)
    segment.write_bytes(content)
    directory = open_directory(tmp_path)
    assert lost_tails(directory) == ((ONE,) if has_lost else ())
    log = OwnedLog(directory.open_partition(ONE, ID, CONFIG, now_ms=0))
    assert log.log_end_offset < RECORDS
    assert log.cut_at_opening is None, "the log was recovered before"
    directory.close()


def test_lost_records_are_reported_until_a_controller_acts(tmp_path: Path) -> None:
    """The first recovery cuts the log, so the next start must report the loss again."""
    segment = killed_directory(tmp_path)
    content = bytearray(segment.read_bytes())
    flip_a_bit_in_the_middle(content)
    segment.write_bytes(content)
    directory = open_directory(tmp_path)
    assert lost_tails(directory) == (ONE,)
    directory.abandon()  # killed before it registered
    directory = open_directory(tmp_path)
    assert lost_tails(directory) == (ONE,)
    directory.close()  # stopped cleanly before it registered
    directory = open_directory(tmp_path)
    assert directory.was_clean
    assert lost_tails(directory) == (ONE,)
    directory.remember(life_of(directory.meta)._replace(lost_tails=()))
    directory.close()
    assert lost_tails(open_directory(tmp_path)) == ()


def test_a_failed_start_keeps_a_clean_directory_clean(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.remember(Life(1, 7, "earlier boot"))
    directory.close(broker_epoch=7)
    open_directory(tmp_path).close()  # for example because an address was in use
    again = open_directory(tmp_path)
    assert (again.was_clean, again.previous_broker_epoch, again.is_suspect) == (True, 7, False)


def test_logs_of_a_clean_directory_are_not_read(tmp_path: Path) -> None:
    segment = killed_directory(tmp_path)
    directory = open_directory(tmp_path)
    lost_tails(directory)
    directory.close()
    segment.write_bytes(b"\0" * 100)
    assert lost_tails(open_directory(tmp_path)) == ()


def test_recovered_replicas_that_are_not_expected_are_strays(tmp_path: Path) -> None:
    killed_directory(tmp_path)
    directory = open_directory(tmp_path)
    lost_tails(directory)
    assert directory.remove_strays([ONE]) == [TWO]


@pytest.mark.parametrize(
    ("marker_epoch", "boot_id", "is_suspect"),
    [
        (7, "boot-1", False),
        (7, "boot-2", False),
        (None, "boot-1", False),  # the process died, but not the machine
        (None, "boot-2", True),
        (6, "boot-2", True),  # the marker of another run
        (6, "boot-1", False),
        (None, "", True),
    ],
)
def test_is_log_suspect(marker_epoch: int | None, boot_id: str, is_suspect: bool) -> None:
    assert is_log_suspect(Life(5, 7, "boot-1"), marker_epoch, boot_id) is is_suspect


def test_an_empty_directory_is_suspect() -> None:
    """The broker may have had records that its new, empty disk lacks."""
    assert is_log_suspect(Life(), None, "boot-1")
    assert is_log_suspect(Life(), -1, "boot-1")


def test_a_life_is_kept_in_meta_properties(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    assert life_of(directory.meta) == Life()
    life = Life(2**62, 12, "b", (TWO, TopicPartition("a.b_c-1", 0)))
    directory.remember(life)
    directory.close()
    meta = read_meta_properties(tmp_path)
    assert meta is not None
    assert (life_of(meta), meta.cluster_id, meta.node_id) == (life, "abc", 3)
    assert meta.directory_id == directory.meta.directory_id
