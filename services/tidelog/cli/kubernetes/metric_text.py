"""Reads one metric from Prometheus' text format."""

from __future__ import annotations


def sum_of(text: str, name: str) -> float | None:
    """Returns the sum over all label sets, or None if the metric does not exist.

    Raises ValueError if a value is not a number.
    """
    found: float | None = None
    for line in text.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in (" ", "{"):
            value = line.rpartition("}")[2] if "}" in line else line[len(name) :]
            found = (found or 0.0) + float(value.split()[0])
    return found
