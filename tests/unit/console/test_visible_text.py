"""Text with characters that nobody sees, and how templates show it."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from tidelog.console.core.record_text import visible
from tidelog.console.rendering import Renderer


@given(st.text())
def test_nothing_invisible_is_left(text: str) -> None:
    shown = visible(text)
    for each in shown:
        assert each in "\n\r\t\u200c\u200d" or unicodedata.category(each) not in (
            "Cc",
            "Cf",
            "Cs",
            "Zl",
            "Zp",
        )
    assert visible(shown) == shown
    shown.encode()


@given(st.text(st.characters(categories=["L", "M", "N", "P", "S", "Zs"])))
def test_what_is_visible_stays(text: str) -> None:
    assert visible(text) == text


def test_pages_show_names_without_invisible_characters() -> None:
    page = Renderer().render(
        "message.html",
        {"title": "a\u202eb<", "section": "", "message": "c\x85d", "has_access": False, "user": ""},
    )
    assert "a\\u202eb&lt;" in page
    assert "c\\u0085d" in page
    assert "\u202e" not in page


def test_fields_keep_what_was_typed() -> None:
    """The form would be sent with another text otherwise."""
    reading = {"silent": (), "rows": ()}
    values: dict[str, object] = {
        "value": reading,
        "error": None,
        "denied": [],
        "search": "a\u202e<",
        "shows_internal": False,
        "rows": [],
        "found_count": 0,
        "page": 1,
        "page_count": 1,
    }
    assert 'value="a\u202e&lt;"' in Renderer().render("topics.html", values)
