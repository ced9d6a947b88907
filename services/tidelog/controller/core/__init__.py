"""The controller's decisions: state from the store's records, records out. No I/O, no clock, no randomness
of its own.
"""
