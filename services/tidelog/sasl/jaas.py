"""The value of `sasl.jaas.config`: one login module with its options, in the syntax of Kafka's `JaasConfig`.

org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_a="b";
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_FLAGS: Final = frozenset({"REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"})
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<comment>//[^\n]*|/\*.*?\*/)
      | "(?P<double>(?:[^"\\\n]|\\.)*)"
      | '(?P<single>(?:[^'\\\n]|\\.)*)'
      | (?P<symbol>[=;])
      | (?P<word>[^\s=;"']+)
    )""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_USER_PREFIX: Final = "user_"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


class JaasError(ValueError):
    """A JAAS text is malformed. The message does not contain the text, which holds passwords."""


class LoginModule(NamedTuple):
    """A login module by its class name, and its options."""

    class_name: str
    options: Mapping[str, str]

    @property
    def user_passwords(self) -> dict[str, str]:
        """The passwords of the options `user_NAME` (Kafka's PlainServerCallbackHandler), by user."""
        return {
            name.removeprefix(_USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(_USER_PREFIX)
        }

    def __repr__(self) -> str:
        return f"LoginModule({self.class_name!r}, [hidden])"


def parse_jaas(text: str) -> LoginModule:
    """Returns the one login module of the text. Raises JaasError."""
    tokens = _tokens(text)
    if not tokens:
        raise JaasError("the JAAS configuration is empty")
    if tokens[-1] != ("symbol", ";"):
        raise JaasError("the JAAS configuration does not end with a semicolon")
    if tokens.count(("symbol", ";")) > 1:
        raise JaasError("the JAAS configuration has more than one login module")
    words = tokens[:-1]
    if len(words) < 2 or words[0][0] == "symbol":
        raise JaasError("the JAAS configuration does not have the form CLASS FLAG NAME=VALUE ... ;")
    if words[1][1].upper() not in _FLAGS:
        raise JaasError("the JAAS configuration has no control flag, such as 'required', after its class")
    options: dict[str, str] = {}
    rest = words[2:]
    for index in range(0, len(rest), 3):
        option = rest[index : index + 3]
        if [kind == "symbol" for kind, _ in option] != [False, True, False]:
            raise JaasError(f"option {index // 3 + 1} of the JAAS configuration is not NAME=VALUE")
        options[option[0][1]] = option[2][1]
    return LoginModule(words[0][1], options)


def quoted(value: str) -> str:
    """Returns `value` as a string of the JAAS syntax."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position, text = 0, text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise JaasError(f"the JAAS configuration is malformed at character {position + 1}")
        position = match.end()
        kind = match.lastgroup
        if kind in ("double", "single"):
            tokens.append(("text", _ESCAPE.sub(_unescaped, match[kind])))
        elif kind in ("symbol", "word"):
            tokens.append((kind, match[kind]))
    return tokens


def _unescaped(match: re.Match[str]) -> str:
    body = match[1]
    if body.isdigit() and body <= "7" * len(body):
        return chr(int(body, 8))
    return _ESCAPES.get(body, body)


def scram_login(user: str, password: str) -> str:
    """Returns the value with which Kafka's clients log in with SCRAM."""
    return f"{_SCRAM_MODULE} required username={quoted(user)} password={quoted(password)};"
