"""The core of a partition. It makes decisions about appends, producers, leader epochs and the ISR.

It does no I/O and reads no clock.
"""
