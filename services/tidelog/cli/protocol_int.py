"""Integers of options that become fields of requests."""

from __future__ import annotations

from typing import Any, Final

import click

from tidelog.process.limited_numbers import LimitedInt

INT16_MAX: Final = 2**15 - 1
"""The greatest number of an int16 of Kafka's protocol. Settings have INT_MAX and LONG_MAX for longer ones."""


class ProtocolInt(LimitedInt):
    """An integer from `min` to `limit`, which no field could exceed. The help shows only `min`."""

    def __init__(self, limit: int, *, min: int) -> None:  # noqa: A002 (as click.IntRange)
        super().__init__(min=min)
        self.limit = limit

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        number: int = super().convert(value, parameter, context)
        if number > self.limit:
            self.fail(f"{number} is more than {self.limit}.", parameter, context)
        return number
