"""The health of a cluster's in-sync replicas (ISR) over the last hour, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from tidelog.kernel.instants import WallMs

SPAN_MS: Final = 3_600_000
MAX_SAMPLES: Final = 3_600
"""One sample in a second for an hour. Older ones are forgotten first."""
SLOTS: Final = 120
"""The number of slots of the timeline: each is half a minute of an hour."""
SAMPLE_INTERVAL_MS: Final = SPAN_MS // SLOTS * 2 // 3
"""The time between two samples while nobody looks. Because it is shorter than a slot, each slot has one."""
MAX_CHANGES: Final = 50
"""The most changes that are listed."""


class Health(IntEnum):
    """The health of a slot of the timeline. A worse one has a higher number."""

    UNKNOWN = 0
    HEALTHY = 1
    UNDER_REPLICATED = 2
    OFFLINE = 3


class IsrSample(NamedTuple):
    """One look at the cluster. `broker_ids` are registered, and `down_ids` have replicas and are not.
    `controller` is the id of the active controller, `none` or `unknown`. The next two numbers count
    partitions. If no broker could be reached, `is_reached` is false, and nothing is known about partitions.
    """

    at_ms: WallMs
    broker_ids: tuple[int, ...]
    controller: str
    under_replicated: int
    offline: int
    down_ids: tuple[int, ...] = ()
    is_reached: bool = True

    @property
    def health(self) -> Health:
        if self.offline or not self.is_reached:
            return Health.OFFLINE
        return Health.UNDER_REPLICATED if self.under_replicated else Health.HEALTHY


class Change(NamedTuple):
    """A change from one sample to the next, as one sentence."""

    at_ms: WallMs
    text: str


class Row(NamedTuple):
    """A row of the timeline: the worst health of each slot, the oldest first."""

    name: str
    slots: tuple[Health, ...]


class IsrHistory:
    """The samples of the last hour."""

    def __init__(self) -> None:
        self._samples: deque[IsrSample] = deque(maxlen=MAX_SAMPLES)

    def __len__(self) -> int:
        return len(self._samples)

    def has_recent(self, now_ms: WallMs, age_ms: int) -> bool:
        """Returns whether a sample is younger than `age_ms`."""
        return bool(self._samples) and 0 <= now_ms - self._samples[-1].at_ms < age_ms

    def add(self, sample: IsrSample) -> None:
        """Adds a sample and forgets those that are older than an hour. A sample that is older than the last
        one means that the clock was set back, and replaces all.
        """
        if self._samples and sample.at_ms < self._samples[-1].at_ms:
            self._samples.clear()
        self._samples.append(sample)
        while self._samples[0].at_ms < sample.at_ms - SPAN_MS:
            self._samples.popleft()

    def timeline(self, now_ms: WallMs) -> list[Row]:
        """Returns a row for the in-sync replicas and one for each broker that was seen."""
        known = sorted({each for sample in self._samples for each in (*sample.broker_ids, *sample.down_ids)})
        rows = [Row("In-sync replicas", _slots(now_ms, ((s.at_ms, s.health) for s in self._samples)))]
        for broker_id in known:
            seen = (
                (s.at_ms, Health.HEALTHY if broker_id in s.broker_ids else Health.OFFLINE)
                for s in self._samples
            )
            rows.append(Row(f"Broker {broker_id}", _slots(now_ms, seen)))
        return rows

    def changes(self) -> list[Change]:
        """Returns the last changes, the newest first."""
        found: list[Change] = []
        samples = list(self._samples)
        for before, after in pairwise(samples):
            found += [Change(after.at_ms, text) for text in _differences(before, after)]
        return found[: -MAX_CHANGES - 1 : -1]


def _slots(now_ms: WallMs, seen: Iterable[tuple[WallMs, Health]]) -> tuple[Health, ...]:
    slots = [Health.UNKNOWN] * SLOTS
    for at_ms, health in seen:
        slot = SLOTS - 1 - (now_ms - at_ms) * SLOTS // SPAN_MS
        if 0 <= slot < SLOTS:
            slots[slot] = max(slots[slot], health)
    return tuple(slots)


def _differences(before: IsrSample, after: IsrSample) -> list[str]:
    texts = [f"Broker {each} stopped." for each in sorted({*before.broker_ids} - {*after.broker_ids})]
    texts += [f"Broker {each} started." for each in sorted({*after.broker_ids} - {*before.broker_ids})]
    if before.is_reached != after.is_reached:
        texts.append("A broker answers again." if after.is_reached else "No broker answers.")
    if not before.is_reached or not after.is_reached:
        return texts
    if before.controller != after.controller:
        texts.append(f"The active controller was {before.controller} and became {after.controller}.")
    if before.under_replicated != after.under_replicated:
        texts.append(
            f"Under-replicated partitions: {before.under_replicated} became {after.under_replicated}."
        )
    if before.offline != after.offline:
        texts.append(f"Partitions without a leader: {before.offline} became {after.offline}.")
    return texts
