"""Texts for people: the plurals of words, names that clients chose, and parsed JSON objects."""

from __future__ import annotations

from typing import Any, TypeAlias


def counted(number: int, noun: str, *verbs: str, thousands: str = "") -> str:
    """Returns a number and its noun, whose plural ends with s: `1 move`, `2 moves`.

    The verb follows if its singular and plural are given: `1 move was`, `2 moves were`. `thousands` separates
    groups of digits and is empty or one of `,` and `_`.
    """
    text = f"{number:{thousands}} {noun}{'' if number == 1 else 's'}"
    return " ".join((text, *verbs[number != 1 :][:1]))


def printable(text: str, *, kept: str = "") -> str:
    """Returns the text with escapes, as in Python's literals, in place of the characters that a terminal
    would obey or hide: control characters, line ends, and marks that turn the direction of text. Characters
    in `kept` remain.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in kept
        else character.encode("unicode_escape").decode()
        for character in text
    )


JsonObject: TypeAlias = dict[str, Any]
"""A parsed JSON object. The type of a value is known only after its key, at run time."""
