"""Each offset of a log holds a record or a hole of some kind."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from brokerlab.memory_log import MemoryBatches, MemoryPartition, batch, example_partition, without
from tidelog.pipeline.verify.evidence import answer_of
from tidelog.pipeline.verify.log_reader import Hole, SeenBatch, count_kinds, holes_of, kinds_at
from tidelog.records.batch import parse_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Compression
from tidelog.records.record import Record


def seen(partition: MemoryPartition) -> list[SeenBatch]:
    opener = MemoryBatches({("t", 0): partition})
    return list(opener.batches("t", 0, partition.start, partition.end))


def test_markers_and_aborted_records_are_holes() -> None:
    holes = list(holes_of(seen(example_partition()), 0, 14))
    assert holes == [Hole(6, 7, "marker"), Hole(7, 9, "abort"), Hole(9, 10, "marker")]
    assert count_kinds(holes) == {"marker": 2, "abort": 2}
    assert kinds_at(holes, {13, 9, 6, 8, 0}) == {6: "marker", 8: "abort", 9: "marker"}


def test_a_range_may_begin_and_end_within_a_batch() -> None:
    assert list(holes_of(seen(example_partition()), 8, 12)) == [Hole(8, 9, "abort"), Hole(9, 10, "marker")]
    assert list(holes_of(seen(example_partition()), 11, 13)) == []


def test_compacted_records_are_holes_between_within_and_after_batches() -> None:
    thinned = without(example_partition(), 0, 1, 2, 3, 10, 12)
    kinds = count_kinds(holes_of(seen(thinned), 0, 16))
    assert kinds == {"marker": 2, "abort": 2, "compaction": 4 + 2 + 2}


def test_a_task_answers_counts_or_kinds() -> None:
    opener = MemoryBatches({("t", 0): example_partition()})
    assert answer_of(opener, [7, "t", 0, 0, 14, []]) == (7, {"marker": 2, "abort": 2})
    assert answer_of(opener, [7, "t", 0, 6, 9, [6, 8]]) == (7, {6: "marker", 8: "abort"})


@given(st.data(), st.sampled_from(list(Compression)))
def test_records_and_holes_are_all_of_a_range(data: st.DataObject, codec: Compression) -> None:
    kept = sorted(data.draw(st.sets(st.integers(0, 60), min_size=1)))
    cuts = sorted(data.draw(st.sets(st.sampled_from(kept))))
    batches: list[SeenBatch] = []
    for low, high in zip([0, *cuts], [*cuts, 61], strict=True):
        offsets = [offset for offset in kept if low <= offset < high]
        if offsets:
            raw = bytes(
                build_batch([Record(at, 0, None, b"v") for at in offsets], base_offset=low, compression=codec)
            )
            batches.append(SeenBatch(parse_header(raw), False, lambda raw=raw: raw))  # type: ignore[misc]
    start = data.draw(st.integers(0, 60))
    end = data.draw(st.integers(start + 1, 61))
    holes = list(holes_of(batches, start, end))
    missing = [at for hole in holes for at in range(hole.start, hole.end)]
    assert missing == [at for at in range(start, end) if at not in kept]


def test_whole_batches_are_not_read() -> None:
    def refuse() -> bytes:
        raise AssertionError("read")

    raw = batch(range(5))
    assert list(holes_of([SeenBatch(parse_header(raw), False, refuse)], 0, 5)) == []
    assert list(holes_of([SeenBatch(parse_header(raw), True, refuse)], 0, 5)) == [Hole(0, 5, "abort")]


def test_the_lab_keeps_the_ends_of_batches_like_compaction() -> None:
    assert parse_header(without(example_partition(), 10).batches[-1][0]).base_offset == 10
    assert replace(example_partition(), start=3).start == 3
