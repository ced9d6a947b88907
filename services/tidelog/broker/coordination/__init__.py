"""The broker's part in groups and transactions: coordinators' sessions, their hold on the shards' partitions
that this broker leads, and clients' requests on their way to them.
"""
