"""The file of answers: one line for each API, case and answer, with the versions that have this answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from answerslab.script import UNAUTHORIZED, Answers, Row
from tidelog.wire.api_keys import ApiKey

SEPARATOR = " | "


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
