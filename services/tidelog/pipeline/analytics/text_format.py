"""Parses samples of Prometheus' text format: names, labels, values. The module does no I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from tidelog.pipeline.analytics.facts import Sample

_LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+(-?\d+))?[ \t]*")
_LABEL: Final = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_ESCAPE: Final = re.compile(r"\\(.)")
_MEANING: Final = {"n": "\n", '"': '"', "\\": "\\"}


class ExpositionError(ValueError):
    """The text does not have the text format. The message names the line."""


def samples_of(text: str, at_ms: int, wanted: Collection[str] | None = None) -> Iterator[Sample]:
    """Yields the samples of the `wanted` metrics, or of all. A sample's own timestamp overrides `at_ms`.

    Raises ExpositionError.
    """
    # splitlines would also split at other line breaks, which may be part of a label.
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line[0] == "#":
            continue
        if wanted is not None and line.partition(" ")[0].partition("{")[0] not in wanted:
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ExpositionError(f"line {number}: {line[:80]!r} is not a sample")
        name, labels, value, own_ms = found.groups()
        try:
            number_value = float(value)
        except ValueError:
            raise ExpositionError(f"line {number}: {value[:40]!r} is not a number") from None
        yield Sample(
            name, _labels(labels or "", number), at_ms if own_ms is None else int(own_ms), number_value
        )


def _labels(text: str, line_number: int) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None:
            raise ExpositionError(f"line {line_number}: {text[at : at + 80]!r} is not a label")
        value = found[2]
        if "\\" in value:
            value = _ESCAPE.sub(lambda escape: _MEANING.get(escape[1], escape[0]), value)
        labels[found[1]] = value
        at = found.end()
    return labels
