"""Decisions of the consumers: partitions and positions, fetched records, and the membership in a group."""
