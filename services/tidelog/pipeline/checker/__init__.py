"""Histories of chaos runs: their format, the names of anomalies, and the checks as a Spark job.

The checker that works in one process (tests/chaoslab) uses the same names.
"""
