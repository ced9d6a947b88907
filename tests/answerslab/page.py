"""Writes docs/answers.md, the page that counts the compared answers and lists the different ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from answerslab.differences import DIFFERENCES, Difference
from answerslab.places_differences import DIFFERENCES_OF_PLACES
from answerslab.recording import read, versions_of
from answerslab.script import CASES, NO_COORDINATOR, UNAUTHORIZED

RECORDING = Path(__file__).with_name("answers_of_kafka.txt")
PLACES_RECORDING = Path(__file__).with_name("places_of_kafka.txt")
PAGE = Path(__file__).parents[2] / "docs" / "answers.md"


def page() -> str:
    """Returns the text of the page."""
    answers = read(RECORDING.read_text())
    apis = len({api for api, _, _ in answers if api in {key.name_in_kafka for key in CASES}})
    versions = len({(api, version) for api, case, version in answers if case == UNAUTHORIZED})
    different = _count(DIFFERENCES)
    named = {case.name for cases in CASES.values() for case in cases}
    by_kind: dict[str, int] = defaultdict(int)
    for _, case, _ in answers:
        kind = case if case in (UNAUTHORIZED, NO_COORDINATOR) else "valid or wrong in one thing"
        by_kind[kind if case in named or kind == case else "malformed, unknown versions, and afterwards"] += 1
    kinds = "\n".join(f"| {kind} | {count} |" for kind, count in sorted(by_kind.items()))
    places = read(PLACES_RECORDING.read_text())
    different_places = _count(DIFFERENCES_OF_PLACES)
    return f"""# Answers compared with Apache Kafka

A script sends the same requests to Apache Kafka 4.3.1 and to tidelog and compares the answers: valid
requests, requests with one thing wrong (a topic, a partition, an epoch, a member, a value), requests without
authorization and before coordinators exist, bodies that end early or have impossible lengths, and unknown
versions. Error codes and all fields are compared, except texts, times, addresses and random numbers. A closed
connection counts as an answer.

- {apis} APIs in {versions} versions
- **{len(answers)} answers, {len(answers) - different} equal, {different} different for a reason**

| requests | answers |
|---|---|
{kinds}

`tests/integration/test_answers_of_kafka.py` runs the script against tidelog and fails for a difference that
is not in the table below, and for a row of the table whose answers are equal. `tests/answerslab` contains the
questions, the recorded answers of Kafka, and how to record them again.

{_table(DIFFERENCES)}

## Answers that depend on the broker

In clusters of three brokers, the script asks the leader, a follower, and a broker without a replica; the
coordinator, and a broker that is not; and, after one broker was killed, the brokers that are left. Leader
epochs are the current one, an older one, and one that does not exist yet.

- **{len(places)} answers, {len(places) - different_places} equal, {different_places} different for a reason**

`tests/integration/cluster/test_places_as_in_kafka.py` compares them in the same way.

{_table(DIFFERENCES_OF_PLACES)}
"""


def _count(differences: Sequence[Difference]) -> int:
    return sum(len(list(versions_of(entry.versions))) for entry in differences)


def _table(differences: Sequence[Difference]) -> str:
    head = "| API | request | versions | reason |\n|---|---|---|---|"
    return "\n".join((head, *(f"| {d.api} | {d.case} | {d.versions} | {d.reason}. |" for d in differences)))
