"""Parses regular expressions in RE2's syntax and builds automata that match topic names.

The parser rejects word boundaries (`\\b`, `\\B`) and Unicode classes other than letters, numbers and
punctuation. Like RE2, it also rejects back references and look-around.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Final

AT_START: Final = "start"
AT_END: Final = "end"
MAX_REPEATS: Final = 1000
"""The limit of RE2."""
MAX_LENGTH: Final = 10_000
MAX_STATES: Final = 4_000
MAX_DEPTH: Final = 50

_LETTERS: Final = frozenset(string.ascii_letters)
_DIGITS: Final = frozenset(string.digits)
NAME_CHARACTERS: Final = _LETTERS | _DIGITS | frozenset("._-")
_CLASSES: Final = {
    "d": _DIGITS,
    "w": _LETTERS | _DIGITS | {"_"},
    "s": frozenset[str](),
}
_POSIX: Final = {
    "alnum": _LETTERS | _DIGITS,
    "alpha": _LETTERS,
    "ascii": NAME_CHARACTERS,
    "blank": frozenset[str](),
    "cntrl": frozenset[str](),
    "digit": _DIGITS,
    "graph": NAME_CHARACTERS,
    "lower": frozenset(string.ascii_lowercase),
    "print": NAME_CHARACTERS,
    "punct": frozenset("._-"),
    "space": frozenset[str](),
    "upper": frozenset(string.ascii_uppercase),
    "word": _LETTERS | _DIGITS | {"_"},
    "xdigit": frozenset(string.hexdigits),
}
_UNICODE: Final = {
    "L": _LETTERS,
    "Lu": frozenset(string.ascii_uppercase),
    "Ll": frozenset(string.ascii_lowercase),
    "N": _DIGITS,
    "Nd": _DIGITS,
    "P": frozenset("._-"),
}
_CONTROL: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


@dataclass(slots=True)
class Automaton:
    """A nondeterministic automaton.

    `steps[state]` has pairs of characters and the next state. `jumps[state]` has transitions without a
    character: pairs of a condition, which may be empty, and the next state.
    """

    begin: int = 0
    end: int = 0
    steps: list[list[tuple[frozenset[str], int]]] = field(default_factory=list)
    jumps: list[list[tuple[str, int]]] = field(default_factory=list)

    def new_state(self) -> int:
        if len(self.steps) >= MAX_STATES:
            raise ValueError("the expression is too large")
        self.steps.append([])
        self.jumps.append([])
        return len(self.steps) - 1


@dataclass(frozen=True, slots=True)
class _Characters:
    of: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Condition:
    name: str


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    options: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    of: _Node
    least: int
    most: int | None


_Node = _Characters | _Condition | _Sequence | _Choice | _Repeat


def parse(expression: str, alphabet: frozenset[str] = NAME_CHARACTERS) -> Automaton:
    """Returns the automaton of an expression over `alphabet`. Raises ValueError, which states the reason."""
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"the expression is longer than {MAX_LENGTH} characters")
    parser = _Parser(expression, alphabet)
    node = parser.choice(depth=0)
    if not parser.at_end:
        raise ValueError("a parenthesis ) has no matching (")
    automaton = Automaton()
    automaton.begin, automaton.end = _build(automaton, node)
    return automaton


def _build(automaton: Automaton, node: _Node) -> tuple[int, int]:
    begin, end = automaton.new_state(), automaton.new_state()
    match node:
        case _Characters(of):
            automaton.steps[begin].append((of, end))
        case _Condition(name):
            automaton.jumps[begin].append((name, end))
        case _Sequence(parts):
            at = begin
            for part in parts:
                at = _append(automaton, at, part)
            automaton.jumps[at].append(("", end))
        case _Choice(options):
            for option in options:
                automaton.jumps[_append(automaton, begin, option)].append(("", end))
        case _Repeat(of, least, most):
            at = begin
            for _ in range(least):
                at = _append(automaton, at, of)
            automaton.jumps[at].append(("", end))
            if most is None:
                again = _append(automaton, at, of)
                automaton.jumps[again].append(("", at))
            else:
                for _ in range(most - least):
                    at = _append(automaton, at, of)
                    automaton.jumps[at].append(("", end))
    return begin, end


def _append(automaton: Automaton, at: int, node: _Node) -> int:
    begin, end = _build(automaton, node)
    automaton.jumps[at].append(("", begin))
    return end


class _Parser:
    def __init__(self, expression: str, alphabet: frozenset[str]) -> None:
        self._text = expression
        self._alphabet = alphabet
        self._at = 0
        self._ignores_case = False
        self._names: set[str] = set()

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def _peek(self) -> str:
        return self._text[self._at] if not self.at_end else ""

    def _take(self) -> str:
        if self.at_end:
            raise ValueError("the expression is incomplete")
        self._at += 1
        return self._text[self._at - 1]

    def _takes(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def choice(self, depth: int) -> _Node:
        """Parses alternatives up to the end or an unmatched `)`, where flags set within them end."""
        if depth > MAX_DEPTH:
            raise ValueError("the expression has too many nested groups")
        outer = self._ignores_case
        options = [self._sequence(depth)]
        while self._takes("|"):
            options.append(self._sequence(depth))
        self._ignores_case = outer
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self, depth: int) -> _Node:
        parts: list[_Node] = []
        while not self.at_end and self._peek() not in "|)":
            if self._takes("\\Q"):
                end = self._text.find("\\E", self._at)
                literal = self._text[self._at : end if end >= 0 else None]
                self._at = end + 2 if end >= 0 else len(self._text)
                parts += [self._literal(character) for character in literal]
                if literal:
                    parts[-1] = self._repeated(parts[-1])
                continue
            atom = self._atom(depth)
            if atom is not None:
                parts.append(self._repeated(atom))
        return _Sequence(tuple(parts))

    def _repeated(self, atom: _Node) -> _Node:
        repeats = 0
        while True:
            bounds = self._bounds()
            if bounds is None:
                return atom
            if repeats:
                raise ValueError("a repetition follows another repetition")
            repeats += 1
            self._takes("?")  # a lazy repetition matches the same names
            atom = _Repeat(atom, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._takes("*"):
            return 0, None
        if self._takes("+"):
            return 1, None
        if self._takes("?"):
            return 0, 1
        if self._peek() != "{":
            return None
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at + 1 : max(end, 0)].partition(",")
        if not _is_number(least) or not (most == "" or _is_number(most)):
            return None  # the brace is a literal
        self._at = end + 1
        first = int(least)
        last = int(most) if most else None if comma else first
        if max(first, last or 0) > MAX_REPEATS or (last is not None and last < first):
            raise ValueError("a repeat count is not valid")
        return first, last

    def _atom(self, depth: int) -> _Node | None:
        if self._peek() == "{" and self._bounds() is not None:
            raise ValueError("nothing precedes {")
        character = self._take()
        match character:
            case "(":
                return self._group(depth)
            case "[":
                return _Characters(self._bracket())
            case ".":
                return _Characters(self._alphabet)
            case "^":
                return _Condition(AT_START)
            case "$":
                return _Condition(AT_END)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise ValueError(f"nothing precedes {character}")
        return self._literal(character)

    def _group(self, depth: int) -> _Node | None:
        if self._takes("?P<") or (
            self._text[self._at : self._at + 3] not in ("?<=", "?<!") and self._takes("?<")
        ):
            name, closed, _ = self._text[self._at :].partition(">")
            if not closed or not name.isidentifier() or not name.isascii():
                raise ValueError("the name of a group is not valid")
            if name in self._names:
                raise ValueError(f"two groups have the name {name}")
            self._names.add(name)
            self._at += len(name) + 1
        elif self._takes("?"):
            outer = self._ignores_case
            if self._flags():
                return None  # the flags apply to the rest of the enclosing group
            node = self.choice(depth + 1)
            self._close()
            self._ignores_case = outer
            return node
        node = self.choice(depth + 1)
        self._close()
        return node

    def _flags(self) -> bool:
        """Parses flags, and returns whether the group ends after them."""
        setting = True
        while True:
            match self._take():
                case "i":
                    self._ignores_case = setting
                case "m" | "s" | "U":
                    pass  # names have no line ends, and lazy repetitions match the same names
                case "-" if setting:
                    setting = False
                case ":":
                    return False
                case ")":
                    return True
                case other:
                    raise ValueError(f"the group (?{other} is not supported")

    def _close(self) -> None:
        if not self._takes(")"):
            raise ValueError("a parenthesis ( has no matching )")

    def _literal(self, character: str) -> _Characters:
        return _Characters(self._cased(frozenset(character)))

    def _cased(self, characters: frozenset[str]) -> frozenset[str]:
        if not self._ignores_case:
            return characters
        return characters | {c.lower() for c in characters} | {c.upper() for c in characters}

    def _escape(self) -> _Node:
        character = self._peek()
        if character in ("A", "z"):
            self._at += 1
            return _Condition(AT_START if character == "A" else AT_END)
        return _Characters(self._cased(self._escaped()))

    def _escaped(self) -> frozenset[str]:
        """Parses the rest of an escape, inside or outside brackets."""
        character = self._take()
        if character.lower() in _CLASSES:
            found = _CLASSES[character.lower()]
            return found if character.islower() else self._alphabet - found
        if character in "pP":
            return self._unicode_class(negated=character == "P")
        if character in _CONTROL:
            return frozenset(_CONTROL[character])
        if character == "x":
            return frozenset(self._hexadecimal())
        if character.isalnum() or not character.isascii():
            raise ValueError(f"the escape \\{character} is not supported")
        return frozenset(character)

    def _hexadecimal(self) -> str:
        if self._takes("{"):
            digits, closed, _ = self._text[self._at :].partition("}")
            self._at += len(digits) + 1
        else:
            digits, closed = self._text[self._at : self._at + 2], "}"
            self._at += 2
        if not closed or not digits or len(digits) > 6 or not set(digits) <= set(string.hexdigits):
            raise ValueError("an escape \\x is not valid")
        code = int(digits, 16)
        if code > 0x10FFFF:
            raise ValueError("an escape \\x is not valid")
        return chr(code)

    def _unicode_class(self, *, negated: bool) -> frozenset[str]:
        name = self._take()
        if name == "{":
            name, closed, _ = self._text[self._at :].partition("}")
            if not closed:
                raise ValueError("a Unicode class is not valid")
            self._at += len(name) + 1
            if name.startswith("^"):
                name, negated = name[1:], not negated
        if name not in _UNICODE:
            raise ValueError(f"the Unicode class {name} is not supported")
        return self._alphabet - _UNICODE[name] if negated else _UNICODE[name]

    def _bracket(self) -> frozenset[str]:
        negated = self._takes("^")
        found: frozenset[str] = frozenset()
        first = True
        while first or self._peek() != "]":
            first = False
            if self._takes("[:"):
                found |= self._posix_class()
                continue
            begin = self._bracketed()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                end = self._bracketed()
                if len(begin) != 1 or len(end) != 1 or min(begin) > min(end):
                    raise ValueError("a range of characters is not valid")
                low, high = min(begin), min(end)
                begin = frozenset(c for c in self._alphabet if low <= c <= high)
            found |= begin
        self._at += 1
        found = self._cased(found)
        return self._alphabet - found if negated else found

    def _bracketed(self) -> frozenset[str]:
        character = self._take()
        return self._escaped() if character == "\\" else frozenset(character)

    def _posix_class(self) -> frozenset[str]:
        name, closed, _ = self._text[self._at :].partition(":]")
        negated = name.startswith("^")
        known = _POSIX.get(name.removeprefix("^"))
        if not closed or known is None:
            raise ValueError("a class of characters is not known")
        self._at += len(name) + 2
        return self._alphabet - known if negated else known


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6
