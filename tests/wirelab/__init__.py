"""All kinds of messages, for tests of the wire codec."""
