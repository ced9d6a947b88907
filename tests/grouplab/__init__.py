"""A group shard without its runtime, in virtual time, with its records and with scripted members."""
