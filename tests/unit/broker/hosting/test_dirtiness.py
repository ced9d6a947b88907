"""The part of a log that is dirty, the limit of cleaning, and the time when cleaning is due."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerlab.logs import OwnedLog, append, make_batch, make_marker, open_log
from tidelog.broker.hosting.log_cleaner import Dirtiness, dirtiness
from tidelog.broker.log.cleaning.cleaning_job import SourceSegment
from tidelog.broker.log.cleaning.worker import group_segments
from tidelog.settings.topic_settings import TopicSettings

NOW_MS = 10_000_000
COMPACT = TopicSettings(cleanup_policy=("compact",))


@pytest.fixture
def log(tmp_path: Path) -> OwnedLog:
    """Offsets 0 to 9, 10 to 19 and 20 to 29 in three segments of equal size, an hour apart; 30 in the active
    one.
    """
    log = open_log(tmp_path / "t-0")
    for hour in range(3):
        append(log, make_batch(log.log_end_offset, 10, timestamp=NOW_MS - (3 - hour) * 3_600_000))
        log.roll(NOW_MS)
    append(log, make_batch(30, 1, timestamp=NOW_MS))
    return log


def found(log: OwnedLog, stable: int = 31, **settings: int) -> Dirtiness:
    return dirtiness(log, TopicSettings(cleanup_policy=("compact",), **settings), stable, NOW_MS)


def test_all_but_the_active_segment_of_a_log_that_was_never_cleaned(log: OwnedLog) -> None:
    dirt = found(log)
    assert dirt[:2] == (0, 30)
    assert (dirt.clean_bytes, dirt.ratio) == (0, 1.0)


def test_clean_bytes_lower_the_ratio(log: OwnedLog) -> None:
    log.clean_offset = 20
    dirt = found(log)
    assert dirt[:2] == (20, 30)
    assert dirt.ratio == pytest.approx(1 / 3)
    assert dirt.is_due(0.3)
    assert not dirt.is_due(0.5)


def test_a_log_without_anything_dirty_is_never_due(log: OwnedLog) -> None:
    log.clean_offset = 30
    dirt = found(log, max_compaction_lag_ms=1)
    assert dirt.dirty_bytes == 0
    assert not dirt.is_due(0.0)


def test_cleaning_stops_at_the_last_stable_offset(log: OwnedLog) -> None:
    assert found(log, stable=20)[:2] == (0, 20)
    assert found(log, stable=15)[:2] == (0, 10), "cleaning stops at the beginning of the segment"
    assert found(log, stable=5)[:2] == (0, 0)


def test_records_younger_than_min_lag_are_not_cleaned(log: OwnedLog) -> None:
    assert found(log, min_compaction_lag_ms=5_400_000)[:2] == (0, 20)
    assert found(log, min_compaction_lag_ms=9 * 3_600_000)[:2] == (0, 0)


def test_records_older_than_max_lag_are_due_at_any_ratio(log: OwnedLog) -> None:
    log.clean_offset = 20
    assert not found(log, max_compaction_lag_ms=3_700_000).is_due(0.9)
    assert found(log, max_compaction_lag_ms=3_500_000).is_due(0.9)


@pytest.mark.parametrize("clean_offset", [-1, 4, 32])
def test_an_impossible_checkpoint_is_ignored(log: OwnedLog, clean_offset: int) -> None:
    log.clean_offset = clean_offset
    log.increment_log_start_offset(10)
    assert found(log).first_dirty_offset == 10


def test_truncation_lowers_the_clean_offset(log: OwnedLog) -> None:
    log.clean_offset = 30
    log.truncate_to(20, NOW_MS)
    assert log.clean_offset == 20


def test_an_open_transaction_holds_cleaning_back(log: OwnedLog) -> None:
    log.roll(NOW_MS)
    append(log, make_batch(31, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True))
    log.roll(NOW_MS)
    append(log, make_batch(32))
    log.roll(NOW_MS)
    unstable = log.producer_state.first_unstable_offset
    assert unstable == 31
    assert found(log, stable=unstable).first_uncleanable_offset == 31
    append(log, make_marker(33, is_commit=True, producer_id=5))
    log.producer_state.on_high_watermark(34)
    assert found(log, stable=34).first_uncleanable_offset == 33


def test_adjacent_segments_share_a_segment_if_they_fit() -> None:
    def segment(base: int, size: int, end: int | None = None) -> SourceSegment:
        return SourceSegment(base, base + 10 if end is None else end, size, 8, 12)

    segments = [segment(0, 40), segment(10, 40), segment(20, 40), segment(30, 0), segment(40, 100)]
    groups = group_segments(segments, 100, 1 << 20, 50)
    assert [[s.base_offset for s in group] for group in groups] == [[0, 10], [20, 30], [40]]
    assert len(group_segments(segments, 1 << 30, 20, 50)) == 5, "the time index would be too large"
    far = [segment(0, 1), segment(10, 1, 2**31), segment(2**31, 1)]
    groups = group_segments(far, 100, 1 << 20, 2**31 + 9)
    assert [[s.base_offset for s in group] for group in groups] == [[0, 10], [2**31]], "offsets fit"
