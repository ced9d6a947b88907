"""The chosen replica has the most data that is still valid."""

from __future__ import annotations

import pytest

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.log_files import PartitionLog
from tidelog.pipeline.segments.visible import choose_replicas
from tidelog.records.aborted import AbortedTransaction


def replica(
    directory: str,
    high_watermark: int,
    epochs: tuple[tuple[int, int], ...] = ((0, 0),),
    *,
    stable: int | None = None,
    start: int = 0,
    topic_id: str | None = "id",
) -> PartitionLog:
    return PartitionLog(
        "t",
        topic_id,
        0,
        directory,
        start,
        high_watermark,
        high_watermark if stable is None else stable,
        epochs,
        (),
    )


def test_the_replica_with_the_newest_state_is_read() -> None:
    [chosen] = choose_replicas([replica("a", 10), replica("b", 12), replica("c", 11)])
    assert chosen.directory == "b"


def test_a_new_leader_whose_checkpoint_is_older_does_not_hide_committed_records() -> None:
    [chosen] = choose_replicas([replica("new", 900, ((4, 0), (5, 1000))), replica("old", 1000, ((4, 0),))])
    assert (chosen.directory, chosen.end_offset) == ("old", 1000)


def test_after_an_unclean_election_the_newest_epoch_counts() -> None:
    old = replica("old", 1000, ((4, 0),))
    new = replica("new", 960, ((4, 0), (5, 950)))
    [chosen] = choose_replicas([old, new])
    assert (chosen.directory, chosen.end_offset) == ("new", 960)


def test_records_lost_in_an_unclean_election_are_not_read_even_if_the_new_leader_has_less() -> None:
    old = replica("old", 1000, ((4, 0),), stable=990)
    new = replica("new", 900, ((4, 0), (5, 950)))
    [chosen] = choose_replicas([old, new])
    assert (chosen.directory, chosen.high_watermark, chosen.last_stable_offset) == ("old", 950, 950)


def test_among_equal_replicas_the_one_with_the_lowest_start_is_read() -> None:
    [chosen] = choose_replicas([replica("late", 10, start=5), replica("early", 10, start=2)])
    assert chosen.directory == "early"


def test_topics_that_only_share_the_name_are_refused() -> None:
    with pytest.raises(
        PipelineError, match=r"t-0 belongs to several topics of the same name: a \(topic id x\)"
    ):
        choose_replicas([replica("a", 10, topic_id="x"), replica("b", 12, topic_id="y")])


def test_without_any_checkpoint_it_is_refused_or_empty() -> None:
    unknown = replica("a", -1, stable=3, start=3)
    with pytest.raises(PipelineError, match="no checkpoint says how far t-0 in a is committed"):
        choose_replicas([unknown])
    [empty] = choose_replicas([unknown], unknown_is_empty=True)
    assert (empty.start_offset, empty.end_offset) == (3, 3)
    [other] = choose_replicas([unknown, replica("b", 5)])
    assert other.directory == "b"


def test_epochs_and_aborts_of_a_range() -> None:
    log = PartitionLog(
        "t", None, 0, "d", 0, 100, 100, ((1, 0), (3, 40), (4, 90)), (), (AbortedTransaction(7, 10, 20, 21),)
    )
    assert log.epochs_of(0, 100) == [[1, 0], [3, 40], [4, 90]]
    assert log.epochs_of(45, 90) == [[3, 45]]
    assert log.epochs_of(39, 41) == [[1, 39], [3, 40]]
    assert log.epochs_of(50, 50) == []
    assert log.aborted_in(20, 21) and not log.aborted_in(21, 99) and not log.aborted_in(0, 10)
