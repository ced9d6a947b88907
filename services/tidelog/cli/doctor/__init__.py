"""`tidelog doctor`: examines a running cluster, or a data directory of a stopped broker.

`cluster_facts` and `service_facts` read, `cluster_checks` judges what they read without I/O, and `command`
prints the findings.
"""
