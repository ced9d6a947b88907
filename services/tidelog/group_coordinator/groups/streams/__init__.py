"""Streams groups (KIP-1071): the topology of a group, its internal topics, and the assignment of tasks."""
