"""Checks a data directory of a stopped broker: its partitions, its own files, and all checkpoints.

What the files of a directory cannot tell is not found: another cluster id, node id or topic id of the same
form, and other offsets in the checkpoints that lie within the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.broker.log.directory_files import (
    PartitionDirectory,
    read_broker_settings,
    read_meta_properties,
    read_offsets,
    read_topic_id,
    read_topic_settings,
)
from tidelog.broker.log.previous_life import life_of
from tidelog.cli.doctor.facts import Finding, State
from tidelog.cli.doctor.partition_check import (
    REPAIR_STEP,
    START_STEP,
    Expected,
    PartitionReport,
    Tell,
    check_partition,
)
from tidelog.log_format.directory import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES_FILE,
    NOT_OF_BROKERS,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_CHECKPOINT,
    CorruptFileError,
    parse_partition_directory_name,
)
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.model.topics import TopicPartition
from tidelog.observe.availability import named

CHECKPOINTS: Final = (
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)


@dataclass(slots=True)
class DirectoryReport:
    """The faults in a data directory. `bad_checkpoints` are the files that must be written again.

    `emptied` are partitions that have a directory and offsets in checkpoints, but no segment.
    """

    path: Path
    partitions: list[PartitionReport]
    findings: list[Finding]
    is_clean: bool = False
    bad_checkpoints: set[str] = field(default_factory=set)
    checkpoints: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    emptied: set[TopicPartition] = field(default_factory=set)

    @property
    def all_findings(self) -> list[Finding]:
        return [*self.findings, *(finding for p in self.partitions for finding in p.findings)]


def partition_paths(directory: Path) -> list[Path]:
    """Returns the directories of the partitions in a data directory, or that of a partition itself."""
    if PartitionDirectory(str(directory)).offsets_of(LOG_SUFFIX):
        return [directory]
    return sorted(
        path
        for path in directory.iterdir()
        if path.is_dir()
        and (found := parse_partition_directory_name(path.name)) is not None
        and found.topic not in NOT_OF_BROKERS
        and any(path.glob(f"*{LOG_SUFFIX}"))
    )


def check_directory(directory: Path, tell: Tell) -> DirectoryReport:
    """Checks a data directory, or the directory of one partition. Raises OSError."""
    paths = partition_paths(directory)
    report = DirectoryReport(directory, [], [])
    if paths == [directory]:
        report.partitions.append(check_partition(directory, Expected(is_clean=False), tell))
        return report
    is_clean = report.is_clean = _check_marker_and_properties(report)
    for name in CHECKPOINTS:
        try:
            report.checkpoints[name] = read_offsets(directory / name)
        except CorruptFileError as error:
            report.checkpoints[name] = {}
            report.bad_checkpoints.add(name)
            report.findings.append(Finding("checkpoints", State.FAIL, str(error), REPAIR_STEP))
    for path in paths:
        key = parse_partition_directory_name(path.name)
        assert key is not None
        recovery_point, high_watermark, log_start = (
            report.checkpoints[name].get(key) for name in CHECKPOINTS[:3]
        )
        expected = Expected(is_clean, recovery_point, high_watermark, log_start)
        found = check_partition(path, expected, tell)
        report.partitions.append(found)
        _check_offsets(report, found, key, expected)
    _check_strangers(report, paths)
    _check_topic_ids(report, paths)
    _check_settings_copies(report, paths)
    return report


def _check_marker_and_properties(report: DirectoryReport) -> bool:
    """Checks `meta.properties` and the marker. Returns whether the last stop was clean."""
    step = "restore it from a copy, or compare it with another broker's file"
    meta = None
    try:
        meta = read_meta_properties(report.path)
        if meta is None:
            text = f"{META_PROPERTIES_FILE} does not exist"
            report.findings.append(Finding("properties", State.WARN, text, START_STEP))
    except CorruptFileError as error:
        report.findings.append(Finding("properties", State.FAIL, str(error), step))
    marker = report.path / CLEAN_SHUTDOWN_FILE
    if not marker.exists():
        text = "the broker did not stop cleanly; its next start recovers the ends of the logs"
        report.findings.append(Finding("clean stop", State.OK, text))
        return False
    content = marker.read_bytes()
    try:
        epoch = json.loads(content)["brokerEpoch"] if content else UNKNOWN_EPOCH
    except (ValueError, KeyError, TypeError):
        text = f"{CLEAN_SHUTDOWN_FILE} cannot be read, so the next start recovers all logs"
        report.findings.append(Finding("clean stop", State.WARN, text, START_STEP))
        return False
    if meta is not None and UNKNOWN_EPOCH != epoch != life_of(meta).broker_epoch != UNKNOWN_EPOCH:
        text = (
            f"{CLEAN_SHUTDOWN_FILE} is of broker epoch {epoch}, but {META_PROPERTIES_FILE} states "
            f"{life_of(meta).broker_epoch}"
        )
        report.findings.append(
            Finding("clean stop", State.WARN, text, "was the directory restored from a copy?")
        )
    return True


def _check_offsets(
    report: DirectoryReport, found: PartitionReport, key: TopicPartition, expected: Expected
) -> None:
    """Compares the checkpoints of one partition with its log."""
    bounds = {
        RECOVERY_POINT_CHECKPOINT: expected.recovery_point,
        HIGH_WATERMARK_CHECKPOINT: expected.high_watermark,
        LOG_START_OFFSET_CHECKPOINT: expected.log_start_offset,
        CLEANER_OFFSET_CHECKPOINT: report.checkpoints[CLEANER_OFFSET_CHECKPOINT].get(key),
    }
    state = State.FAIL if expected.is_clean else State.WARN
    step = REPAIR_STEP if expected.is_clean else START_STEP
    for name, offset in bounds.items():
        if offset is None or 0 <= offset <= found.log_end_offset:
            continue
        found.has_lost_end |= offset > found.log_end_offset
        text = f"{name}: {key} has offset {offset}, but the log ends at {found.log_end_offset}"
        report.findings.append(Finding("checkpoints", state, text, step))
        report.bad_checkpoints.add(name)
    recovery_point = expected.recovery_point
    if expected.is_clean and recovery_point is not None and recovery_point < found.log_end_offset:
        text = (
            f"{RECOVERY_POINT_CHECKPOINT}: {key} has offset {recovery_point}, but the log ends at "
            f"{found.log_end_offset}, and a clean stop flushes all of it"
        )
        report.findings.append(Finding("checkpoints", State.FAIL, text, REPAIR_STEP))
        report.bad_checkpoints.add(RECOVERY_POINT_CHECKPOINT)
    start, mark = expected.log_start_offset, expected.high_watermark
    if start is not None and mark is not None and start > mark:
        text = f"{LOG_START_OFFSET_CHECKPOINT}: {key} starts at {start}, above its high watermark {mark}"
        report.findings.append(Finding("checkpoints", State.WARN, text, "restore the file from a copy"))


def _check_strangers(report: DirectoryReport, paths: Sequence[Path]) -> None:
    """Looks for lines of checkpoints that name no partition of the directory."""
    known = {parse_partition_directory_name(path.name) for path in paths}
    for name, offsets in report.checkpoints.items():
        strangers = [str(key) for key in offsets if key not in known]
        report.emptied |= {
            key
            for key, offset in offsets.items()
            if key not in known and offset > 0 and (report.path / str(key)).is_dir()
        }
        if strangers:
            text = f"{name} names partitions without a directory: {named(strangers)}"
            report.findings.append(Finding("checkpoints", State.WARN, text, REPAIR_STEP))
            report.bad_checkpoints.add(name)


def _check_topic_ids(report: DirectoryReport, paths: Sequence[Path]) -> None:
    """Looks for unreadable topic ids, and for partitions of one topic with different ids."""
    step = f"restore {PARTITION_METADATA_FILE}: 'tidelog topic describe' shows the id"
    ids: dict[str, dict[object, str]] = {}
    for path in paths:
        key = parse_partition_directory_name(path.name)
        assert key is not None
        try:
            topic_id = read_topic_id(path)
        except CorruptFileError as error:
            report.findings.append(Finding("topic ids", State.FAIL, str(error), step))
            continue
        if topic_id is not None:
            ids.setdefault(key.topic, {}).setdefault(topic_id, path.name)
    for topic, found in sorted(ids.items()):
        if len(found) > 1:
            names = ", ".join(sorted(found.values()))
            text = f"partitions of topic {topic} have different ids: {names}"
            report.findings.append(Finding("topic ids", State.FAIL, text, step))


def _check_settings_copies(report: DirectoryReport, paths: Sequence[Path]) -> None:
    """Looks for damaged copies of settings (ADR 0068)."""
    readers: list[tuple[Callable[[Path], object], Path]] = [(read_broker_settings, report.path)]
    readers += [(read_topic_settings, path) for path in paths]
    for read, path in readers:
        try:
            read(path)
        except CorruptFileError as error:
            report.findings.append(Finding("settings", State.WARN, str(error), START_STEP))


def sizes_of(paths: Sequence[Path]) -> int:
    """Returns the bytes of all segments, for a progress bar. Raises OSError."""
    return sum(file.stat().st_size for path in paths for file in path.glob(f"*{LOG_SUFFIX}"))
