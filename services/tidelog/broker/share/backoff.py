"""Computes how long a record waits after a delivery that did not succeed."""

from __future__ import annotations

import math
from typing import Final, NamedTuple


class RetryBackoff(NamedTuple):
    """The delays of a group's retries: `first_ms` after the first delivery, `multiplier` times as long after
    each further one, and at most `max_ms`. With `first_ms` 0 there are no delays, as in Kafka.
    """

    first_ms: int
    multiplier: float
    max_ms: int

    def delay_ms(self, delivery_count: int) -> int:
        """Returns the delay in milliseconds after the delivery with this number, which counts from 1."""
        if self.first_ms <= 0:
            return 0
        try:
            delay_ms = self.first_ms * self.multiplier ** max(delivery_count - 1, 0)
        except OverflowError:
            return self.max_ms
        return math.ceil(min(delay_ms, self.max_ms))


NO_BACKOFF: Final = RetryBackoff(0, 1.0, 0)
