"""Record batches (magic 2): headers, checksums, compression. No I/O."""
