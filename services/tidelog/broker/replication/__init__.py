"""Replication between brokers.

`leader` is the leader's side, which knows followers; `follower` is the follower's side, which knows leaders.
A class is named after its peer: `leader.FollowerFetchSession`, `follower.LeaderFetchSession`.
"""
