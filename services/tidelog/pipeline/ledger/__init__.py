"""The completeness ledger: each commit of a table records what it took from the log."""
