"""The decisions of the Kafka client, without I/O: events in, effects out (ADR 0056)."""
