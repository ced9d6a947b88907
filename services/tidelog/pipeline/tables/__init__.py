"""The tables of archives, Delta or plain Parquet: their commits, ledgers, hashes and maintenance."""
