"""Views of a running cluster for the console, the commands and the pipeline: its state, lag and rates."""
