"""Regular expressions over topic names in RE2's syntax (KIP-848), matched in linear time.

With Python's `re`, one client could block a whole shard (`(a+)+$`). Here an automaton matches them, whose
states are computed on demand. Its alphabet are the characters of topic names: ASCII letters, digits, `.`, `_`
and `-`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.group_coordinator.groups.consumer.regex_parser import (
    AT_END,
    AT_START,
    NAME_CHARACTERS,
    Automaton,
    parse,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.instants import WallMs

_MAX_CACHED_STATES: Final = 1000


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches. `version` is the version of the cluster image."""

    topics: frozenset[str]
    version: int
    timestamp_ms: WallMs


class TopicRegex:
    """A compiled regular expression. Raises KafkaError (INVALID_REGULAR_EXPRESSION)."""

    def __init__(self, expression: str, alphabet: frozenset[str] = NAME_CHARACTERS) -> None:
        try:
            self._automaton: Automaton = parse(expression, alphabet)
        except ValueError as error:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"SubscribedTopicRegex `{expression[:1_000]}` is not a valid regular expression: {error}.",
            ) from None
        self._begin = self._closure([self._automaton.begin], {AT_START})
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        """Returns whether the expression matches the whole name."""
        states = self._begin
        for character in name:
            states = self._step(states, character)
            if not states:
                return False
        conditions = {AT_END} if name else {AT_START, AT_END}
        return self._automaton.end in self._closure(states, conditions)

    def resolve(self, names: Iterable[str]) -> frozenset[str]:
        """Returns the names that match."""
        return frozenset(name for name in names if self.matches(name))

    def _step(self, states: frozenset[int], character: str) -> frozenset[int]:
        known = self._known.get((states, character))
        if known is None:
            moved = [
                to
                for state in states
                for characters, to in self._automaton.steps[state]
                if character in characters
            ]
            known = self._closure(moved, set())
            if len(self._known) >= _MAX_CACHED_STATES:
                self._known.clear()
            self._known[states, character] = known
        return known

    def _closure(self, states: Iterable[int], holding: set[str]) -> frozenset[int]:
        """Returns the states and all states that can be reached from them without a character."""
        reached = set(states)
        waiting = list(reached)
        while waiting:
            for condition, to in self._automaton.jumps[waiting.pop()]:
                if to not in reached and (not condition or condition in holding):
                    reached.add(to)
                    waiting.append(to)
        return frozenset(reached)


__all__ = ["NAME_CHARACTERS", "ResolvedRegex", "TopicRegex"]
