"""Where batches of a stream over segments begin and end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.log_files import OffsetsMissingError, PartitionLog
from tidelog.pipeline.segments.options import (
    OffsetsOption,
    ends_now,
    from_json,
    initial_offsets,
    next_offsets,
    ranges_between,
    to_json,
)

EARLIEST, LATEST = OffsetsOption(-2), OffsetsOption(-1)


def log(topic: str, partition: int, start: int, end: int) -> PartitionLog:
    return PartitionLog(topic, "id", partition, f"/d/{topic}-{partition}", start, end, end, ((0, 0),), ())


LOGS = [log("a", 0, 5, 105), log("a", 1, 0, 10), log("b", 0, 0, 0)]


def test_the_stream_begins_at_the_given_offsets() -> None:
    assert initial_offsets(LOGS, EARLIEST) == {("a", 0): 5, ("a", 1): 0, ("b", 0): 0}
    assert initial_offsets(LOGS, LATEST) == {("a", 0): 105, ("a", 1): 10, ("b", 0): 0}
    named = OffsetsOption(-2, {("a", 0): 33, ("a", 1): -1})
    assert initial_offsets(LOGS, named) == {("a", 0): 33, ("a", 1): 10}
    with pytest.raises(PipelineError, match="names c-0, which is not in the segments"):
        initial_offsets(LOGS, OffsetsOption(-2, {("c", 0): 1}))


def test_offsets_have_the_connectors_form() -> None:
    offsets = {("a", 10): 3, ("a", 2): 4, ("b", 0): 0}
    assert to_json(offsets) == {"a": {"2": 4, "10": 3}, "b": {"0": 0}}
    assert from_json(to_json(offsets)) == offsets


def test_a_batch_ends_at_the_readable_end() -> None:
    start = initial_offsets(LOGS, EARLIEST)
    assert next_offsets(LOGS, start, ends_now(LOGS, LATEST)) == ends_now(LOGS, LATEST)
    until = ends_now(LOGS, OffsetsOption(-1, {("a", 0): 50}))
    assert next_offsets(LOGS, start, until)[("a", 0)] == 50


def test_a_log_that_appears_shorter_for_a_while_does_not_move_offsets_back() -> None:
    start = {("a", 0): 200, ("a", 1): 10, ("b", 0): 0}
    assert next_offsets(LOGS, start, ends_now(LOGS, LATEST)) == start


def test_new_partitions_are_read_from_their_beginning_only_if_requested() -> None:
    until = ends_now(LOGS, LATEST)
    assert next_offsets(LOGS, {("a", 0): 5}, until) == until
    assert set(next_offsets(LOGS, {("a", 0): 5}, {("a", 0): 105})) == {("a", 0)}


def test_records_deleted_before_they_were_read_stop_the_stream_with_their_range() -> None:
    start = {("a", 0): 2, ("a", 1): 0, ("b", 0): 0}
    with pytest.raises(OffsetsMissingError, match="a-0: offsets 2 to 4 cannot be read"):
        next_offsets(LOGS, start, ends_now(LOGS, LATEST))
    ends = next_offsets(LOGS, start, ends_now(LOGS, LATEST), stops_at_loss=False)
    [first, _] = ranges_between(LOGS, start, ends, stops_at_loss=False)
    assert (first.start, first.end) == (5, 105)
    with pytest.raises(OffsetsMissingError, match="offsets 2 to 4"):
        ranges_between(LOGS, start, ends)


def test_a_deleted_topic_stops_the_stream() -> None:
    with pytest.raises(PipelineError, match="c-0 was read up to offset 7 but is no longer in the segments"):
        next_offsets(LOGS, {("c", 0): 7}, {})
    with pytest.raises(OffsetsMissingError, match="c-0: offsets 7 to 8"):
        ranges_between(LOGS, {("c", 0): 7}, {("c", 0): 9})


def test_a_repeated_batch_whose_end_is_missing_stops_with_its_range() -> None:
    with pytest.raises(OffsetsMissingError, match="a-1: offsets 10 to 11 cannot be read"):
        ranges_between(LOGS, {("a", 1): 3}, {("a", 1): 12})


@given(
    sizes=st.lists(st.integers(0, 500), min_size=1, max_size=8),
    limit=st.integers(1, 300),
)
def test_limited_batches_reach_the_end_and_skip_nothing(sizes: list[int], limit: int) -> None:
    logs = [log("t", number, 3, 3 + size) for number, size in enumerate(sizes)]
    offsets = initial_offsets(logs, EARLIEST)
    read = dict.fromkeys(offsets, 0)
    for _ in range(sum(sizes) + 1):
        ends = next_offsets(logs, offsets, ends_now(logs, LATEST), max_offsets=limit)
        for found in ranges_between(logs, offsets, ends):
            read[found.log.topic, found.log.partition] += found.end - found.start
        taken = sum(ends.values()) - sum(offsets.values())
        assert taken <= limit + len(sizes)  # each partition with records contributes at least one
        if ends == offsets:
            break
        assert taken > 0
        offsets = ends
    assert list(read.values()) == sizes
