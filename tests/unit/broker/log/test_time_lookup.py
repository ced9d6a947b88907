"""Lookups by time find the first record at or after a time, and the first with the greatest timestamp, across
segments and codecs.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from brokerlab.logs import append, make_batch, open_log
from tidelog.broker.log.log_config import LogConfig

BATCHES = st.lists(
    st.tuples(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.sampled_from([0, 1, 2, 3, 4])),
    min_size=1,
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(batches=BATCHES, start=st.integers(0, 10), interval=st.sampled_from([0, 300]))
def test_a_lookup_finds_the_same_record_as_a_scan(
    tmp_path_factory: object, batches: list[tuple[list[int], int]], start: int, interval: int
) -> None:
    directory: Path = tmp_path_factory.mktemp("log")  # type: ignore[attr-defined]
    log = open_log(directory, LogConfig(segment_bytes=900, index_interval_bytes=interval))
    records: list[tuple[int, int]] = []
    for timestamps, codec in batches:
        first = log.log_end_offset
        append(log, make_batch(first, timestamps=timestamps, compression=codec))
        records += list(enumerate(timestamps, first))
    for timestamp in range(-1, 63):
        found = log.offset_for_timestamp(timestamp)
        expected = next(((offset, time) for offset, time in records if time >= timestamp), None)
        assert (found and found[:2]) == expected
    last_of_batches = [(last, max(times)) for last, times in _ends_of(batches)]
    for offset in range(log.log_end_offset + 1):
        found = log.batch_timestamp(offset)
        expected = next((batch for batch in last_of_batches if batch[0] >= offset), None)
        assert (found and found[:2]) == expected
    greatest = max(time for _, time in records)
    found = log.max_timestamp_offset()
    assert found is not None
    assert found[:2] == next((offset, time) for offset, time in records if time == greatest)
    log.increment_log_start_offset(min(start, log.log_end_offset))
    for timestamp in (0, 20, 40):
        found = log.offset_for_timestamp(timestamp)
        expected = next(
            ((offset, time) for offset, time in records if time >= timestamp and offset >= start), None
        )
        assert (found and found[:2]) == expected
    log.close()


def _ends_of(batches: list[tuple[list[int], int]]) -> list[tuple[int, list[int]]]:
    """Returns the last offset and the timestamps of each batch."""
    lasts = accumulate(len(times) for times, _ in batches)
    return [(last - 1, times) for last, (times, _) in zip(lasts, batches, strict=True)]


def test_an_empty_log_has_no_timestamps(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None
    assert log.batch_timestamp(0) is None


def test_the_epoch_is_that_of_the_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, make_batch(0, timestamp=5, leader_epoch=3))
    append(log, make_batch(1, timestamp=6, leader_epoch=4))
    assert log.offset_for_timestamp(6) == (1, 6, 4)
    assert log.max_timestamp_offset() == (1, 6, 4)
