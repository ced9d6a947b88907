"""Compaction: the last record of each key stays (SPEC B8). A worker process writes, the broker swaps in."""
