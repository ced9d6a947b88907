"""Numbers of options whose limits are told in words."""

from __future__ import annotations

from typing import Any

import click


class LimitedInt(click.IntRange):
    """An integer. Its error is one sentence with the limits, whether the text is no number or beyond them."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number: int = super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"Expected an integer, {self._describe_range()}, not '{value}'.", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Overrides what click shows in the help, too."""
        return limits_text(self)


class LimitedFloat(click.FloatRange):
    """A number with a fraction. Its error is one sentence with the limits."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number: float = super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"Expected a number, {self._describe_range()}, not '{value}'.", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Overrides what click shows in the help, too."""
        return limits_text(self)


def limits_text(of: click.IntRange | click.FloatRange) -> str:
    """Returns the limits in words, such as `at least 1` or `from 1 to 16`."""
    if of.min is not None and of.max is not None and not of.min_open and not of.max_open:
        return f"from {of.min} to {of.max}"
    texts = []
    if of.min is not None:
        texts.append(f"more than {of.min}" if of.min_open else f"at least {of.min}")
    if of.max is not None:
        texts.append(f"less than {of.max}" if of.max_open else f"at most {of.max}")
    return " and ".join(texts)


def with_limits_in_words(given: click.ParamType[Any]) -> click.ParamType[Any]:
    """Returns the type in place of a range of click, and any other type itself."""
    if type(given) is click.IntRange:
        return LimitedInt(given.min, given.max, given.min_open, given.max_open, given.clamp)
    if type(given) is click.FloatRange:
        return LimitedFloat(given.min, given.max, given.min_open, given.max_open, given.clamp)
    return given
