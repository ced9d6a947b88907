"""Writes each batch to the table in one commit with its ledger entry. A batch that is already there is not
written again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from tidelog.pipeline.archive.spec import DELTA, ArchiveSpec
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.tables.archive_table import DELTA as DELTA_FORMAT
from tidelog.pipeline.tables.archive_table import (
    DELTA_LOG_DIRECTORY,
    EVENT_DATE,
    PARQUET,
    STAGING_DIRECTORY,
    ParquetCommit,
    ParquetCommits,
    ParquetTable,
    format_found,
    ledger_of,
    parquet_schema,
)
from tidelog.pipeline.tables.ledger import CommitEntry
from tidelog.pipeline.tables.stored_files import StoredDirectory, absolute

ARCHIVE_PROPERTY: Final = "tidelog.archive"
VALUES_PROPERTY: Final = "tidelog.values"
_COMMITS_TO_LOOK_BACK: Final = 20
"""The number of newest commits to search. Maintenance may have committed after this archive."""


class OtherRunError(PipelineError):
    """Another run of the same archive writes to the table."""


@dataclass(frozen=True, slots=True)
class TableOwner:
    """The archive and the values of a table. Both are None if the table has no owner."""

    archive: str | None
    values: str | None


class Sink(Protocol):
    """Writes to one table."""

    def owner(self) -> TableOwner | None:
        """Returns the owner, or None if there is no table. Raises PipelineError if the path holds something
        else.
        """

    def create(self, schema: t.StructType) -> None: ...

    def schema(self) -> t.StructType: ...

    def ledger(self) -> list[CommitEntry]: ...

    def append(self, rows: DataFrame, entry: CommitEntry) -> None:
        """Writes rows and entry together or not at all. Raises OtherRunError if the table already contains
        the batch with another entry.
        """


def sink_of(spark: SparkSession, spec: ArchiveSpec) -> Sink:
    """Returns the sink of the table. Raises PipelineError if the path holds anything but such a table or
    nothing.
    """
    found = format_found(spec.table)
    if found is not None and found != spec.table_format:
        raise PipelineError(
            f"{spec.table} holds a {found} table, but {spec.table_format} was requested: name another path"
        )
    if found is None:
        strangers = [name for name in StoredDirectory(spec.table).names() if not _is_leftover(name)]
        if strangers:
            raise PipelineError(
                f"{spec.table} holds no table of an archive but other files ({strangers[0]}): name an empty "
                "directory, or one that does not exist yet"
            )
    return DeltaSink(spark, spec) if spec.table_format == DELTA else ParquetSink(spark, spec)


class DeltaSink:
    """Writes each batch exactly once by Delta's own transaction ids, made of archive and batch."""

    def __init__(self, spark: SparkSession, spec: ArchiveSpec) -> None:
        self._spark = spark
        self._spec = spec
        self._path = absolute(spec.table)

    def owner(self) -> TableOwner | None:
        if format_found(self._path) is None:
            return None
        rows = self._spark.sql(f"SHOW TBLPROPERTIES delta.`{self._path}`").collect()
        properties = {row["key"]: row["value"] for row in rows}
        return TableOwner(properties.get(ARCHIVE_PROPERTY), properties.get(VALUES_PROPERTY))

    def create(self, schema: t.StructType) -> None:
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema.fields)
        properties = {
            ARCHIVE_PROPERTY: self._spec.name,
            VALUES_PROPERTY: self._spec.value_format.kind.value,
            # The ledger is in the commits, so no commit may expire.
            "delta.enableExpiredLogCleanup": "false",
            "delta.logRetentionDuration": "interval 36500 days",
        }
        settings = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self._spark.sql(
            f"CREATE TABLE delta.`{self._path}` ({columns}) USING DELTA PARTITIONED BY (`{EVENT_DATE}`) "
            f"TBLPROPERTIES ({settings})"
        )

    def schema(self) -> t.StructType:
        return self._spark.read.format(DELTA_FORMAT).load(self._path).schema

    def ledger(self) -> list[CommitEntry]:
        return ledger_of(self._spark, self._path)

    def append(self, rows: DataFrame, entry: CommitEntry) -> None:
        session = rows.sparkSession
        session.conf.set("spark.databricks.delta.optimizeWrite.binSize", f"{self._spec.target_file_bytes}b")
        writer = (
            rows.write.format(DELTA_FORMAT)
            .mode("append")
            .option("mergeSchema", "true")
            .option("optimizeWrite", "true")
            .option("txnAppId", entry.archive)
            .option("txnVersion", entry.batch_id)
            .option("userMetadata", entry.to_json())
        )
        try:
            writer.save(self._path)
        except (PySparkException, Py4JJavaError) as error:
            # Two runs of one archive use the same transaction id, and Delta accepts only one of them.
            if "ConcurrentTransaction" not in f"{type(error)} {error}":
                raise
        # Delta silently skips a batch whose transaction id is not newer than the table's.
        raise_unless_written(entry, ledger_of(self._spark, self._path, newest=_COMMITS_TO_LOOK_BACK))


