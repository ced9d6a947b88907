"""The archive job: it writes topics into a table, each record exactly once, even if processes are killed."""
