"""`tidelog doctor`: examines a running cluster, or a data directory of a stopped broker.

`fact_reader` reads, `checks` judges what it reads without I/O, and `command` prints the findings.
`directory_check` and `partition_check` examine files, and `directory_repair` repairs them.
"""
