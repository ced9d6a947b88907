"""Real brokers and clients for tests and benchmarks: processes, raw Kafka protocol, Kafka's own tools."""
