"""Reads the tables of archives, Delta or plain Parquet, and their ledgers, and writes the commit log of plain
Parquet tables.

A plain Parquet table contains the files that its commits name. `_tidelog_commits/table.json` says which
archive owns the table. Each batch has a commit `<batch>.json` with its files, schema and ledger entry. Each
compaction has a commit `compact-<any>.json` that adds files and removes others. A commit is one file, which
is written completely or not at all. The table contains all files that commits added and no commit removed.
File names are never reused. If two compactions remove the same file, the one with the later name has no
effect, so no lock is needed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

from tidelog.model.text import JsonObject
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.tables.ledger import CommitEntry, entry_from_json
from tidelog.pipeline.tables.stored_files import StoredDirectory, absolute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


COMMITS_DIRECTORY: Final = "_tidelog_commits"
STAGING_DIRECTORY: Final = "_tidelog_staging"
PARQUET_FORMAT: Final = 1
EVENT_DATE: Final = "event_date"
_TABLE: Final = f"{COMMITS_DIRECTORY}/table.json"
_COMPACTION_PREFIX: Final = "compact-"


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """The owner of a table and the form of its values."""

    archive: str
    value_format: str
    format: int = PARQUET_FORMAT


@dataclass(frozen=True, slots=True)
class ParquetCommit:
    """`added` and `removed` are paths below the table. `schema` is Spark's schema as JSON."""

    added: tuple[str, ...]
    schema: JsonObject
    removed: tuple[str, ...] = ()
    entry: CommitEntry | None = None

    def to_json(self) -> str:
        body = {
            "format": PARQUET_FORMAT,
            "added": self.added,
            "removed": self.removed,
            "schema": self.schema,
            "ledger": self.entry.to_json() if self.entry else None,
        }
        return json.dumps(body, separators=(",", ":"))


class ParquetCommits:
    """The commits of one table."""

    def __init__(self, path: str) -> None:
        self.directory = StoredDirectory(path)

    def table(self) -> ParquetTable | None:
        """Returns None if the directory is not a table of this kind, or not yet."""
        text = self.directory.read(_TABLE)
        if text is None:
            return None
        body = _parsed(text, _TABLE)
        return ParquetTable(str(body["archive"]), str(body["value_format"]))

    def create(self, table: ParquetTable) -> None:
        self.directory.write(_TABLE, json.dumps(asdict(table)))

    def batches(self) -> list[ParquetCommit]:
        """Returns the commits of batches in the order of the batches."""
        return [self._read(name) for name in self._names() if not name.startswith(_COMPACTION_PREFIX)]

    def compactions(self) -> list[ParquetCommit]:
        """Returns the commits of compactions in the order of their names."""
        return list(self.named_compactions().values())

    def named_compactions(self) -> dict[str, ParquetCommit]:
        """Returns a map of file name to commit, in the order of the names."""
        return {name: self._read(name) for name in self._names() if name.startswith(_COMPACTION_PREFIX)}

    def all(self) -> list[ParquetCommit]:
        return [self._read(name) for name in self._names()]

    def files(self) -> list[str]:
        """Returns the files that the table contains now."""
        live = {path for commit in self.batches() for path in commit.added}
        for commit in self.compactions():
            if live.issuperset(commit.removed):
                live = live.difference(commit.removed).union(commit.added)
        return sorted(live)

    def write_batch(self, batch_id: int, commit: ParquetCommit) -> None:
        """Commits the files of a batch to the table."""
        self.directory.write(f"{COMMITS_DIRECTORY}/{batch_id:020d}.json", commit.to_json())

    def write_compaction(self, name: str, commit: ParquetCommit) -> None:
        """Adds and removes files in one step. `name` must never have been used."""
        self.directory.write(f"{COMMITS_DIRECTORY}/{_COMPACTION_PREFIX}{name}.json", commit.to_json())

    def _names(self) -> list[str]:
        names = self.directory.names(COMMITS_DIRECTORY)
        return [name for name in names if name.endswith(".json") and name != "table.json"]

    def _read(self, name: str) -> ParquetCommit:
        path = f"{COMMITS_DIRECTORY}/{name}"
        text = self.directory.read(path)
        if text is None:
            raise PipelineError(f"{self.directory.path}/{path} disappeared while the table was read")
        body = _parsed(text, path)
        entry = entry_from_json(body["ledger"]) if body["ledger"] else None
        return ParquetCommit(tuple(body["added"]), body["schema"], tuple(body["removed"]), entry)


def _parsed(text: str, name: str) -> JsonObject:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise PipelineError(f"commit {name} of the table is damaged: {error}") from error
    if not isinstance(body, dict) or body.get("format") != PARQUET_FORMAT:
        raise PipelineError(
            f"commit {name} of the table has another format than {PARQUET_FORMAT}: use the release that "
            "wrote it"
        )
    return body


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
