"""The tools for a whole cluster: its state, its replicas, and changes of its brokers."""
