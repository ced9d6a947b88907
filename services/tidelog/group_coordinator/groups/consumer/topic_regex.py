"""Regular expressions over topic names and transactional ids, by RE2 (KIP-848, KIP-994; ADR 0028).

With Python's `re`, one client could block a whole shard (`(a+)+$`). RE2 matches in linear time and within a
limit of memory. Kafka uses RE2/J, which has the same syntax.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import re2

from tidelog.group_coordinator.groups.shared import TEXT_BYTES
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode, KafkaError

MAX_EXPRESSION_CHARACTERS: Final = 10_000
MAX_UNICODE_CLASSES: Final = 5
"""The most classes like `\\pL` in an expression. To parse one takes RE2 up to 7 ms."""
MAX_REPETITIONS: Final = 2_000
"""The most copies for which counted repetitions like `{0,1000}` in an expression ask. To compile 1,000 takes
RE2 up to 7 ms.
"""
MAX_INSTRUCTIONS: Final = 12_000
"""The most instructions of a compiled expression. In the worst case, RE2 executes all of them for each
character, which takes about 15 ns for each: 45 ms for a topic name of the greatest length.
"""
WORK_OF_A_MATCH: Final = 7_000
"""The product of instructions and characters that takes about 0.1 ms in the worst case."""
MAX_MEMORY_BYTES: Final = 8 << 20
"""The memory for one expression. With 2 MiB, RE2 falls back to an algorithm that takes 50 times as long."""
COMPILATION_MATCHES: Final = 160
"""The matches that take as long as the compilation of the worst expression: 16 ms, at 0.1 ms a match."""
MAX_RESOLVED_BYTES: Final = 16 * 1024 * 1024
"""The size of the topics that the regular expressions of a group match."""
_MAX_QUOTED_CHARACTERS: Final = 1_000
_MAX_COUNT_DIGITS: Final = 9
_REPETITION: Final = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")
_UNICODE_CLASS: Final = re.compile(r"\\[pP]")
_BEYOND_LATIN_1: Final = re.compile(r"[^\x00-\xff]")
_ENCODING: Final = "latin-1"


def _options() -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # classes are large in UTF-8, and topic names are ASCII
    options.max_mem = MAX_MEMORY_BYTES
    options.never_capture = True  # groups would make matching up to 75 times slower
    options.log_errors = False  # RE2 writes them to stderr
    return options


_OPTIONS: Final = _options()


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches. `version` is the version of the cluster image."""

    topics: frozenset[str]
    version: int
    timestamp_ms: WallMs

    def size_bytes(self) -> int:
        return topics_bytes(self.topics)


def topics_bytes(topics: Collection[str]) -> int:
    """Returns about how many bytes these topics of a regular expression take, in memory and in its record."""
    return TEXT_BYTES * len(topics) + sum(map(len, topics))


class TopicRegex:
    """A compiled regular expression. Raises KafkaError (INVALID_REGULAR_EXPRESSION).

    Topic names are ASCII. In transactional ids, all characters beyond Latin-1 count as the same character,
    and `(?i)` affects ASCII letters only.
    """

    def __init__(self, expression: str) -> None:
        check_expression(expression)
        try:
            self._compiled = re2.compile(_encoded(expression), _OPTIONS)
        except re2.error as error:
            raise _invalid(expression, _reason(error)) from None
        finally:
            re2.purge()  # the module keeps the last 128 expressions, each with its memory
        self.instructions: int = self._compiled.programsize
        if self.instructions > MAX_INSTRUCTIONS:
            raise _invalid(expression, f"it compiles to more than {MAX_INSTRUCTIONS:,} instructions")

    def work(self, characters: int) -> int:
        """Returns the product of instructions and characters of a match, to which its time is proportional
        in the worst case.
        """
        return self.instructions * (characters + 1)

    def matches(self, name: str) -> bool:
        """Returns whether the expression matches the whole name."""
        return self._compiled.fullmatch(_encoded(name)) is not None

    def resolve(self, names: Iterable[str]) -> frozenset[str]:
        """Returns the names that match."""
        return frozenset(name for name in names if self.matches(name))


class RegexSweep:
    """The matching of regular expressions with topic names, in steps of a bounded number of matches.

    `compiled` holds those of the expressions that are compiled already. An expression that can't be parsed
    here, which another coordinator accepted, matches nothing.
    """

    def __init__(
        self,
        expressions: Iterable[str],
        compiled: Mapping[str, TopicRegex],
        names: Sequence[str],
        version: int,
    ) -> None:
        self.version = version
        self.has_changes = False
        """Whether an expression matches other topics than before. The caller sets it."""
        self._names = names
        self._compiled = compiled
        self._waiting = sorted(expressions, reverse=True)
        self._expression: str | None = None
        """The expression at hand."""
        self._regex: TopicRegex | None = None
        self._found: set[str] = set()
        self._position = 0
        """The next name for the expression at hand."""
        self._longest = max(map(len, names), default=0)

    @property
    def is_complete(self) -> bool:
        return self._expression is None and not self._waiting

    def advance(self, matches: int) -> Iterator[tuple[str, frozenset[str]]]:
        """Continues with about this number of matches. One that may take longer than 0.1 ms counts as
        several. Yields the expressions that it completes, in alphabetical order, and the topics that they
        match.
        """
        while matches > 0 and not self.is_complete:
            if self._expression is None:
                self._expression = self._waiting.pop()
                matches -= self._begin(self._expression)
                continue
            weight = 1
            if self._regex is not None:
                weight = max(1, self._regex.work(self._longest) // WORK_OF_A_MATCH)
            names = self._names[self._position : self._position + max(1, matches // weight)]
            self._position += len(names)
            matches -= max(1, weight * len(names))
            if self._regex is not None:
                self._found |= self._regex.resolve(names)
            if self._position == len(self._names):
                yield self._expression, frozenset(self._found)
                self._expression = None

    def _begin(self, expression: str) -> int:
        """Turns to the next expression. Returns its cost in matches."""
        self._found = set()
        self._position = 0
        self._regex = self._compiled.get(expression)
        if self._regex is not None:
            return 0
        try:
            self._regex = TopicRegex(expression)
        except KafkaError:
            self._position = len(self._names)
        return COMPILATION_MATCHES


def check_expression(expression: str) -> None:
    """Raises KafkaError (INVALID_REGULAR_EXPRESSION) if the expression would take too long to compile."""
    if len(expression) > MAX_EXPRESSION_CHARACTERS:
        raise _invalid(expression, f"it has more than {MAX_EXPRESSION_CHARACTERS:,} characters")
    if len(_UNICODE_CLASS.findall(expression)) > MAX_UNICODE_CLASSES:
        raise _invalid(expression, f"it has more than {MAX_UNICODE_CLASSES} Unicode classes")
    if _repetitions(expression) > MAX_REPETITIONS:
        raise _invalid(expression, f"its repetitions ask for more than {MAX_REPETITIONS:,} copies")


def _repetitions(expression: str) -> int:
    counts = (found[2] or found[1] for found in _REPETITION.finditer(expression))
    return sum(int(count[:_MAX_COUNT_DIGITS]) for count in counts)


def _invalid(expression: str, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{expression[:_MAX_QUOTED_CHARACTERS]}` is not a valid regular "
        f"expression: {reason}.",
    )


def _encoded(text: str) -> bytes:
    return _BEYOND_LATIN_1.sub("\xff", text).encode(_ENCODING)


def _reason(error: re2.error) -> str:
    """RE2 gives its reasons as bytes, and quotes parts of the expression in them."""
    reason = error.args[0]
    text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    return text[:_MAX_QUOTED_CHARACTERS]
