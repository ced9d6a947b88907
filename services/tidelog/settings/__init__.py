"""Settings of the services, with Kafka's names, defaults and validation."""
