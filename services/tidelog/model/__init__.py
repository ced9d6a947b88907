"""The terms that all services share, such as topics, partitions and errors. This package does no I/O."""
