"""The core of a group shard: classic groups, consumer groups (KIP-848), their offsets. No I/O, no clock."""
