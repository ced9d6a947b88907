"""Histories of chaos runs: their format, the anomalies' vocabulary, and the checks as a Spark job.

The checker that works within one process (tests/chaoslab) speaks the same vocabulary.
"""
