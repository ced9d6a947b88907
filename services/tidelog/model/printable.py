"""Names that clients choose, in texts for people."""

from __future__ import annotations


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
