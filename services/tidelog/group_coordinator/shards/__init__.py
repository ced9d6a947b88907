"""The runtime of group and transaction cores: claims, loads, appends, replication, markers and lag."""
