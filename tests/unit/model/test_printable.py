"""The escapes of characters that a terminal would obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.text import printable


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
