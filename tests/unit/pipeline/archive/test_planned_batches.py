"""The offsets of batches that this process plans, and their record in the checkpoint, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.checkpoint import planned_ranges
from tidelog.pipeline.archive.job import first_offsets, next_ends, offsets_json, run_batches
from tidelog.pipeline.archive.spec import ArchiveSpec, Offsets, Ranges, parse_offsets
from tidelog.pipeline.archive.survey import Survey
from tidelog.pipeline.tables.stored_files import StoredDirectory

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
NOW = Survey({}, {A0: 5, A1: 0}, {A0: 30, A1: 40}, {A0: 20, A1: 40})


def test_a_batch_takes_all_waiting_records_if_they_fit() -> None:
    assert next_ends({A0: 5, A1: 0}, {A0: 20, A1: 40}, 100) == {A0: 20, A1: 40}


def test_otherwise_each_partition_gets_a_share() -> None:
    assert next_ends({A0: 0, A1: 0}, {A0: 30, A1: 90}, 40) == {A0: 10, A1: 30}


def test_a_small_partition_is_not_left_for_ever() -> None:
    assert next_ends({A0: 0, A1: 0}, {A0: 1, A1: 1_000_000}, 10)[A0] == 1


def test_a_new_partition_begins_at_0() -> None:
    assert next_ends({A0: 7}, {A0: 7, B0: 3}, 100) == {A0: 7, B0: 3}


def test_an_end_that_moved_back_is_ignored() -> None:
    assert next_ends({A0: 7}, {A0: 5}, 100) == {A0: 7}


@given(
    st.dictionaries(st.sampled_from([A0, A1, B0]), st.integers(0, 10**12), min_size=1),
    st.integers(1, 10**6),
)
def test_batches_come_to_the_end_and_none_is_too_large(ends: dict[TopicPartition, int], limit: int) -> None:
    position = dict.fromkeys(ends, 0)
    for _ in range(50):
        after = next_ends(position, ends, limit)
        taken = {place: after[place] - position[place] for place in ends}
        assert sum(taken.values()) <= limit + len(ends)
        assert all(count >= 0 for count in taken.values())
        assert all(taken[place] > 0 for place in ends if position[place] < ends[place])
        position = after


def test_the_first_batch_begins_at_the_given_offsets() -> None:
    assert first_offsets("earliest", NOW) == {A0: 5, A1: 0}
    assert first_offsets("latest", NOW) == {A0: 20, A1: 40}
    assert first_offsets({A1: 7}, NOW) == {A0: 5, A1: 7}


def test_written_plans_are_read_like_those_of_spark(tmp_path: Path) -> None:
    assert parse_offsets(offsets_json({A0: 1, A1: 2, B0: 3})) == {A0: 1, A1: 2, B0: 3}
    checkpoint = StoredDirectory(str(tmp_path))
    checkpoint.write("sources/0/0", f"\x00v1\n{offsets_json({A0: 5})}")
    checkpoint.write("offsets/0", f"v1\n{{}}\n{offsets_json({A0: 9, B0: 2})}")
    assert planned_ranges(checkpoint, 0) == {A0: (5, 9), B0: (0, 2)}


@dataclass
class OneLog:
    """A source of one partition whose batches are their ranges."""

    end: int

    def look(self) -> Survey:
        return Survey({}, {A0: 0}, {A0: self.end}, {A0: self.end})

    def next_ends(self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Offsets:
        return next_ends(begin, ends, 4)

    def records(self, ranges: Ranges) -> Any:
        return ranges


def test_latest_means_the_end_when_the_archive_began(tmp_path: Path) -> None:
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    spec = ArchiveSpec("of-a", "127.0.0.1:1", table, checkpoint, topics=("a",))
    source = OneLog(7)
    taken: list[Any] = []
    for end in (7, 13):
        source.end = end
        run_batches(
            source, spec, lambda ranges, batch: taken.append((batch, ranges)), "latest", lambda: False
        )
    assert taken == [(0, {A0: (7, 11)}), (1, {A0: (11, 13)})]
