"""Share groups (KIP-932): members, assignment, and the initialization of share partitions."""
