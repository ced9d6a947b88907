"""Helpers that tests and benchmarks of the log share."""
