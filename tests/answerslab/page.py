"""Writes docs/answers.md, the page that counts the compared answers and lists the different ones."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from answerslab.differences import DIFFERENCES
from answerslab.recording import read, versions_of
from answerslab.script import CASES, NO_COORDINATOR, UNAUTHORIZED

RECORDING = Path(__file__).with_name("answers_of_kafka.txt")
PAGE = Path(__file__).parents[2] / "docs" / "answers.md"


def page() -> str:
    """Returns the text of the page."""
    answers = read(RECORDING.read_text())
    apis = len({api for api, _, _ in answers if api in {key.name_in_kafka for key in CASES}})
    versions = len({(api, version) for api, case, version in answers if case == UNAUTHORIZED})
    different = sum(len(list(versions_of(entry.versions))) for entry in DIFFERENCES)
    named = {case.name for cases in CASES.values() for case in cases}
    by_kind: dict[str, int] = defaultdict(int)
    for _, case, _ in answers:
        kind = case if case in (UNAUTHORIZED, NO_COORDINATOR) else "valid or wrong in one thing"
        by_kind[kind if case in named or kind == case else "malformed, unknown versions, and afterwards"] += 1
    kinds = "\n".join(f"| {kind} | {count} |" for kind, count in sorted(by_kind.items()))
    rows = "\n".join(f"| {d.api} | {d.case} | {d.versions} | {d.reason}. |" for d in DIFFERENCES)
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

| API | request | versions | reason |
|---|---|---|---|
{rows}
"""
