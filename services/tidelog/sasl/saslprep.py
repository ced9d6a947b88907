"""SASLprep (RFC 4013), the preparation of user names and passwords.

Kafka's clients and librdkafka send names and passwords as they are, in UTF-8. So a password that SASLprep
changes works with some clients and not with others; `tidelog user` refuses it.
"""

from __future__ import annotations

import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final

_PROHIBITED: Final[tuple[Callable[[str], bool], ...]] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,  # unassigned code points: this is the preparation of a stored string
)


def saslprep(text: str) -> str:
    """Returns the prepared string. Raises ValueError if it contains a prohibited character or mixes
    directions.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for character in prepared:
        if any(is_prohibited(character) for is_prohibited in _PROHIBITED):
            raise ValueError(f"the character U+{ord(character):04X} is not allowed")
    if any(map(stringprep.in_table_d1, prepared)):
        is_mixed = any(map(stringprep.in_table_d2, prepared))
        ends = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if is_mixed or not ends:
            raise ValueError("the text mixes writing directions")
    return prepared
