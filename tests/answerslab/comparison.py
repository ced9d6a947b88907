"""Compares the answers of tidelog with the recorded ones of Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from answerslab.differences import Difference
from answerslab.recording import lines, versions_of
from answerslab.script import Answers


def compare(kafkas: Answers, ours: Answers, differences: Sequence[Difference]) -> None:
    """Raises AssertionError for a difference that is not listed, and for a listed one that is none."""
    different = {row for row in kafkas if ours.get(row) != kafkas[row]}
    listed = {
        (entry.api, entry.case, version) for entry in differences for version in versions_of(entry.versions)
    }
    assert ours.keys() == kafkas.keys(), "the questions have changed, so Kafka has to be asked again"
    new = different - listed
    assert not new, "\n".join(
        ["answers that differ from Kafka's:"]
        + [f"kafka:   {line}" for line in lines({row: kafkas[row] for row in sorted(new)})]
        + [f"tidelog: {line}" for line in lines({row: ours[row] for row in sorted(new)})]
    )
    assert not listed - different, f"these answers are Kafka's now: {sorted(listed - different)}"
