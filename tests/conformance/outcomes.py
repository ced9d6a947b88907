"""The actual and the expected outcome of each test of a Go suite."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

_RESULT = re.compile(r"^--- (PASS|FAIL|SKIP): (\S+) \(", re.MULTILINE)
_STARTED = re.compile(r"^=== RUN   ([^\s/]+)$", re.MULTILINE)


class Outcome(Enum):
    """The outcome of a test. UNSTEADY is only an expectation: the test fails occasionally, against Apache
    Kafka, too.
    """

    PASS = "pass"
    SKIP = "skip"
    FAIL = "fail"
    UNSTEADY = "unsteady"


def read_outcomes(text: str) -> dict[str, Outcome]:
    """Parses lines of the form `outcome name`; `#` starts a comment. Raises ValueError for any other line."""
    outcomes: dict[str, Outcome] = {}
    for line in text.splitlines():
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        outcome, name = fields
        if name in outcomes:
            raise ValueError(f"{name} is listed twice")
        outcomes[name] = Outcome(outcome)
    return outcomes


def results_in(output: str) -> dict[str, Outcome]:
    """Returns the outcomes of tests, not of subtests. A test that started and did not end has failed."""
    results = dict.fromkeys(_STARTED.findall(output), Outcome.FAIL)
    for word, name in _RESULT.findall(output):
        results[name] = Outcome(word.lower())
    return results


def mismatches(expected: Mapping[str, Outcome], found: Mapping[str, Outcome]) -> list[str]:
    problems = []
    for name in sorted({*expected, *found}):
        wanted, came = expected.get(name), found.get(name)
        if wanted is None:
            problems.append(f"{name}: {came.value if came else ''}, but not listed in outcomes.txt")
        elif came is None:
            problems.append(f"{name}: listed, but there is no such test")
        elif came is not (Outcome.PASS if wanted is Outcome.UNSTEADY else wanted):
            problems.append(f"{name}: {came.value}, expected {wanted.value}")
    return problems
