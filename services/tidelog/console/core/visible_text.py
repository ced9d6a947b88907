"""Makes characters visible that browsers do not show, or that change the order of those around them.

Names and records come from anybody who may write to the cluster. With U+202E, `gnp.exe` reads as `exe.png`.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_BREAKS: Final = "\n\r\t"
_JOINERS: Final = "\u200c\u200d"
"""They choose the form of letters in Persian and in the scripts of India, and compose emoji."""
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""The categories of controls, format characters, surrogates, and separators of lines and paragraphs."""


def visible(text: str) -> str:
    """Returns a text whose invisible characters are escapes of JSON, such as `\\u202e`."""
    if text.isprintable():
        return text
    return "\n".join(line if line.isprintable() else "".join(map(_shown, line)) for line in text.split("\n"))


def is_text(text: str) -> bool:
    """Returns whether people could have written a text: it has no controls but breaks, and no characters that
    Unicode does not define.
    """
    return all(line.isprintable() or all(map(_is_written, line)) for line in text.split("\n"))


def _shown(character: str) -> str:
    if character in _BREAKS or character in _JOINERS or unicodedata.category(character) not in _INVISIBLE:
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _is_written(character: str) -> bool:
    if character.isprintable() or character in _BREAKS:
        return True
    return unicodedata.category(character) in ("Cf", "Zl", "Zp", "Zs")
