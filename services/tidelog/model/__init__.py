"""What the whole cluster names: topics, partitions, errors. No I/O."""
