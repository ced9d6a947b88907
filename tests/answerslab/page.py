"""The file of answers, with one line for each API, case and answer, and docs/answers.md, the page that counts
the compared answers and lists the different ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from answerslab.differences import DIFFERENCES, DIFFERENCES_OF_PLACES, Difference
from answerslab.script import CASES, NO_COORDINATOR, UNAUTHORIZED, Answers, Row
from tidelog.wire.api_keys import ApiKey

SEPARATOR = " | "
RECORDING = Path(__file__).with_name("answers_of_kafka.txt")
PLACES_RECORDING = Path(__file__).with_name("places_of_kafka.txt")
PAGE = Path(__file__).parents[2] / "docs" / "answers.md"


def written(answers: Answers) -> str:
    """Returns the text of the file."""
    return "".join(f"{line}\n" for line in lines(answers))


def lines(answers: Mapping[Row, str]) -> Iterator[str]:
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for (api, case, version), answer in answers.items():
        groups[api, case, answer].append(version)
    for (api, case, answer), versions in groups.items():
        yield SEPARATOR.join((api, case, spans(versions), answer))


def read(text: str) -> Answers:
    """Returns the answers that the file contains."""
    answers: Answers = {}
    for line in text.splitlines():
        api, case, versions, answer = line.split(SEPARATOR, 3)
        for version in versions_of(versions):
            answers[api, case, version] = answer
    return answers


def versions_in(answers: Answers, case: str | None = UNAUTHORIZED) -> dict[int, range]:
    """Returns the versions of each API that the recorded broker serves. Each API has `case` in all of them.
    Without `case`, all answers count.
    """
    asked: dict[int, list[int]] = defaultdict(list)
    keys = {api.name_in_kafka: int(api) for api in ApiKey}
    for api, given, version in answers:
        if case in (None, given):
            asked[keys[api]].append(version)
    return {key: range(min(versions), max(versions) + 1) for key, versions in asked.items()}


def spans(versions: Iterable[int]) -> str:
    """Returns versions as `0-3,7`."""
    found: list[list[int]] = []
    for version in sorted(versions):
        if found and version == found[-1][1] + 1:
            found[-1][1] = version
        else:
            found.append([version, version])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def versions_of(text: str) -> Iterator[int]:
    for span in text.split(","):
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)


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
