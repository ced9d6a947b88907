"""Tables, ledgers and logs made by hand, for faults to be planted in."""
