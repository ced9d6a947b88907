"""Regular expressions of subscriptions, compared with RE2/J."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pytest
import re2

import grouplab
from brokerlab.counted_work import ATTEMPTS, cpu_s, least_cpu_s
from brokerlab.kafka_jars import KafkaUnavailableError, find_jars
from grouplab.kafka_answers import ask_java
from tidelog.group_coordinator.groups.consumer.group_changes import MATCHES_AT_ONCE
from tidelog.group_coordinator.groups.consumer.topic_regex import RegexSweep, TopicRegex
from tidelog.model.errors import ErrorCode, KafkaError

ORACLE = Path(grouplab.__file__).with_name("KafkaAssignors.java")
NAMES = (
    "orders",
    "orders-2",
    "Orders_x",
    "a",
    "b",
    "aaa",
    "ab.ab",
    "x-1.y_2",
    "0",
    "-",
    "__consumer_offsets",
)


@pytest.mark.parametrize(
    ("expression", "matched"),
    [
        ("orders", {"orders"}),
        ("orders.*", {"orders", "orders-2"}),
        ("(?i)orders.*", {"orders", "orders-2", "Orders_x"}),
        ("^a+$", {"a", "aaa"}),
        ("[ab]", {"a", "b"}),
        ("[^ab]", {"0", "-"}),
        ("(ab\\.?){2}", {"ab.ab"}),
        (r"\w", {"a", "b", "0"}),
        (r"\W", {"-"}),
        (r"[[:alpha:]]|[[:digit:]]", {"a", "b", "0"}),
        (r"\Qab.ab\E", {"ab.ab"}),
        (r"__.*", {"__consumer_offsets"}),
        (r"a{2,}", {"aaa"}),
        (r"(?P<first>a)|(?:b)", {"a", "b"}),
        ("", set()),
        ("a|", {"a"}),
    ],
)
def test_matching(expression: str, matched: set[str]) -> None:
    assert TopicRegex(expression).resolve(NAMES) == matched


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        ")",
        "[",
        "[a",
        "a**",
        "*",
        "(?=a)",
        "(?<=a)",
        "(a)\\1",
        "\\",
        "a{2,1}",
        "a{1001}",
        "[b-a]",
        "(?z)",
        "\\pX",
    ]
    + ["((a{1000}){1000}){1000}", "a" * 10_001, "[[:what:]]"],
)
def test_invalid_expressions(expression: str) -> None:
    with pytest.raises(KafkaError) as refused:
        TopicRegex(expression)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_no_expression_takes_more_than_linear_time() -> None:
    names = ["a" * 240 + "!", "a" * 249]
    begun = time.process_time()
    for expression in (
        "(a+)+b",
        "(a|a)*b",
        "(a*)*(a*)*b",
        "(.*a){20}b",
        "(a?){200}b",
        "[a-z._-]?" * 990 + "#",
    ):
        assert not TopicRegex(expression).resolve(names)
    assert time.process_time() - begun < 1


COSTLY = (
    "(.?){1000}" * 30 + "z",
    "(.?){1000}(.?){999}z",
    "(.{0,1000})z" * 20,
    "(" + "|".join(f".*a.{{{n}}}" for n in range(1, 60)) + ")",
    "(" + "|".join(f"(.*[ab].{{{n}}})*" for n in range(100, 200, 8)) + ")z",
    "(.*a.{200})*",
    "([a-b]?){990}x.*",
    "[a-z._-]?" * 990 + "#",
)


@pytest.mark.parametrize(
    "expression",
    ["(?i)" + "\\pN" * 3_000, "(?i)[^\\pL\\pN\\pM\\pS]{1000}", "[^a]{1000}", "." * 10_000, *COSTLY],
)
def test_compiling_takes_a_bounded_time(expression: str) -> None:
    def compile_() -> None:
        with contextlib.suppress(KafkaError):
            TopicRegex(expression)

    assert least_cpu_s(compile_) < 0.1


@pytest.mark.parametrize("expression", COSTLY)
def test_a_step_takes_a_bounded_time(expression: str) -> None:
    """RE2 executes each instruction for each character if its automaton has too many states."""
    seed = 20261127
    names = ["".join(random.Random(seed + n).choices("ab", k=249)) for n in range(40)]

    def longest_step_s() -> float:
        compiled = {expression: TopicRegex(expression)}
        sweep = RegexSweep(compiled, compiled, names, 1)
        longest_s = 0.0
        while not sweep.is_complete:
            longest_s = max(longest_s, cpu_s(lambda: list(sweep.advance(MATCHES_AT_ONCE))))
        return longest_s

    try:  # 45 ms on a quiet machine
        assert any(longest_step_s() < 0.15 for _ in range(ATTEMPTS)), f"seed {seed}"
    except KafkaError as error:
        assert error.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_long_list_of_topics_is_an_expression() -> None:
    names = [f"topic-{number:03}" for number in range(900)]
    assert TopicRegex("|".join(names)).resolve([*names, "other"]) == set(names)


def test_few_unicode_classes_are_allowed() -> None:
    assert TopicRegex(r"\pL" * 5).matches("topic")
    with pytest.raises(KafkaError, match="more than 5 Unicode classes"):
        TopicRegex(r"\pL" * 6)


@pytest.mark.parametrize(
    ("expression", "name", "is_matched"),
    [
        *[("é?a", "a", True), ("[a-日]+", "ab", True), ("é", "a", False), ("[^日]", "a", True)],
        *[
            ("é.", "é日", True),
            ("[à-ÿ]", "é", True),
            ("ü", "é", False),
            ("日.", "日x", True),
        ],
    ],
)
def test_characters_beyond_ascii(expression: str, name: str, is_matched: bool) -> None:
    assert TopicRegex(expression).matches(name) == is_matched


@pytest.mark.parametrize("expression", ["[a-z]?" * 990, "("])
def test_the_module_keeps_no_expression(expression: str) -> None:
    with contextlib.suppress(KafkaError):
        TopicRegex(expression)
    assert re2._Regexp._make.cache_info().currsize == 0


PIECES = (
    [
        "a",
        "b",
        "ab",
        ".",
        "\\.",
        "-",
        "_",
        "[a-c]",
        "[^a]",
        "[-a]",
        "[]a]",
        "[a-]",
        "\\d",
        "\\w",
        "\\S",
        "\\D",
        "x",
    ]
    + [
        "(a|b)",
        "(?:ab|)",
        "(?i:A)",
        "^",
        "$",
        "\\A",
        "\\z",
        "[[:lower:]]",
        "[[:^digit:]]",
        "\\x61",
        "\\pL",
        "\\PN",
    ]
    + ["\\Qa.\\E", "}", "a{2", "(?i)", "(?P<n>b)", "(", ")", "[", "\\"]
)
SUFFIXES = ("", "", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "**", "{,2}", "|")


def expressions(seed: int, count: int) -> list[str]:
    chance = random.Random(seed)

    def piece() -> str:
        """Excludes a repetition after flags, for which RE2/J's behaviour is not documented."""
        chosen = chance.choice(PIECES)
        return chosen if chosen == "(?i)" else chosen + chance.choice(SUFFIXES)

    return ["".join(piece() for _ in range(chance.randint(1, 4))) for _ in range(count)]


