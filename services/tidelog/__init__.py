"""tidelog: Kafka's log on Kubernetes, in Python."""
