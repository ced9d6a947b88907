"""The verification: it compares sums of table and log by the ledger's ranges, then row by row where the sums
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.pipeline.errors import PipelineError, spark_errors
from tidelog.pipeline.tables.archive_table import ledger_of, read_table
from tidelog.pipeline.tables.ledger import CommitEntry
from tidelog.pipeline.verify.evidence import hole_counts, hole_kinds, is_time_overflow, opened_records
from tidelog.pipeline.verify.judge import GONE, Findings, Judge, PieceSums, RowFaults, is_suspicious
from tidelog.pipeline.verify.log_reader import LogReader, Partition, Span
from tidelog.pipeline.verify.pieces import Group, groups_of, layout_of
from tidelog.pipeline.verify.sums import (
    compare_rows,
    holds_raw_values,
    log_hashes,
    log_sums,
    quarantine_origins,
    table_hashes,
    table_sums,
)
from tidelog.pipeline.verify.verdict import Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEPS = ("ledger and log", "rows by range", "records by range", "row by row", "holes")
"""The steps that `on_step` receives, in order."""


def verify(
    spark: SparkSession,
    table: str,
    log: LogReader,
    on_step: Callable[[str], None] = lambda _: None,
    *,
    quarantine_topic: str | None = None,
) -> Verdict:
    """Verifies the table. `quarantine_topic` is the archive's quarantine; without it, the ledger's claims
    about quarantined records are trusted.

    Raises PipelineError, ClientError, KafkaError. Faults of the data are in the verdict.
    """
    return reconcile(
        spark,
        read_table(spark, table),
        ledger_of(spark, table),
        log,
        on_step,
        quarantine_topic=quarantine_topic,
    )


def reconcile(
    spark: SparkSession,
    rows: DataFrame,
    ledger: Sequence[CommitEntry],
    log: LogReader,
    on_step: Callable[[str], None] = lambda _: None,
    *,
    quarantine_topic: str | None = None,
) -> Verdict:
    """Verifies any rows with the columns of such a table, like `verify`."""
    try:
        return _reconcile(spark, rows, ledger, log, log.records, on_step, quarantine_topic)
    except spark_errors() as error:
        if not is_time_overflow(error):
            raise
    opener = log.opener()
    return _reconcile(
        spark,
        rows,
        ledger,
        log,
        lambda session, spans: opened_records(session, opener, spans),
        on_step,
        quarantine_topic,
    )


def _reconcile(
    spark: SparkSession,
    rows: DataFrame,
    ledger: Sequence[CommitEntry],
    log: LogReader,
    records_of: Callable[[SparkSession, Mapping[Partition, Span]], DataFrame],
    on_step: Callable[[str], None],
    quarantine_topic: str | None,
) -> Verdict:
    on_step(STEPS[0])
    layout = layout_of(ledger)
    extents = log.extents({piece.topic for piece in layout.pieces}) if layout.pieces else {}
    groups = groups_of(layout.pieces, extents)
    spans = _spans(groups)
    epochs = log.epochs(spans) if spans else {}
    is_raw = holds_raw_values(rows)

    on_step(STEPS[1])
    findings = Findings(knows_quarantine=quarantine_topic is not None)
    findings.table, findings.strays = table_sums(rows, layout)

    on_step(STEPS[2])
    if spans:
        findings.log = log_sums(records_of(spark, spans), layout, is_raw=is_raw)

    on_step(STEPS[3])
    suspicious = [group for group in groups if is_suspicious(group, findings)]
    if suspicious:
        wanted = _spans(suspicious)
        records = log_hashes(records_of(spark, wanted), is_raw=is_raw) if wanted else None
        quarantine = _quarantine(spark, log, quarantine_topic) if quarantine_topic else None
        findings.faults = compare_rows(table_hashes(rows), records, quarantine, suspicious)

    on_step(STEPS[4])
    opener = log.opener()
    findings.holes = hole_counts(spark, opener, [g for g in groups if _has_holes(g, findings)])
    findings.gone = hole_kinds(spark, opener, _gone_offsets(groups, findings.faults))
    return Judge(layout, groups, extents, log.place).verdict(findings, epochs)


def _quarantine(spark: SparkSession, log: LogReader, topic: str) -> DataFrame:
    """Returns the quarantine's records. Raises PipelineError."""
    extents = log.extents([topic])
    if not extents:
        raise PipelineError(f"{log.place} have no topic {topic}: is it the archive's quarantine topic?")
    spans = {place: (extent.start, extent.end) for place, extent in extents.items()}
    return quarantine_origins(log.records(spark, spans))


def _spans(groups: Iterable[Group]) -> dict[Partition, Span]:
    """Returns the range from the first to the last offset of each partition that the log has."""
    found: dict[Partition, Span] = {}
    for group in groups:
        if not group.is_gone:
            key = (group.topic, group.partition)
            start, end = found.get(key, (group.log_start, group.log_end))
            found[key] = min(start, group.log_start), max(end, group.log_end)
    return found


def _has_holes(group: Group, findings: Findings) -> bool:
    entry = group.entry
    if entry is None or entry.skipped is not None or len(group.pieces) > 1 or group.is_gone:
        return False
    records = findings.log.get(group.pieces[0].index, PieceSums())
    return entry.holes > 0 or records.count < group.log_end - group.log_start


def _gone_offsets(groups: Sequence[Group], faults: Mapping[int, RowFaults]) -> dict[Group, list[int]]:
    by_index = {group.index: group for group in groups}
    return {
        by_index[index]: found.offsets[GONE] for index, found in faults.items() if found.offsets.get(GONE)
    }
