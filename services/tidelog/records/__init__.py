"""Record batches (magic 2): headers, checksums, compression and records. No I/O."""
