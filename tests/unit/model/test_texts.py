"""Words and characters in messages: plurals, and the escapes of characters that a terminal would obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.text import counted, printable


def test_only_one_thing_is_singular() -> None:
    assert [counted(number, "move") for number in (0, 1, 2)] == ["0 moves", "1 move", "2 moves"]
    assert counted(1, "move", "was", "were") == "1 move was"
    assert counted(0, "move", "was", "were") == "0 moves were"
    assert counted(1_234_567, "dead letter", thousands=",") == "1,234,567 dead letters"


@given(st.integers(min_value=0).filter(lambda number: number != 1))
def test_every_other_number_is_plural(number: int) -> None:
    assert counted(number, "ACL", "is", "are") == f"{number} ACLs are"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("orders", "orders"),
        ("Zürich 東京", "Zürich 東京"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("two\nlines\t", "two\\nlines\\t"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("\udc80", "\\udc80"),
    ],
)
def test_control_characters_are_shown_as_escapes(name: str, shown: str) -> None:
    assert printable(name) == shown


@given(st.text())
def test_the_result_is_printable_except_for_what_is_kept(text: str) -> None:
    assert printable(text).isprintable()
    kept = printable(text, kept="\n")
    assert kept.replace("\n", "").isprintable()
    assert kept.count("\n") == text.count("\n")
