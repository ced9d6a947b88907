"""Segment files as a source of Spark: no broker is asked."""
