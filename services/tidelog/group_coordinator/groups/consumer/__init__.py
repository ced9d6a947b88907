"""Groups of the consumer protocol, whose coordinator assigns the partitions (KIP-848)."""
