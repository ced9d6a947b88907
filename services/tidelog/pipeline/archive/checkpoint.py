"""Reads a streaming query's checkpoint: the planned batches, the completed batches and their offsets."""

from __future__ import annotations

from typing import Final

from tidelog.pipeline.archive.binding import NONE_YET, CheckpointState, read_binding
from tidelog.pipeline.archive.source_offsets import Offsets, Ranges, parse_offsets, ranges_between
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.stored_files import StoredDirectory

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
