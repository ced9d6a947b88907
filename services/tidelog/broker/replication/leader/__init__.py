"""The leader's side of replication: what followers fetch, and the ISR."""