class ParquetSink:
    """Writes files under names of the batch first, then the commit that names them."""

    def __init__(self, spark: SparkSession, spec: ArchiveSpec) -> None:
        self._spark = spark
        self._spec = spec
        self._path = absolute(spec.table)
        self._commits = ParquetCommits(self._path)
        self._schema: t.StructType | None = None

    def owner(self) -> TableOwner | None:
        table = self._commits.table()
        return TableOwner(table.archive, table.value_format) if table else None

    def create(self, schema: t.StructType) -> None:
        self._schema = schema
        self._commits.create(ParquetTable(self._spec.name, self._spec.value_format.kind.value))

    def schema(self) -> t.StructType:
        return parquet_schema(self._commits) or self._schema or t.StructType()

    def ledger(self) -> list[CommitEntry]:
        return ledger_of(self._spark, self._path) if format_found(self._path) == PARQUET else []

    def append(self, rows: DataFrame, entry: CommitEntry) -> None:
        done = [each for each in self.ledger() if each.batch_id >= entry.batch_id]
        if done:
            raise_unless_written(entry, done)
            return
        directory = self._commits.directory
        self._forget_attempts(entry.batch_id)
        # Tasks of a driver that was killed may still write, so each attempt has its own directory.
        staging = f"{STAGING_DIRECTORY}/{uuid.uuid4().hex}"
        (
            rows.repartition(EVENT_DATE)
            .write.partitionBy(EVENT_DATE)
            .mode("overwrite")
            .parquet(f"{self._path}/{staging}")
        )
        added = []
        for number, name in enumerate(sorted(directory.files(staging))):
            if not name.endswith(".parquet"):
                continue
            date = next(part for part in name.split("/") if part.startswith(f"{EVENT_DATE}="))
            target = f"{date}/{batch_prefix(entry.batch_id)}{number:05d}-{uuid.uuid4().hex}.parquet"
            directory.move(name, target)
            added.append(target)
        schema = rows.schema.jsonValue()
        self._commits.write_batch(entry.batch_id, ParquetCommit(tuple(added), schema, entry=entry))
        directory.delete_directory(STAGING_DIRECTORY)

    def _forget_attempts(self, batch_id: int) -> None:
        """Deletes files of the same batch that no commit names."""
        directory = self._commits.directory
        prefix = batch_prefix(batch_id)
        for date in directory.names():
            if date.startswith(f"{EVENT_DATE}="):
                for name in directory.names(date):
                    if name.startswith(prefix):
                        directory.delete(f"{date}/{name}")


def _is_leftover(name: str) -> bool:
    """Returns True if the files are left from a run that was killed before the table existed."""
    return name.startswith(("_tidelog_", DELTA_LOG_DIRECTORY))


def batch_prefix(batch_id: int) -> str:
    return f"batch-{batch_id:020d}-"


def raise_unless_written(entry: CommitEntry, found: Iterable[CommitEntry]) -> None:
    """Raises OtherRunError unless the entry is among `found`, the table's newest entries, or equals a
    repeated batch there.
    """
    for each in found:
        if each.batch_id == entry.batch_id and same_batch(each, entry):
            return
    raise OtherRunError(
        f"batch {entry.batch_id} of archive '{entry.archive}' is in the table with other offsets or records: "
        "another run writes to the table; stop that run, then start this one again"
    )


def same_batch(one: CommitEntry, other: CommitEntry) -> bool:
    """Returns True if both entries have the same offsets and the same records."""
    ours = [(r.topic, r.partition, r.start, r.end, r.count, r.log_hash) for r in one.ranges]
    theirs = [(r.topic, r.partition, r.start, r.end, r.count, r.log_hash) for r in other.ranges]
    return one.archive == other.archive and sorted(ours) == sorted(theirs)
