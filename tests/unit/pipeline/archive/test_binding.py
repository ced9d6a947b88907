"""Checkpoint, table and archive must belong together, without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.checkpoint import (
    Binding,
    CheckpointState,
    TableState,
    changed_topics,
    plan_run,
    read_binding,
    write_binding,
)
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.tables.ledger import CommitEntry, RangeEntry
from tidelog.pipeline.tables.stored_files import StoredDirectory

SPEC = ArchiveSpec("flights", "127.0.0.1:1", "/tables/flights", "/checkpoints/flights", topics=("a", "b"))
NO_TABLE = TableState(exists=False)
NEW = CheckpointState(None, -1, -1)


def entry(batch_id: int, end: int, epoch: int = 3) -> CommitEntry:
    taken = RangeEntry(
        "a", "id-a", 0, end - 10, end, end - 10, end - 1, 10, 0, "1", "2", ((epoch, end - 10),)
    )
    return CommitEntry("flights", batch_id, ("x",), (taken,))


def table(*batches: int) -> TableState:
    return TableState(True, "flights", "raw", tuple(entry(batch, 10 * (batch + 1)) for batch in batches))


def bound(planned: int, done: int, first_batch: int = 0, **changes: str) -> CheckpointState:
    binding = Binding("flights", "/tables/flights", first_batch, {"a": "id-a"})
    return CheckpointState(replace(binding, **changes), planned, done)  # type: ignore[arg-type]


def test_a_first_run_begins_as_the_spec_says() -> None:
    plan = plan_run(SPEC, NEW, NO_TABLE)
    assert (plan.binding.first_batch, plan.starting) == (0, None)


def test_after_a_lost_checkpoint_the_archive_continues_where_the_table_ends() -> None:
    plan = plan_run(SPEC, NEW, table(0, 1, 2))
    assert (plan.binding.first_batch, plan.starting) == (3, {TopicPartition("a", 0): 30})
    assert plan.binding.topics == {"a": "id-a"}


@pytest.mark.parametrize(
    ("planned", "done", "batches"), [(-1, -1, ()), (0, -1, ()), (2, 1, (0, 1)), (2, 1, (0, 1, 2))]
)
def test_a_killed_run_continues(planned: int, done: int, batches: tuple[int, ...]) -> None:
    assert plan_run(SPEC, bound(planned, done), table(*batches)).starting is None


def test_a_new_checkpoint_counts_on_from_the_tables_batches() -> None:
    assert plan_run(SPEC, bound(1, 0, first_batch=3), table(0, 1, 2, 3)).starting is None
    killed_before_it_planned = plan_run(SPEC, bound(-1, -1, first_batch=3), table(0, 1, 2))
    assert killed_before_it_planned.starting == {TopicPartition("a", 0): 30}


@pytest.mark.parametrize(
    ("checkpoint", "state", "message"),
    [
        (CheckpointState(None, 3, 2), NO_TABLE, "belongs to another streaming query"),
        (NEW, TableState(exists=True), "not the table of an archive: name another path"),
        (NEW, TableState(True, "weather", "raw"), "belongs to archive 'weather'"),
        (NEW, TableState(True, "flights", "json"), "holds json values, but raw was requested"),
        (bound(1, 1, archive="weather"), table(0, 1), "belongs to archive 'weather'"),
        (bound(1, 1, table="/tables/else"), table(0, 1), "belongs to the table at /tables/else"),
        (bound(2, 2), table(0, 1), "ends with batch 1, but its checkpoint has done 2"),
        (bound(2, 2), NO_TABLE, "is gone, but its checkpoint has done 2"),
        (bound(1, 1), table(0, 1, 2), "is at batch 2, but checkpoint /checkpoints/flights is only at 1"),
    ],
)
def test_runs_that_would_lose_or_duplicate_records_are_refused(
    checkpoint: CheckpointState, state: TableState, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        plan_run(SPEC, checkpoint, state)


def test_a_topic_that_is_no_longer_requested_is_named() -> None:
    with pytest.raises(PipelineError, match="contains topic 'a', which was not requested"):
        plan_run(replace(SPEC, topics=("b",)), bound(1, 1), table(0, 1))


def test_a_topic_is_left_out_by_a_new_checkpoint() -> None:
    plan = plan_run(replace(SPEC, topics=("b",)), NEW, table(0, 1))
    assert (plan.binding.topics, plan.binding.first_batch, plan.starting) == ({}, 2, None)


def test_a_topic_created_again_has_another_id() -> None:
    assert changed_topics({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9"}) == {"b": ("2", "9")}


def test_a_binding_is_read_as_it_was_written(tmp_path: Path) -> None:
    directory = StoredDirectory(str(tmp_path / "checkpoint"))
    assert read_binding(directory) is None
    binding = Binding("flights", "/tables/flights", 7, {"a": "id"})
    write_binding(directory, binding)
    assert read_binding(directory) == binding
    (tmp_path / "checkpoint" / "tidelog-archive.json").write_text("{}")
    with pytest.raises(PipelineError, match="is damaged"):
        read_binding(directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a b"}, "is not a valid archive name"),
        ({"topics": ()}, "name the topics"),
        ({"pattern": "x"}, "not both"),
        ({"event_date_field": "day"}, "raw values have no fields"),
        ({"quarantine_topic": "b"}, "would be archived again and again"),
        ({"max_offsets_per_trigger": 0}, "at least one record"),
    ],
)
def test_a_contradictory_spec_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        replace(SPEC, **changes)  # type: ignore[arg-type]
