"""The logs of partitions on disk, in Apache Kafka's file formats.

All file I/O in a broker's data directory is in this package.
"""
