"""A small synchronous Kafka client, which the command line uses."""
