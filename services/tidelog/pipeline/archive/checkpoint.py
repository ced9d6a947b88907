"""Reads a streaming query's checkpoint (planned and completed batches and their offsets), and decides whether
a run may continue with its checkpoint and table, and from which offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidelog.model.text import JsonObject
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.spec import ArchiveSpec, Offsets, Ranges, parse_offsets, ranges_between
from tidelog.pipeline.archive.survey import next_offsets
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.tables.ledger import CommitEntry
from tidelog.pipeline.tables.stored_files import StoredDirectory, absolute

BINDING_FILE: Final = "tidelog-archive.json"
BINDING_FORMAT: Final = 1
NONE_YET: Final = -1


@dataclass(frozen=True, slots=True)
class Binding:
    """The archive, table and topics that a checkpoint belongs to. Batch n of the checkpoint is batch
    `first_batch + n` of the table, because a new checkpoint continues the table's numbers.
    """

    archive: str
    table: str
    first_batch: int
    topics: Mapping[str, str] = field(default_factory=dict)
    """Names and ids of the topics seen so far."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": BINDING_FORMAT,
                "archive": self.archive,
                "table": self.table,
                "first_batch": self.first_batch,
                "topics": dict(self.topics),
            }
        )


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """`planned` and `done` are the numbers of the newest batches, or -1 if there is none."""

    binding: Binding | None
    planned: int
    done: int


@dataclass(frozen=True, slots=True)
class TableState:
    """If `exists` is set without an archive, the table belongs to another application."""

    exists: bool
    archive: str | None = None
    values: str | None = None
    ledger: tuple[CommitEntry, ...] = ()

    @property
    def last_batch(self) -> int:
        return max((entry.batch_id for entry in self.ledger), default=NONE_YET)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """`starting` holds the exact offsets of a first run that continues where the table ends. With None, the
    run starts as the spec says.
    """

    binding: Binding
    starting: dict[TopicPartition, int] | None


def read_binding(checkpoint: StoredDirectory) -> Binding | None:
    text = checkpoint.read(BINDING_FILE)
    if text is None:
        return None
    try:
        body: JsonObject = json.loads(text)
        if body["format"] != BINDING_FORMAT:
            raise PipelineError(
                f"{checkpoint.path} was made by another release: use the release that made it"
            )
        return Binding(body["archive"], body["table"], int(body["first_batch"]), body["topics"])
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"{checkpoint.path}/{BINDING_FILE} is damaged: {error!r}") from error


def write_binding(checkpoint: StoredDirectory, binding: Binding) -> None:
    checkpoint.write(BINDING_FILE, binding.to_json())


def plan_run(spec: ArchiveSpec, checkpoint: CheckpointState, table: TableState) -> RunPlan:
    """Returns the plan of a run. Raises PipelineError if continuing would lose or duplicate records."""
    _check_table(spec, table)
    binding = checkpoint.binding
    if binding is None:
        if checkpoint.planned != NONE_YET:
            raise PipelineError(
                f"checkpoint {spec.checkpoint} belongs to another streaming query: give this archive its "
                "own checkpoint"
            )
        topics = _topics_of(spec, table.ledger)
        binding = Binding(spec.name, absolute(spec.table), table.last_batch + 1, topics)
        return RunPlan(binding, _ends_of(spec, table.ledger) or None)
    _check_binding(spec, binding)
    _check_position(spec, checkpoint, binding, table)
    if checkpoint.planned == NONE_YET and table.ledger:
        # The checkpoint is bound, but the process was killed before it planned its first batch.
        return RunPlan(binding, _ends_of(spec, table.ledger) or None)
    return RunPlan(replace(binding, topics={**_topics_of(spec, table.ledger), **binding.topics}), None)


