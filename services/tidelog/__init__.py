"""tidelog: Kafka's log on Kubernetes, in Python."""

__version__ = "0.2.0"
