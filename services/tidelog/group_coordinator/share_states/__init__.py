"""The core of a shard of `__share_group_state`: the states of share partitions (KIP-932)."""
