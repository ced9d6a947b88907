"""The follower's side of replication: what this broker fetches from leaders and appends."""
