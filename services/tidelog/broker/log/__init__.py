"""Partitions on disk, in Apache Kafka's own file formats. All file I/O of a broker's data directories is
here.
"""
