"""The tables of archives, Delta or plain Parquet: their commits, ledgers, hashes and maintenance."""

from tidelog.pipeline.tables.archive_table import read_table

__all__ = ["read_table"]
