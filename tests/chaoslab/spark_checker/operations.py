"""History files as one frame of all operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_type_hints

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from chaoslab.history import ACKNOWLEDGED, COMMITTED, ENTRIES

NAME: Final = ("history", "topic", "key", "number")
"""The columns that identify a record."""
LOG: Final = ("history", "topic", "partition")
PLACE: Final = (*LOG, "offset")

_TYPES: Final = {str: "string", int: "bigint", float: "double", bool: "boolean"}
_LINE: Final = ", ".join(
    (
        "audience map<string, array<string>>",
        "copies map<string, string>",
        "shared map<string, array<string>>",
        *(f"{name} array<string>" for name in ENTRIES),
    )
)


def read_lines(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Returns a row for each line: `history` (the number of the file), `path`, `seq` (grows along a file),
    the columns of all entries (null if an entry has no such field), and `list` (null for the first line and
    for malformed lines).

    The result is one wide frame instead of one frame a list, because a gzipped file can only be read from its
    start.
    """
    lines = spark.read.text(list(paths)).select(
        fn.xxhash64("_metadata.file_path").alias("history"),
        fn.col("_metadata.file_path").alias("path"),
        # The id grows along a file even if the file is split, because splits of one file keep their order.
        fn.monotonically_increasing_id().alias("seq"),
        fn.from_json("value", _LINE).alias("line"),
    )
    fields = lines.select(
        "history",
        "path",
        "seq",
        fn.col("line.audience").alias("audience"),
        fn.col("line.copies").alias("copies"),
        fn.col("line.shared").alias("shared"),
        fn.coalesce(*(fn.when(fn.col(f"line.{name}").isNotNull(), fn.lit(name)) for name in ENTRIES)).alias(
            "list"
        ),
        fn.coalesce(*(fn.col(f"line.{name}") for name in ENTRIES)).alias("fields"),
    )
    typed = fields.select(
        "history",
        "path",
        "seq",
        "audience",
        "copies",
        "shared",
        "list",
        *(_column(name, type_).alias(name) for name, type_ in _columns().items()),
    )
    is_whole = fn.coalesce(*(fn.when(fn.col("list") == name, _is_whole(name)) for name in ENTRIES))
    return typed.withColumn("list", fn.when(is_whole, fn.col("list")))


def _columns() -> dict[str, str]:
    return {
        field: _TYPES[hint] for entry in ENTRIES.values() for field, hint in get_type_hints(entry).items()
    }


def _column(field: str, type_: str) -> Column:
    """Returns the column of the list that has it, by its place in that list."""
    values = [
        fn.when(
            fn.col("list") == name,
            fn.coalesce(
                fn.get("fields", entry._fields.index(field)).try_cast(type_),
                fn.lit(entry._field_defaults.get(field)).cast(type_),
            ),
        )
        for name, entry in ENTRIES.items()
        if field in entry._fields
    ]
    return fn.coalesce(*values)


def _is_whole(name: str) -> Column:
    missing = fn.lit(False)
    for field in ENTRIES[name]._fields:
        missing = missing | fn.col(field).isNull()
    return ~missing


@dataclass(frozen=True)
class Operations:
    """The lists of all histories, and the derived frames that most checks use."""

    sends: DataFrame
    """The sends, with `transaction_outcome` (null without a transaction, or if no outcome was noted) and
    `is_promised`, which says whether the producer got an acknowledgement.
    """
    polls: DataFrame
    final: DataFrame
    commits: DataFrame
    positions: DataFrame
    deliveries: DataFrame
    audience: DataFrame
    """The audience: history, group, topic."""
    copies: DataFrame
    """The copies: history, topic, copy."""
    shared: DataFrame
    """The topics of share groups: history, group, topic."""

    @property
    def reads(self) -> DataFrame:
        """Returns all received records. `is_final` marks those of the final reader."""
        return self.polls.withColumn("is_final", fn.lit(False)).unionByName(
            self.final.withColumn("is_final", fn.lit(True))
        )

    @property
    def names(self) -> DataFrame:
        """Returns the records in the logs: NAME, `first_partition`, and `first_offset`, the first offset of
        the record.
        """
        return self.final.groupBy(*NAME).agg(
            fn.min_by("partition", "seq").alias("first_partition"),
            fn.min_by("offset", "seq").alias("first_offset"),
        )

    @property
    def places(self) -> DataFrame:
        """Returns the logs in their order: PLACE, key, number, is_intact."""
        return (
            self.final.groupBy(*PLACE)
            .agg(fn.max_by(fn.struct("key", "number", "is_intact"), "seq").alias("record"))
            .select(*PLACE, "record.*")
        )


def operations_of(lines: DataFrame) -> Operations:
    """Builds the operations from `lines`, the result of read_lines. The caller should cache `lines`, because
    every check reads it.
    """

    def entries(name: str) -> DataFrame:
        return lines.filter(fn.col("list") == name).select("history", "seq", *ENTRIES[name]._fields)

    heads = lines.filter(fn.col("audience").isNotNull())
    return Operations(
        _judged(entries("sends"), entries("transactions")),
        entries("polls"),
        entries("final"),
        entries("commits"),
        entries("positions"),
        entries("deliveries"),
        _topics_of_groups(heads, "audience"),
        heads.select("history", fn.explode("copies").alias("topic", "copy")),
        _topics_of_groups(heads, "shared"),
    )


def _topics_of_groups(heads: DataFrame, column: str) -> DataFrame:
    return heads.select("history", fn.explode(column).alias("group", "topics")).select(
        "history", "group", fn.explode(fn.array_distinct("topics")).alias("topic")
    )


def _judged(sends: DataFrame, transactions: DataFrame) -> DataFrame:
    outcomes = transactions.groupBy("history", fn.col("name").alias("transaction")).agg(
        fn.max_by("outcome", "seq").alias("transaction_outcome")
    )
    is_promised = fn.when(
        fn.col("transaction") != "", fn.coalesce(fn.col("transaction_outcome") == COMMITTED, fn.lit(False))
    ).otherwise(fn.col("outcome") == ACKNOWLEDGED)
    return sends.join(outcomes, ["history", "transaction"], "left").withColumn("is_promised", is_promised)
