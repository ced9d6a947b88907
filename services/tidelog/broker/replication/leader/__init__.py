"""The leader's side of replication: fetch sessions of followers, and the ISR."""
