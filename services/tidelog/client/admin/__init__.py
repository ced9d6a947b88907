"""The administrator's calls: each is a function that blocks and takes a `Cluster`."""
