"""The colours of the console: text has the contrast that WCAG 2.2 requires (4.5) in both themes."""

from __future__ import annotations

import re

import pytest

from tidelog.console.rendering import HERE

TEXTS = ("text", "quiet", "accent", "good", "warn", "bad")
BACKGROUNDS = ("page", "card", "mark")


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
