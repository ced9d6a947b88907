"""visible_logs returns the same as a plain list of a log's batches, for any checkpointed high watermark and
any end of the writer.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from brokerlab.logs import append, files, kill, make_batch, make_marker, open_log
from tidelog.broker.log.directory_files import write_offsets, write_topic_id
from tidelog.broker.log.log_config import LogConfig
from tidelog.log_format.directory import HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.segments.log_files import READ_UNCOMMITTED
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.records.aborted import AbortedTransaction

PLACE = TopicPartition("t", 0)


class Step(NamedTuple):
    """A batch outside a transaction (producer -1), a batch inside one, or, with `ends`, a marker."""

    producer_id: int
    records: int
    ends: bool | None


STEPS = st.lists(
    st.one_of(
        st.builds(Step, st.just(-1), st.integers(1, 3), st.none()),
        st.builds(Step, st.sampled_from([1, 2, 3]), st.integers(1, 3), st.none()),
        st.builds(Step, st.sampled_from([1, 2, 3]), st.just(1), st.booleans()),
    ),
    min_size=1,
    max_size=60,
)


class Story(NamedTuple):
    last_stable_offset: int
    aborted: list[AbortedTransaction]


def story_of(steps: list[tuple[int, Step]], high_watermark: int) -> Story:
    first: dict[int, int] = {}
    aborted = []
    for offset, step in steps:
        if offset >= high_watermark or step.producer_id < 0:
            continue
        if step.ends is None:
            first.setdefault(step.producer_id, offset)
        else:
            began = first.pop(step.producer_id, None)
            if began is not None and not step.ends:
                stable = min(first.values(), default=offset + 1)
                aborted.append(AbortedTransaction(step.producer_id, began, offset, stable))
    stable = min([high_watermark, *first.values()])
    return Story(
        stable, sorted((a for a in aborted if a.first_offset < stable), key=lambda a: a.first_offset)
    )


@settings(max_examples=120, deadline=None)
@given(
    steps=STEPS,
    segment_bytes=st.integers(300, 3000),
    index_interval_bytes=st.sampled_from([1, 200, 4096]),
    at=st.floats(0, 1),
    ending=st.sampled_from(["closed", "killed", "torn", "preallocated", "no snapshots", "torn snapshots"]),
    log_start=st.floats(0, 1),
)
def test_ends_and_aborts_are_those_of_the_list(
    steps: list[Step], segment_bytes: int, index_interval_bytes: int, at: float, ending: str, log_start: float
) -> None:
    root = Path(tempfile.mkdtemp(prefix="tidelog-visible-"))
    try:
        config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes, retention_ms=-1
        )
        log = open_log(root / "t-0", config)
        placed: list[tuple[int, Step]] = []
        sequences: dict[int, int] = {}
        for step in steps:
            offset = log.log_end_offset
            append(log, _bytes_of(step, offset, sequences))
            placed.append((offset, step))
        end = log.log_end_offset
        boundaries = [*(offset for offset, _ in placed), end]
        high_watermark = boundaries[round(at * (len(boundaries) - 1))]
        _end(log, root / "t-0", ending)
        start = boundaries[round(log_start * at * (len(boundaries) - 1))]
        write_offsets(root / HIGH_WATERMARK_CHECKPOINT, {PLACE: high_watermark})
        write_offsets(root / LOG_START_OFFSET_CHECKPOINT, {PLACE: start})

        [found] = visible_logs(Storage(), [str(root)])
        [uncommitted] = visible_logs(Storage(), [str(root)], ["t"], READ_UNCOMMITTED)
    finally:
        shutil.rmtree(root)
    story = story_of(placed, high_watermark)
    assert found.high_watermark == uncommitted.end_offset == high_watermark
    assert found.end_offset == max(story.last_stable_offset, start)
    assert found.log_start_offset == start
    assert {one for one in found.aborted if one.last_offset >= start} == {
        one for one in story.aborted if one.last_offset >= start
    }
    assert uncommitted.aborted == ()


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, segment_bytes=st.integers(300, 3000), looks=st.sets(st.integers(1, 60), max_size=8))
def test_repeated_listings_equal_a_single_listing(
    steps: list[Step], segment_bytes: int, looks: set[int]
) -> None:
    root = Path(tempfile.mkdtemp(prefix="tidelog-visible-"))
    try:
        log = open_log(root / "t-0", LogConfig(segment_bytes=segment_bytes, retention_ms=-1))
        placed: list[tuple[int, Step]] = []
        sequences: dict[int, int] = {}
        for number, step in enumerate(steps, start=1):
            offset = log.log_end_offset
            append(log, _bytes_of(step, offset, sequences))
            placed.append((offset, step))
            if number in looks or number == len(steps):
                high_watermark = log.log_end_offset if number % 2 else offset
                write_offsets(root / HIGH_WATERMARK_CHECKPOINT, {PLACE: high_watermark})
                [found] = visible_logs(Storage(), [str(root)])
                story = story_of(placed, high_watermark)
                assert (found.high_watermark, found.end_offset) == (high_watermark, story.last_stable_offset)
                assert list(found.aborted) == story.aborted
        log.close_files()
    finally:
        shutil.rmtree(root)


def test_a_topic_created_again_in_the_same_directory_is_listed_completely(tmp_path: Path) -> None:
    for producer_id in (-1, 1):
        log = open_log(tmp_path / "t-0")
        write_topic_id(tmp_path / "t-0", uuid.UUID(int=producer_id + 2))
        for _ in range(2):
            append(log, _bytes_of(Step(producer_id, 1, None), log.log_end_offset, {}))
        kill(log)
        write_offsets(tmp_path / HIGH_WATERMARK_CHECKPOINT, {PLACE: 2})
        [found] = visible_logs(Storage(), [str(tmp_path)])
        assert found.end_offset == (2 if producer_id < 0 else 0)
        shutil.rmtree(tmp_path / "t-0")


def _bytes_of(step: Step, offset: int, sequences: dict[int, int]) -> bytes:
    if step.ends is not None:
        return make_marker(offset, is_commit=step.ends, producer_id=step.producer_id)
    if step.producer_id < 0:
        return make_batch(offset, step.records)
    sequence = sequences.get(step.producer_id, 0)
    sequences[step.producer_id] = sequence + step.records
    return make_batch(
        offset,
        step.records,
        producer_id=step.producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


def _end(log: object, directory: Path, ending: str) -> None:
    if ending == "closed":
        log.close()  # type: ignore[attr-defined]
        return
    kill(log)  # type: ignore[arg-type]
    newest = files(directory, ".log")[-1]
    if ending == "torn":
        with newest.open("ab") as file:
            file.write(make_batch(10_000, 3)[:-5])
    elif ending == "preallocated":  # the state of Apache Kafka's newest segment until it is closed
        for suffix in (".index", ".timeindex"):
            with newest.with_suffix(suffix).open("ab") as file:
                file.write(bytes(8 * 12 * 100))
    elif ending == "no snapshots":
        for path in files(directory, ".snapshot"):
            path.unlink()
    elif ending == "torn snapshots":
        for path in files(directory, ".snapshot"):
            path.write_bytes(path.read_bytes()[:-1])


def test_a_log_that_ends_below_its_checkpoint_is_read_to_its_end(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for _ in range(5):
        append(log, make_batch(log.log_end_offset, 2))
    kill(log)
    write_offsets(tmp_path / HIGH_WATERMARK_CHECKPOINT, {PLACE: 500})
    [found] = visible_logs(Storage(), [str(tmp_path)])
    assert (found.high_watermark, found.end_offset) == (10, 10)
