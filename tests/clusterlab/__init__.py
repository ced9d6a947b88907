"""Clusters of real processes for tests and benchmarks: started, broken, loaded, judged by what was read."""
