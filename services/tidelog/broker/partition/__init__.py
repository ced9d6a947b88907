"""What a partition decides: appends, producers, epochs. No I/O, no clock."""
