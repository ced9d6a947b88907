"""The history of each broker: when it was scraped, its ISR counters, its disk. The module does no I/O and
uses no Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidelog.pipeline.analytics import metric_names as names
from tidelog.pipeline.analytics.facts import Fact, Row
from tidelog.pipeline.analytics.series import (
    SILENT_INTERVALS,
    Point,
    increase,
    interval_ms,
    latest,
    newest_by_time,
    trend,
)

DEFAULT_INTERVAL_MS: Final = 15_000


@dataclass(frozen=True, slots=True)
class BrokerView:
    """`racks` holds the racks of the live brokers, if they are known. `heard` holds the times of each
    broker's scrapes.
    """

    racks: Mapping[int, str | None]
    heard: Mapping[int, tuple[int, ...]]
    interval_ms: int
    rows: tuple[Row, ...]


def look_at_brokers(
    facts: Iterable[Fact], *, end_ms: int, trend_window_ms: int, fallback_interval_ms: int | None = None
) -> BrokerView:
    """Returns the view of all brokers. `fallback_interval_ms` is the sample interval if no broker is scraped
    itself.
    """
    told: dict[str, dict[int, list[Point]]] = defaultdict(lambda: defaultdict(list))
    racks: dict[int, tuple[int, str | None]] = {}
    for fact in facts:
        if fact.broker is None:
            continue
        told[fact.metric][fact.broker].append((fact.at_ms, fact.value))
        if fact.metric == names.BROKER_INFO and fact.at_ms >= racks.get(fact.broker, (0, None))[0]:
            racks[fact.broker] = (fact.at_ms, fact.detail)
    series = {
        metric: {broker: newest_by_time(points) for broker, points in by_broker.items()}
        for metric, by_broker in told.items()
    }
    heard = {
        broker: tuple(at_ms for at_ms, _ in points) for broker, points in series.get(names.HELD, {}).items()
    }
    usual = [interval_ms(times, 0) for times in heard.values() if len(times) > 1]
    every_ms = max(usual) if usual else fallback_interval_ms or DEFAULT_INTERVAL_MS
    recent_ms = end_ms - SILENT_INTERVALS * every_ms
    last_seen = {broker: at_ms for broker, (at_ms, _) in racks.items()}
    for broker, times in heard.items():
        last_seen[broker] = max(times[-1], last_seen.get(broker, 0)) if broker in racks else times[-1]
    alive = {
        # A scraped broker that is silent is down, even if the controller still reports it as alive.
        broker: racks.get(broker, (0, None))[1]
        for broker in sorted(last_seen)
        if (heard[broker][-1] if broker in heard else last_seen[broker]) >= recent_ms
    }
    rows = tuple(
        _row(broker, series, heard.get(broker, ()), every_ms, end_ms, trend_window_ms, broker in alive)
        for broker in sorted({*last_seen, *(b for by in series.values() for b in by)})
    )
    return BrokerView(alive, heard, every_ms, rows)


def _row(
    broker: int,
    series: Mapping[str, Mapping[int, Sequence[Point]]],
    heard: Sequence[int],
    every_ms: int,
    end_ms: int,
    trend_window_ms: int,
    is_alive: bool,
) -> Row:
    free = series.get(names.DISK_FREE, {}).get(broker, ())
    size = series.get(names.DISK_SIZE, {}).get(broker, ())
    line = trend(latest(free, trend_window_ms))
    full_s = None
    if line is not None and line.per_s < 0 and line.is_clear:
        full_s = line.last / -line.per_s
    gaps = [*pairwise(heard), (heard[-1], end_ms)] if heard else []
    silent_ms = sum(b - a - every_ms for a, b in gaps if b - a > SILENT_INTERVALS * every_ms)
    return {
        "broker": broker,
        "is_alive": is_alive,
        "silent_s": silent_ms / 1000,
        "isr_shrinks": int(increase(series.get(names.SHRINKS, {}).get(broker, ()))),
        "isr_expands": int(increase(series.get(names.EXPANDS, {}).get(broker, ()))),
        "disk_bytes": size[-1][1] if size else None,
        "disk_free_bytes": free[-1][1] if free else None,
        "disk_full_s": full_s,
    }
