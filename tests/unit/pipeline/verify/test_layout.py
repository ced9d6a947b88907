"""The ledger's layout in pieces and bins, the comparison of epochs, and groups, without Spark."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tidelog.pipeline.tables.ledger import CommitEntry, RangeEntry
from tidelog.pipeline.verify.judge import topic_uuid
from tidelog.pipeline.verify.log_reader import Divergence, LogExtent, divergences, epoch_at
from tidelog.pipeline.verify.pieces import Piece, bins_of, groups_of, layout_of
from tidelog.pipeline.verify.verdict import offsets_text

TOPIC_ID = "6f1f5c3e-8d0a-4f52-9d7e-2f0c4f8f3a11"


def taken(start: int, end: int, partition: int = 0) -> RangeEntry:
    return RangeEntry("t", TOPIC_ID, partition, start, end, start, end - 1, end - start, 0, "0", "0")


def commit(batch_id: int, *ranges: RangeEntry, archive: str = "a") -> CommitEntry:
    return CommitEntry(archive, batch_id, ("x",), ranges)


def test_adjacent_ranges_have_no_problem() -> None:
    layout = layout_of([commit(1, taken(5, 9)), commit(0, taken(0, 5), taken(3, 4, partition=1))])
    assert [(p.partition, p.start, p.end) for p in layout.pieces] == [(0, 0, 5), (0, 5, 9), (1, 3, 4)]
    assert layout.problems == ()
    assert layout.spans() == {("t", 0): (0, 9), ("t", 1): (3, 4)}


def test_an_empty_range_has_no_pieces() -> None:
    assert layout_of([commit(0, taken(5, 5))]).pieces == ()


def test_a_gap_is_a_piece_and_a_problem() -> None:
    layout = layout_of([commit(0, taken(0, 5)), commit(2, taken(8, 9))])
    assert [(p.start, p.end, p.entry is None) for p in layout.pieces] == [
        (0, 5, False),
        (5, 8, True),
        (8, 9, False),
    ]
    assert [p.text for p in layout.problems] == ["t-0: no ledger entry covers offsets 5-7"]


def test_overlaps_name_both_batches() -> None:
    layout = layout_of(
        [commit(0, taken(0, 10)), commit(1, taken(12, 14)), commit(7, taken(8, 12), archive="b")]
    )
    assert [p.text for p in layout.problems] == [
        "t-0: offsets 8-9 were archived twice, by batch 0 of archive a and by batch 7 of archive b"
    ]
    groups = groups_of(layout.pieces, {("t", 0): LogExtent(3, 13, None, is_compacted=False)})
    assert [(g.start, g.end, g.log_start, g.log_end, len(g.pieces)) for g in groups] == [
        (0, 12, 3, 12, 2),
        (12, 14, 12, 13, 1),
    ]


def test_a_range_within_another_overlaps_too() -> None:
    layout = layout_of([commit(0, taken(0, 10)), commit(1, taken(2, 3)), commit(2, taken(5, 6))])
    assert [p.kind for p in layout.problems] == ["overlap", "overlap"]
    assert [len(g.pieces) for g in groups_of(layout.pieces, {})] == [3]


def test_two_topics_of_one_name_are_reported() -> None:
    other = replace(taken(5, 9), topic_id="00000000-0000-4000-8000-000000000001")
    assert [p.kind for p in layout_of([commit(0, taken(0, 5)), commit(1, other)]).problems] == ["recreated"]


def test_a_log_that_ends_before_or_begins_after_a_group_has_none_of_it() -> None:
    pieces = layout_of([commit(0, taken(5, 10))]).pieces
    for start, end in ((10, 12), (0, 5), (12, 12), (0, 0)):
        extent = LogExtent(start, end, None, is_compacted=False)
        assert groups_of(pieces, {("t", 0): extent})[0].is_gone
    assert groups_of(pieces, {})[0].is_gone
    whole = groups_of(pieces, {("t", 0): LogExtent(5, 10, None, is_compacted=False)})[0]
    assert whole.is_whole
    assert not whole.is_gone


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=40), st.integers(0, 2**40))
def test_each_offset_is_in_one_bin_of_its_piece(lengths: list[int], start: int) -> None:
    pieces: list[Piece] = []
    for length in lengths:
        pieces.append(Piece(len(pieces), "t", 0, start, start + length, None))
        start += length
    shift, bins = bins_of(pieces)
    assert len(bins) <= 6 * len(pieces)
    for piece in pieces:
        for offset in {piece.start, piece.end - 1, (piece.start + piece.end) // 2}:
            found = [b.piece for b in bins if b.bin == offset >> shift and b.start <= offset < b.end]
            assert found == [piece.index]


def test_epochs_are_compared_where_both_are_known() -> None:
    assert divergences([(0, 0), (2, 10)], 0, 20, [(0, 0), (2, 10)]) == []
    assert divergences([(2, 5)], 5, 10, [(0, 0), (2, 4)]) == []
    assert divergences([(0, 0), (2, 10)], 0, 20, [(0, 0), (3, 8)]) == [
        Divergence(8, 10, 0, 3),
        Divergence(10, 20, 2, 3),
    ]
    assert divergences([], 0, 20, [(0, 0)]) == []
    assert divergences([(1, 0)], 0, 20, [(2, 15)]) == [Divergence(15, 20, 1, 2)]
    assert epoch_at([(4, 3)], 2) is None


def test_ids_are_read_in_both_forms() -> None:
    assert topic_uuid("bx9cPo0KT1Kdfi8MT486EQ") == topic_uuid(TOPIC_ID)


def test_offsets_are_reported_as_ranges() -> None:
    assert offsets_text([9, 3, 7, 8, 3]) == "3, 7-9"
    assert offsets_text(range(0, 40, 2)).endswith("12, 14, ...")
