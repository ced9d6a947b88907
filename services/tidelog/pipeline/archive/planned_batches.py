"""Plans batches in this process, for sessions of Spark Connect.

With Spark Connect, the function of foreachBatch would run in a process of the server, without the connection
to the cluster, the decoder and the progress, which are in this process. This module therefore plans batches
as Spark does, records them in the form of Spark's checkpoint before they are read, and calls the same
function. A checkpoint can change hands: each of the two ways continues where the other ended.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.binding import NONE_YET
from tidelog.pipeline.archive.checkpoint import (
    COMMITS,
    FIRST_OFFSETS,
    OFFSETS,
    checkpoint_state,
    planned_ranges,
)
from tidelog.pipeline.archive.connector import connector_options
from tidelog.pipeline.archive.source_offsets import Offsets, Ranges, parse_offsets
from tidelog.pipeline.archive.spec import LATEST, ArchiveSpec
from tidelog.pipeline.archive.survey import Survey, survey
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.options import offset_shares
from tidelog.pipeline.stored_files import StoredDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION: Final = "v1"
QUERY_ID: Final = "metadata"
_NO_WATERMARK: Final = 0
_LOOK_S: Final = 0.5


class BatchSource(Protocol):
    """The source from which batches are planned."""

    def look(self) -> Survey: ...

    def next_ends(self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Offsets:
        """Returns the ends of a batch that starts at `begin`. No end exceeds `ends`."""

    def records(self, ranges: Ranges) -> DataFrame:
        """Returns exactly these records, with the Kafka connector's columns."""


def run_batches(
    source: BatchSource,
    spec: ArchiveSpec,
    archive: Callable[[DataFrame, int], None],
    starting: str | Mapping[TopicPartition, int],
    stops: Callable[[], bool],
) -> None:
    """Archives everything that exists when it begins or, with an interval, continues until `stops` returns
    True.
    """
    checkpoint = StoredDirectory(spec.checkpoint)
    state = checkpoint_state(checkpoint)
    now = source.look()
    if checkpoint.read(QUERY_ID) is None:
        # Without this file, Spark would reject the checkpoint later.
        checkpoint.write(QUERY_ID, json.dumps({"id": str(uuid.uuid4())}, separators=(",", ":")))
    if state.planned == NONE_YET and checkpoint.read(FIRST_OFFSETS) is None:
        checkpoint.write(FIRST_OFFSETS, f"\x00{VERSION}\n{offsets_json(first_offsets(starting, now))}")
    elif state.planned > state.done:
        _run(source, archive, checkpoint, state.planned)
    batch = state.planned + 1
    last_ends = now.readable_ends
    while not stops():
        began_s = time.monotonic()
        begin = _position(checkpoint, batch - 1)
        ends = source.next_ends(begin, last_ends)
        if ends != begin:
            checkpoint.write(f"{OFFSETS}/{batch}", f"{VERSION}\n{_plan_json()}\n{offsets_json(ends)}")
            _run(source, archive, checkpoint, batch)
            batch += 1
        elif spec.interval_ms is None:
            return
        if spec.interval_ms is not None:
            _rest(began_s + spec.interval_ms / 1000, stops)
            last_ends = source.look().readable_ends


@dataclass(frozen=True, slots=True)
class TopicBatches:
    """Batches of the live topics, read by the connector's batch reader."""

    spark: SparkSession
    spec: ArchiveSpec

    def look(self) -> Survey:
        return survey(self.spec)

    def next_ends(self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Offsets:
        return next_ends(begin, ends, self.spec.max_offsets_per_trigger)

    def records(self, ranges: Ranges) -> DataFrame:
        starts = {place: wanted.start for place, wanted in ranges.items()}
        ends = {place: wanted.end for place, wanted in ranges.items()}
        return (
            self.spark.read.format("kafka")
            .options(**connector_options(self.spec))
            .option("assign", json.dumps(_assigned(ranges)))
            .option("startingOffsets", offsets_json(starts))
            .option("endingOffsets", offsets_json(ends))
            .load()
        )


def first_offsets(starting: str | Mapping[TopicPartition, int], now: Survey) -> Offsets:
    """Returns where the first batch begins. A partition without a given offset begins at its log start
    offset.
    """
    if isinstance(starting, str):
        return dict(now.readable_ends if starting == LATEST else now.log_starts)
    return {place: starting.get(place, start) for place, start in now.log_starts.items()} | dict(starting)


def next_ends(begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """Returns the ends of the next batch: each partition's share of its waiting offsets, `limit` offsets in
    total.

    A new partition begins at 0. A partition whose end moved back keeps its position.
    """
    waiting = {place: max(0, end - begin.get(place, 0)) for place, end in ends.items()}
    found = dict(begin)
    for place, share in offset_shares(waiting, limit).items():
        if share:
            found[place] = begin.get(place, 0) + share
    return found


def offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    """Returns the offsets in the connector's form."""
    topics: dict[str, dict[str, int]] = {}
    for place, offset in sorted(offsets.items()):
        topics.setdefault(place.topic, {})[str(place.partition)] = offset
    return json.dumps(topics, separators=(",", ":"))


def _plan_json() -> str:
    """Returns the line that precedes the offsets in Spark's file."""
    now_ms = time.time_ns() // 1_000_000
    return json.dumps({"batchWatermarkMs": _NO_WATERMARK, "batchTimestampMs": now_ms, "conf": {}})


def _position(checkpoint: StoredDirectory, batch: int) -> Offsets:
    """Returns where the batch ended."""
    name = FIRST_OFFSETS if batch == NONE_YET else f"{OFFSETS}/{batch}"
    text = checkpoint.read(name)
    if text is None:
        raise PipelineError(f"{checkpoint.path}/{name} is missing: start from a new checkpoint")
    return parse_offsets(text)


def _run(
    source: BatchSource,
    archive: Callable[[DataFrame, int], None],
    checkpoint: StoredDirectory,
    batch: int,
) -> None:
    archive(source.records(planned_ranges(checkpoint, batch)), batch)
    checkpoint.write(f"{COMMITS}/{batch}", f'{VERSION}\n{{"nextBatchWatermarkMs":{_NO_WATERMARK}}}')


def _assigned(ranges: Ranges) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for place in ranges:
        topics.setdefault(place.topic, []).append(place.partition)
    return topics


def _rest(until_s: float, stops: Callable[[], bool]) -> None:
    while not stops() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_S))
