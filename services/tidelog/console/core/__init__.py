"""The parts of the console that decide: they do no I/O and know no clock."""
