"""The tools that write, read and print records."""
