"""From what a run noted to how long each kind of fault was felt. Pure."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from chaoslab.history import ACKNOWLEDGED, History

ISR_NOTICED_S = 20.0
"""A replica that is missed at all is missed within this: sessions last 6 s, the lag time of replicas 30 s at
most matters to those that live.
"""
PAUSE_S = 0.5
"""Without faults a partition acknowledges many times in this."""
BEGINS_S = 10.0
FELT_S = 60.0
"""After a fault has ended, what goes wrong later is not laid to it."""
Sample = Mapping[str, Any]
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Fault:
    """What was done at one moment: the pods of one kill, or one freeze, partition, upgrade."""

    kind: str
    targets: tuple[str, ...]
    at_s: float
    until_s: float
    next_write_s: float | None
    """Until every partition of the log acknowledged again: the end of the longest pause that began within
    `BEGINS_S`; if none was longer than `PAUSE_S`, until all had acknowledged a record sent after the fault.
    """
    silence_s: float
    """The longest time a partition acknowledged nothing, until the next fault or `FELT_S` after this one."""
    whole_isr_s: float | None
    """Until every replica was in sync again; 0 if none was seen out of it; None if the run did not see it."""


class Acknowledgements:
    """Of one topic: by partition, when records were sent and acknowledged."""

    def __init__(self, history: History, topic: str) -> None:
        pairs: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for send in history.sends:
            if send.topic == topic and send.outcome == ACKNOWLEDGED:
                pairs[send.partition].append((send.sent_at_s, send.settled_at_s))
        self._by_sent = {partition: sorted(found) for partition, found in pairs.items()}
        self._settled = {p: sorted(at_s for _, at_s in found) for p, found in pairs.items()}

    def next_write_s(self, from_s: float, to_s: float) -> float | None:
        """See `Fault.next_write_s`; None if a partition never acknowledged again."""
        latest = 0.0
        for times in self._settled.values():
            began = (gap for gap in _gaps(times, from_s, to_s) if gap[0] <= from_s + BEGINS_S)
            before_s, after_s = max(began, key=lambda gap: gap[1] - gap[0])
            if after_s - before_s > PAUSE_S:
                latest = max(latest, after_s - from_s)
        if latest:
            return latest
        for found in self._by_sent.values():
            later = found[bisect.bisect_left(found, (from_s, 0.0)) :]
            if not later:
                return None
            latest = max(latest, min(settled_s for _, settled_s in later[:2_000]) - from_s)
        return latest

    def silence_s(self, from_s: float, to_s: float) -> float:
        """The longest of any partition within these times."""
        return max(
            after_s - before_s
            for times in self._settled.values()
            for before_s, after_s in _gaps(times, from_s, to_s)
        )

    def span_s(self) -> tuple[float, float]:
        """From the time when every partition had acknowledged to that of the first partition's last."""
        return (
            max(times[0] for times in self._settled.values()),
            min(times[-1] for times in self._settled.values()),
        )


def _gaps(times: Sequence[float], from_s: float, to_s: float) -> Iterable[tuple[float, float]]:
    """What lies between neighbours among `times`, within these bounds, which count as two more."""
    inside = times[bisect.bisect_left(times, from_s) : bisect.bisect_right(times, to_s)]
    return itertools.pairwise([from_s, *inside, to_s])


def faults_of(
    events: Iterable[Event], samples: Sequence[Sample], acknowledgements: Acknowledgements
) -> list[Fault]:
    """One for each moment and kind; events of one kill have its moment in common."""
    moments: dict[tuple[float, str], list[Event]] = defaultdict(list)
    for event in events:
        moments[event["at_s"], kind_of(event)].append(event)
    starts = sorted(moments)
    _, end_s = acknowledgements.span_s()
    found = []
    for index, (at_s, kind) in enumerate(starts):
        later = [other_s for other_s, _ in starts[index + 1 :] if other_s > at_s]
        until_s = max(event.get("until_s", at_s) for event in moments[at_s, kind])
        next_s = min([*later, end_s])
        felt_until_s = max(at_s, min(next_s, until_s + FELT_S))
        found.append(
            Fault(
                kind,
                tuple(event["target"] for event in moments[at_s, kind]),
                at_s,
                until_s,
                acknowledgements.next_write_s(at_s, felt_until_s),
                acknowledgements.silence_s(at_s, felt_until_s),
                whole_isr_s(samples, at_s, max(next_s, until_s)),
            )
        )
    return found


def kind_of(event: Event) -> str:
    role = {"group-coordinator": "coordinator", "standby-controller": "standby"}.get(
        event["role"], event["role"]
    )
    return f"{event['action']} {role}"


def whole_isr_s(samples: Sequence[Sample], at_s: float, next_s: float) -> float | None:
    """See `Fault.whole_isr_s`."""
    seen = [sample for sample in samples if at_s <= sample["at_s"] <= next_s and sample["is_view_known"]]
    short = [sample["at_s"] for sample in seen if sample["under_replicated"]]
    if not short or short[0] - at_s > ISR_NOTICED_S:
        return 0.0
    whole = [
        sample["at_s"] for sample in seen if not sample["under_replicated"] and sample["at_s"] > short[-1]
    ]
    return whole[0] - at_s if whole else None


def kills_in(events: Iterable[Event]) -> int:
    return sum(1 for event in events if event["action"] == "kill")


def by_kind(faults: Iterable[Fault]) -> dict[str, dict[str, float | int | None]]:
    """Of each kind how many there were, the median and the worst of what they took."""
    grouped: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        grouped[fault.kind].append(fault)
    table: dict[str, dict[str, float | int | None]] = {}
    for kind, found in sorted(grouped.items()):
        row: dict[str, float | int | None] = {"count": len(found)}
        for name in ("next_write_s", "silence_s", "whole_isr_s"):
            values = [value for fault in found if (value := getattr(fault, name)) is not None]
            row[f"{name}_median"] = round(median(values), 2) if values else None
            row[f"{name}_max"] = round(max(values), 2) if values else None
        table[kind] = row
    return table
