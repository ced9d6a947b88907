"""What tests and benchmarks of the log share: batches to append, logs to open, and what lies in them."""
