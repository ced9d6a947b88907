"""Tables, ledgers and logs made by hand, in which tests plant faults."""
