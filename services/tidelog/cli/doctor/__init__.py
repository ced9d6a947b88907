"""`tidelog doctor`: examines a running cluster, or a data directory of a stopped broker.

`cluster_facts` and `service_facts` read, `cluster_checks` and `process_checks` judge what they read without
I/O, and `command` prints the findings. `directory_check` and `partition_check` examine files, and
`directory_repair` repairs them.
"""
