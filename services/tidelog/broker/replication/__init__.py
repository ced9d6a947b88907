"""Replication between brokers.

A class is named after its peer: a leader has a `FollowerFetchSession`, and a follower a `LeaderFetchSession`.
"""
