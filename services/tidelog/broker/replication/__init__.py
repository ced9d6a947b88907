"""Replication between brokers. `leader` is the leader's side: it knows followers. `follower` is the
follower's side: it knows leaders. A class is named after its peer: `leader.FollowerFetchSession`,
`follower.LeaderFetchSession`.
"""
