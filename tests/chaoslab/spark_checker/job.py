"""The checks of chaos runs as a Spark job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, cast
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as fn

from chaoslab.spark_checker import log_checks, reader_checks, share_checks
from chaoslab.spark_checker.operations import Operations, operations_of, read_lines
from chaoslab.verdict import KINDS, Anomaly, Verdict
from tidelog.pipeline.errors import PipelineError

LISTED_ANOMALIES: Final = 1000
"""The number of anomalies of each kind and history to list. The others are only counted, and written if there
is a table.
"""
CHECKS: Final[tuple[Callable[[Operations], DataFrame], ...]] = (
    log_checks.lost_writes,
    log_checks.lost_from_copies,
    log_checks.duplicates,
    log_checks.acknowledged_elsewhere,
    log_checks.different_records_at_one_place,
    log_checks.aborted_reads,
    log_checks.torn_transactions,
    log_checks.nonmonotonic_sends,
    reader_checks.nonmonotonic_polls,
    reader_checks.poll_skips,
    reader_checks.unseen,
    reader_checks.stale_commits,
    reader_checks.garbage_reads,
    share_checks.share_redeliveries,
    share_checks.share_unfinished,
    share_checks.garbage_deliveries,
    share_checks.deliveries_of_nothing,
    share_checks.deliveries_of_other_records,
)
COUNTED: Final = ("sends", "acknowledged", "transactions", "polls", "commits", "deliveries", "final")
_CUT_OFF: Final = ("EOFException", "ZipException", "not a gzip file", "Unexpected end of input")


@dataclass(frozen=True)
class HistoryVerdict:
    path: str
    verdict: Verdict


def check_histories(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    listed: int = LISTED_ANOMALIES,
    output: str | None = None,
    said: Callable[[str], None] = lambda _: None,
) -> list[HistoryVerdict]:
    """Judges each file of `paths` as a history of its own. `output` is the Delta table for all anomalies.
    `said` receives progress messages.

    Raises PipelineError if there is no such file, a file is cut off, or a line is malformed.
    """
    kept: list[DataFrame] = []
    found: list[Row] = []
    try:
        said("reading")
        lines = read_lines(spark, paths).persist()
        kept.append(lines)
        counts = _counts(lines)
        said(f"judging {sum(sum(of.values()) - of['acknowledged'] for of in counts.values()):,} operations")
        operations = operations_of(lines)
        # The queries run one after the other, because Spark plans many small queries faster than one large
        # one.
        for check in CHECKS:
            said(check.__name__.replace("_", " "))
            anomalies = check(operations)
            if output:
                anomalies = anomalies.persist()
                kept.append(anomalies)
            found += _found(anomalies, listed)
        if output:
            said("writing")
            _write(reduce(DataFrame.unionByName, kept[1:]), lines, output)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise PipelineError(
                f"no history at {(error.getMessageParameters() or {}).get('path')}"
            ) from error
        raise
    except (PySparkException, Py4JError) as error:
        if any(sign in str(error) for sign in _CUT_OFF):
            raise PipelineError(
                f"a history of {', '.join(paths)} is cut off or not gzipped: its run did not end"
            ) from error
        raise
    finally:
        for frame in kept:
            frame.unpersist()
    return _verdicts(counts, found)


def _counts(lines: DataFrame) -> dict[tuple[int, str], dict[str, int]]:
    """Counts by history and path. It caches the frame, because it is the first to read all of it."""
    sends = operations_of(lines).sends.filter("is_promised").groupBy("history").count()
    first_unread = fn.min(fn.when(fn.col("list").isNull() & fn.col("audience").isNull(), fn.col("seq")))
    rows = (
        lines.groupBy("history", "path", "list")
        .agg(fn.count("*").alias("count"), fn.count("audience").alias("heads"), first_unread.alias("unread"))
        .collect()
    )
    acknowledged = {row.history: row["count"] for row in sends.collect()}
    counts: dict[tuple[int, str], dict[str, int]] = {}
    heads: dict[tuple[int, str], int] = {}
    for row in rows:
        at = (row.history, row.path)
        if row.unread is not None:
            raise PipelineError(_unreadable(lines, row))
        of = counts.setdefault(at, dict.fromkeys(COUNTED, 0) | {"acknowledged": acknowledged.get(at[0], 0)})
        if row.list in of:
            of[row.list] = row["count"]
        heads[at] = heads.get(at, 0) + row.heads
    for (_, path), number in heads.items():
        if number != 1:
            raise PipelineError(f"{path} is not the history of one run: it has {number} first lines")
    return counts


def _unreadable(lines: DataFrame, row: Row) -> str:
    before = lines.filter((fn.col("history") == row.history) & (fn.col("seq") < row.unread)).count()
    return f"{row.path} is not a history: its line {before + 1} is not an entry"


def _found(anomalies: DataFrame, listed: int) -> list[Row]:
    """Returns the first anomalies of each history, with their number in `total`."""
    of_history = Window.partitionBy("history")
    ranked = anomalies.withColumn(
        "nth", fn.row_number().over(of_history.orderBy("topic", "partition", "offset", "detail"))
    ).withColumn("total", fn.count("*").over(of_history))
    return cast("list[Row]", ranked.filter(fn.col("nth") <= listed).collect())


def _write(anomalies: DataFrame, lines: DataFrame, output: str) -> None:
    paths = lines.filter(fn.col("audience").isNotNull()).select("history", "path")
    columns = ("path", "kind", "topic", "partition", "offset", "detail")
    anomalies.join(fn.broadcast(paths), "history").select(*columns).write.format("delta").mode(
        "overwrite"
    ).save(output)


def _verdicts(counts: dict[tuple[int, str], dict[str, int]], found: list[Row]) -> list[HistoryVerdict]:
    totals: dict[int, Counter[str]] = defaultdict(Counter)
    listed: dict[int, list[Anomaly]] = defaultdict(list)
    for row in found:
        totals[row.history][row.kind] += row.total if row.nth == 1 else 0
        listed[row.history].append(Anomaly(row.kind, row.topic, row.partition, row.offset, row.detail))
    verdicts = []
    for (history, path), of in sorted(counts.items(), key=lambda item: item[0][1]):
        anomalies = sorted(listed[history], key=lambda one: (KINDS.index(one.kind), *one[1:]))
        more = totals[history] - Counter(one.kind for one in anomalies)
        verdict = Verdict(tuple(anomalies), of, more)
        verdicts.append(HistoryVerdict(_local(path), verdict))
    return verdicts


def _local(path: str) -> str:
    """Returns the path as the user wrote it. Spark shows file:///a%20b."""
    parts = urlsplit(path)
    return unquote(parts.path) if parts.scheme == "file" else path
