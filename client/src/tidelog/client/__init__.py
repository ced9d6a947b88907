"""A small synchronous Kafka client: what the command line talks to brokers with."""