def changed_topics(known: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Returns the topics that were deleted and created again: name -> both ids."""
    return {
        name: (topic_id, now[name])
        for name, topic_id in known.items()
        if name in now and now[name] != topic_id
    }


def recreated_error(name: str, before: str, now: str) -> PipelineError:
    return PipelineError(
        f"topic '{name}' was deleted and created again (its id was {before}, it is {now} now): its offsets "
        "begin again, so the archive of the old topic ends here; archive the new topic under another name "
        "into another table"
    )


def deleted_error(name: str) -> PipelineError:
    return PipelineError(
        f"topic '{name}' was deleted; its archived records are in the table. To continue with the other "
        "topics, "
        "leave it out and start from a new checkpoint; the run continues where the table's ledger ends"
    )


def _check_table(spec: ArchiveSpec, table: TableState) -> None:
    if not table.exists:
        return
    if table.archive is None:
        raise PipelineError(f"{spec.table} is a table, but not the table of an archive: name another path")
    if table.archive != spec.name:
        raise PipelineError(
            f"{spec.table} belongs to archive '{table.archive}', but this is '{spec.name}': name another "
            "path, "
            f"or continue that archive by its name"
        )
    if table.values != spec.value_format.kind.value:
        raise PipelineError(
            f"{spec.table} holds {table.values} values, but {spec.value_format.kind.value} was requested: "
            "a table keeps its format; name another path and another archive"
        )


def _check_binding(spec: ArchiveSpec, binding: Binding) -> None:
    if binding.archive != spec.name:
        raise PipelineError(
            f"checkpoint {spec.checkpoint} belongs to archive '{binding.archive}', but this is "
            f"'{spec.name}': "
            "give each archive its own checkpoint"
        )
    if binding.table != absolute(spec.table):
        raise PipelineError(
            f"checkpoint {spec.checkpoint} belongs to the table at {binding.table}, not to {spec.table}: "
            "name that table, or another checkpoint"
        )
    dropped = sorted(name for name in binding.topics if not spec.matches(name))
    if dropped:
        raise PipelineError(
            f"checkpoint {spec.checkpoint} contains topic '{dropped[0]}', which was not requested this time: "
            "start from a new checkpoint; the run continues where the table's ledger ends"
        )


def _check_position(
    spec: ArchiveSpec, checkpoint: CheckpointState, binding: Binding, table: TableState
) -> None:
    done = binding.first_batch + checkpoint.done if checkpoint.done != NONE_YET else binding.first_batch - 1
    planned = binding.first_batch + checkpoint.planned if checkpoint.planned != NONE_YET else done
    if table.last_batch < done:
        have = f"ends with batch {table.last_batch}" if table.exists else "is gone"
        raise PipelineError(
            f"the table at {spec.table} {have}, but its checkpoint has done {done}: was it restored or "
            "deleted? "
            "Start from a new checkpoint; the run continues where the table's ledger ends"
        )
    if table.last_batch > planned:
        raise PipelineError(
            f"the table at {spec.table} is at batch {table.last_batch}, but checkpoint {spec.checkpoint} "
            "is only at "
            f"{planned}: use the checkpoint that is further ahead, or a new one"
        )


def _topics_of(spec: ArchiveSpec, ledger: tuple[CommitEntry, ...]) -> dict[str, str]:
    """Returns the checkpoint's topics that the spec still includes."""
    found = {each.topic: each.topic_id for entry in ledger for each in entry.ranges}
    return {name: topic_id for name, topic_id in found.items() if spec.matches(name)}


def _ends_of(spec: ArchiveSpec, ledger: tuple[CommitEntry, ...]) -> dict[TopicPartition, int]:
    offsets = next_offsets(ledger).items()
    return {place: each.offset for place, each in offsets if spec.matches(place.topic)}


OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
FIRST_OFFSETS: Final = "sources/0/0"


def checkpoint_state(checkpoint: StoredDirectory) -> CheckpointState:
    """Returns the state of the checkpoint. Raises PipelineError."""
    return CheckpointState(
        read_binding(checkpoint), _newest(checkpoint, OFFSETS), _newest(checkpoint, COMMITS)
    )


def planned_ranges(checkpoint: StoredDirectory, batch: int) -> Ranges:
    """Returns the ranges that Spark recorded before it began the batch. Raises PipelineError."""
    end = _offsets(checkpoint, f"{OFFSETS}/{batch}")
    start = _offsets(checkpoint, f"{OFFSETS}/{batch - 1}" if batch else FIRST_OFFSETS)
    if batch and (first := checkpoint.read(FIRST_OFFSETS)):
        start = parse_offsets(first) | start
    return ranges_between(start, end)


def _offsets(checkpoint: StoredDirectory, name: str) -> Offsets:
    text = checkpoint.read(name)
    if text is None:
        raise PipelineError(
            f"{checkpoint.path}/{name} is missing: the checkpoint is damaged, start from a new one"
        )
    return parse_offsets(text)


def _newest(checkpoint: StoredDirectory, directory: str) -> int:
    numbers = [int(name) for name in checkpoint.names(directory) if name.isdecimal()]
    return max(numbers, default=NONE_YET)
