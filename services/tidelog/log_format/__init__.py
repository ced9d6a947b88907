"""The formats of the files in a data directory, which are Apache Kafka's.

The broker, `adopt`, `doctor`, `dump-log` and the pipeline read these files in one way. This package does no
I/O: its functions take and return bytes.
"""
