"""Compaction, which keeps the last record of each key. A worker process writes the cleaned segments."""
