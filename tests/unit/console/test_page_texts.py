"""Pages of the console: sentences where an ACL is missing, characters that nobody sees, and colours with the
contrast that WCAG 2.2 requires.
"""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.errors import group_error_of, request_error
from tidelog.console.core.record_text import visible
from tidelog.console.readings import denial_text, is_denial, unless_denied
from tidelog.console.rendering import HERE, Renderer
from tidelog.model.errors import ErrorCode, KafkaError

TEXTS = ("text", "quiet", "accent", "good", "warn", "bad")
BACKGROUNDS = ("page", "card", "mark")


def test_a_denial_names_what_was_refused_and_which_acls_allow_it() -> None:
    error = request_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic 'pay: all' partition 3")
    assert is_denial(error)
    group = group_error_of(ErrorCode.GROUP_AUTHORIZATION_FAILED, "audit")
    assert denial_text(group, "") == (
        "The cluster does not show group 'audit' to this user. ACLs with Describe for the group allow it"
    )
    cluster = request_error(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "broker '1'", "Cluster authorization failed."
    )
    assert denial_text(cluster, "alice") == (
        "The cluster does not show broker '1' to user alice. "
        "ACLs with Describe and DescribeConfigs for the cluster allow it"
    )


def test_only_denials_are_taken() -> None:
    denied: list[KafkaError] = []

    def fail(code: ErrorCode) -> int:
        raise request_error(code, "topic 'flights'")

    assert unless_denied(lambda: 7, denied) == 7
    assert unless_denied(lambda: fail(ErrorCode.TOPIC_AUTHORIZATION_FAILED), denied) is None
    assert [error.code for error in denied] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(KafkaError, match="flights"):
        unless_denied(lambda: fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), denied)
    assert not is_denial(ValueError())


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


def luminance(colour: str) -> float:
    """Returns the relative luminance of a colour such as `#fff`, as WCAG defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * each for each in colour[1:])
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes() -> list[dict[str, str]]:
    style = (HERE / "static/console.css").read_text()
    blocks = re.findall(r"\{([^{}]*--page:[^{}]*)\}", style)
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]+);", block)) for block in blocks]


@pytest.mark.parametrize("theme", themes())
def test_text_has_enough_contrast(theme: dict[str, str]) -> None:
    weak = {
        (text, background): round(contrast(theme[text], theme[background]), 2)
        for text in TEXTS
        for background in BACKGROUNDS
        if contrast(theme[text], theme[background]) < 4.5
    }
    assert weak == {}
    assert contrast(theme["focus"], theme["page"]) >= 3


def test_both_ways_to_the_dark_theme_have_the_same_colours() -> None:
    light, dark_by_system, dark_by_choice = themes()
    assert dark_by_system == dark_by_choice != light
