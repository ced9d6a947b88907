"""Clusters of real processes for tests and benchmarks, which are started, broken and loaded, and judged by
what was read.
"""
