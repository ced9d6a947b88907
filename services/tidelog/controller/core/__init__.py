"""The controller's decisions: functions from the state of the metadata store to the records to write.

They do no I/O, read no clock and take randomness as an argument.
"""
