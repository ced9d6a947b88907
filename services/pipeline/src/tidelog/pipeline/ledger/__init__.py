"""The completeness ledger: what each commit of a table took from the log, kept in the commit itself."""
