"""The broker: the only door for clients; keeps partitions and answers Kafka's APIs."""
