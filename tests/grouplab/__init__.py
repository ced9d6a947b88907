"""One group shard without its runtime: virtual time, the records it made, and members that are scripts."""