@pytest.mark.java
@pytest.mark.integration
def test_re2_agrees() -> None:
    try:
        jars = find_jars()
    except KafkaUnavailableError as error:
        pytest.skip(str(error))
    cases = [(expression, name) for expression in expressions(1, 800) for name in NAMES]
    answers = ask_java(jars, ORACLE, [f"regex {expression} {name}" for expression, name in cases])
    wrong = {}
    for (expression, name), answer in zip(cases, answers, strict=True):
        try:
            ours = str(TopicRegex(expression).matches(name)).lower()
        except KafkaError:
            ours = "error"
        if ours != answer.split(" ")[0]:
            if "duplicate capture group name" in answer:  # ADR 0028: groups of the same name are accepted
                continue
            wrong[expression] = f"{expression} on {name}: ours {ours}, RE2/J {answer}"
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(list(wrong.values())[:20])


def test_a_sweep_completes_expressions_step_by_step() -> None:
    """Results are written as they are completed. All at once, they would take too long and be too large."""
    names = [f"t{number:03}" for number in range(100)]
    sweep = RegexSweep(["t.*", "t0[0-4].*", "(", "none"], {"none": TopicRegex("none")}, names, 1)
    steps = []
    while not sweep.is_complete:
        steps.append([(expression, len(topics)) for expression, topics in sweep.advance(70)])
    assert steps == [[], [("(", 0)], [("none", 0)], [], [("t.*", 100)], [], [("t0[0-4].*", 50)]]
