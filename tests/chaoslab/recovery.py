"""Computes, from the records of a run, how long each kind of fault had an effect. The module does no I/O."""

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
"""The time within which a missing replica is noticed. Sessions last 6 s, and the replica lag time of at most
30 s matters only for live replicas.
"""
PAUSE_S = 0.5
"""The time in which a partition acknowledges many records, if there is no fault."""
BEGINS_S = 10.0
FELT_S = 60.0
"""The time after the end of a fault during which problems are attributed to it."""
Sample = Mapping[str, Any]
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Fault:
    """The events of one moment: the pods of one kill, or one freeze, partition or upgrade."""

    kind: str
    targets: tuple[str, ...]
    at_s: float
    until_s: float
    next_write_s: float | None
    """The time until every partition of the log acknowledged again. It is the end of the longest pause that
    began within `BEGINS_S`, or, if no pause was longer than `PAUSE_S`, the time until all partitions had
    acknowledged a record that was sent after the fault.
    """
    silence_s: float
    """The longest time in which a partition acknowledged nothing, until the next fault or `FELT_S` after this
    one.
    """
    whole_isr_s: float | None
    """The time until every replica was in sync again. It is 0 if none was out of sync, and None if the run
    ended earlier.
    """


class Acknowledgements:
    """The times at which the records of one topic were sent and acknowledged, by partition."""

    def __init__(self, history: History, topic: str) -> None:
        pairs: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for send in history.sends:
            if send.topic == topic and send.outcome == ACKNOWLEDGED:
                pairs[send.partition].append((send.sent_at_s, send.settled_at_s))
        self._by_sent = {partition: sorted(found) for partition, found in pairs.items()}
        self._settled = {p: sorted(at_s for _, at_s in found) for p, found in pairs.items()}

    def next_write_s(self, from_s: float, to_s: float) -> float | None:
        """Returns `Fault.next_write_s`, or None if a partition never acknowledged again."""
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
        """Returns the longest silence of any partition within these times."""
        return max(
            after_s - before_s
            for times in self._settled.values()
            for before_s, after_s in _gaps(times, from_s, to_s)
        )

    def span_s(self) -> tuple[float, float]:
        """Returns the time from the moment when every partition had acknowledged to the first partition's
        last acknowledgement.
        """
        return (
            max(times[0] for times in self._settled.values()),
            min(times[-1] for times in self._settled.values()),
        )


def _gaps(times: Sequence[float], from_s: float, to_s: float) -> Iterable[tuple[float, float]]:
    """Yields the intervals between neighbours among `times`, within these bounds, which count as two more
    times.
    """
    inside = times[bisect.bisect_left(times, from_s) : bisect.bisect_right(times, to_s)]
    return itertools.pairwise([from_s, *inside, to_s])


def faults_of(
    events: Iterable[Event], samples: Sequence[Sample], acknowledgements: Acknowledgements
) -> list[Fault]:
    """Returns one fault for each moment and kind. The events of one kill share its moment."""
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
    """Returns `Fault.whole_isr_s`."""
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
    """Returns, for each kind, the number of faults, and the median and the maximum of their times."""
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
