"""The Kafka protocol: message classes, their codec, headers, the table of APIs. No I/O."""
