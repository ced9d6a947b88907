"""The commit log of plain Parquet tables. A table contains the files that its commits name.

`_tidelog_commits/table.json` says which archive owns the table. Each batch has a commit `<batch>.json` with
its files, schema and ledger entry. Each compaction has a commit `compact-<any>.json` that adds files and
removes others. A commit is one file, which is written completely or not at all. The table contains all files
that commits added and no commit removed. File names are never reused. If two compactions remove the same
file, the one with the later name has no effect, so no lock is needed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from tidelog.model.json_object import JsonObject
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.ledger.entry import CommitEntry, entry_from_json
from tidelog.pipeline.stored_files import StoredDirectory

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
