"""A model of brokers, to test the cores of the Kafka client in virtual time."""
