"""Parts of beside_kafka.py: the two brokers, the client's cases, the measurements and their report."""
