"""Messages of every kind for tests of the wire codec."""
