"""Reads the tables of archives, Delta or plain Parquet, and their ledgers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.ledger.entry import CommitEntry, entry_from_json
from tidelog.pipeline.parquet_commits import COMMITS_DIRECTORY, ParquetCommits
from tidelog.pipeline.stored_files import StoredDirectory, absolute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

DELTA: Final = "delta"
PARQUET: Final = "parquet"
DELTA_LOG_DIRECTORY: Final = "_delta_log"


class NoTableError(PipelineError):
    """There is no table at the path, or the table is not one of an archive."""


def table_format_of(path: str) -> Literal["delta", "parquet"]:
    """Returns the format of the table, without Spark. Raises NoTableError."""
    found = format_found(path)
    if found is None:
        raise NoTableError(
            f"{path} holds no table of an archive; check that it is the path that was given to the job"
        )
    return found


def format_found(path: str) -> Literal["delta", "parquet"] | None:
    """Returns the table format that the directories at the path show, or None."""
    names = StoredDirectory(path).names()
    if DELTA_LOG_DIRECTORY in names and _has_a_commit(path):
        return "delta"
    return "parquet" if COMMITS_DIRECTORY in names else None


def _has_a_commit(path: str) -> bool:
    """Returns False if the process that created the directory was killed before its first commit."""
    names = StoredDirectory(path).names(DELTA_LOG_DIRECTORY)
    return any(name.endswith((".json", ".parquet")) for name in names)


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """Returns all committed rows. Raises NoTableError."""
    path = absolute(path)
    if table_format_of(path) == DELTA:
        return spark.read.format("delta").load(path)
    commits = ParquetCommits(path)
    schema = parquet_schema(commits)
    if schema is None:
        raise NoTableError(f"{path} has no commits yet")
    files = [f"{path}/{name}" for name in commits.files()]
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", path).parquet(*files)


def parquet_schema(commits: ParquetCommits) -> StructType | None:
    """Returns the schema of all commits, or None without a commit. The columns are in the order in which they
    first appeared, with the types of the newest batch.
    """
    from pyspark.sql.types import StructField, StructType

    fields: dict[str, StructField] = {}
    batches, compactions = commits.batches(), commits.compactions()
    for commit in batches:
        fields |= {field.name: field for field in StructType.fromJson(commit.schema).fields}
    for commit in compactions:
        fields = {field.name: field for field in StructType.fromJson(commit.schema).fields} | fields
    return StructType(list(fields.values())) if batches or compactions else None


def ledger_of(spark: SparkSession, path: str, *, newest: int | None = None) -> list[CommitEntry]:
    """Returns the ledger entries of the table's commits in their order. With `newest`, it reads only that
    many of the last commits of any kind. Raises NoTableError, LedgerError.
    """
    path = absolute(path)
    if table_format_of(path) == PARQUET:
        entries = [commit.entry for commit in ParquetCommits(path).batches() if commit.entry]
        return entries if newest is None else entries[-newest:]
    limit = "" if newest is None else f" LIMIT {newest}"
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`{limit}").select("version", "userMetadata").collect()
    found = [entry_from_json(row["userMetadata"]) for row in sorted(history, key=lambda row: row["version"])]
    return [entry for entry in found if entry is not None]
