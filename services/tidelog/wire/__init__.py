"""The Kafka protocol: messages, their codec, headers and the table of APIs. This package does no I/O."""
