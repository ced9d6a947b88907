"""The archive job: topics into a table, each record exactly once, whoever is killed and when."""
