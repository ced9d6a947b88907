"""The web console: pages that show a cluster's brokers, topics, records, groups and transactions (ADR 0061).

It reads the cluster with `tidelog.client` and changes nothing. It needs the extra `console`.
"""
