"""The follower's side of replication: fetching from leaders and appending the records."""
