"""Tests the comparison of a Go suite's results with the expected outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.outcomes import Outcome, mismatches, read_outcomes, results_in

OUTPUT = """\
=== RUN   TestA
=== RUN   TestA/part
--- PASS: TestA (0.10s)
    --- PASS: TestA/part (0.01s)
=== RUN   TestB
=== RUN   TestC
--- SKIP: TestC (0.00s)
panic: test timed out after 1s
"""


def test_a_test_that_never_ended_has_failed() -> None:
    assert results_in(OUTPUT) == {"TestA": Outcome.PASS, "TestB": Outcome.FAIL, "TestC": Outcome.SKIP}


def test_every_difference_is_reported() -> None:
    expected = read_outcomes("pass TestA # why\n\nskip TestC\nunsteady TestD\npass TestE\n")
    found = {"TestA": Outcome.SKIP, "TestC": Outcome.PASS, "TestD": Outcome.PASS, "TestF": Outcome.PASS}
    assert [problem.split(":")[0] for problem in mismatches(expected, found)] == [
        "TestA",
        "TestC",
        "TestE",
        "TestF",
    ]
    assert mismatches(expected, {**found, "TestD": Outcome.FAIL})[2].startswith("TestD: fail")


def test_the_list_is_sound() -> None:
    listed = read_outcomes((Path(__file__).parent / "outcomes.txt").read_text())
    assert Outcome.FAIL not in listed.values()
    assert listed["TestTxnEtl"] is listed["TestGroupETL"] is Outcome.PASS
    with pytest.raises(ValueError, match="twice"):
        read_outcomes("pass TestA\npass TestA")
