"""Analyses the history of one partition into rows of the tables. The module does no I/O and uses no Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tidelog.pipeline.analytics import metric_names as names
from tidelog.pipeline.analytics.facts import Fact, Row
from tidelog.pipeline.analytics.isr import Sighting, agreed, episodes_of, silent_in
from tidelog.pipeline.analytics.lag import lag_trend
from tidelog.pipeline.analytics.retention import forecast
from tidelog.pipeline.analytics.series import (
    Point,
    after_last_fall,
    latest,
    newest_by_time,
    trend,
)
from tidelog.pipeline.analytics.skew import holders_of

LAG_POINTS: Final = "lag_points"
"""A pseudo table for the picture: a group's lag on a partition, as the last value of each bucket."""

Told: TypeAlias = dict[str, dict[Any, list[Point]]]
"""A map of metric to teller (or consumer group) to sorted points. A teller's type depends on the metric."""


@dataclass(frozen=True, slots=True)
class HistoryView:
    """Facts about the whole history. `heard` maps a broker to the sorted times of its scrapes.
    `bucket_ms` is the bucket size of the pictures.
    """

    start_ms: int
    end_ms: int
    interval_ms: int
    trend_window_ms: int
    heard: Mapping[int, tuple[int, ...]]
    bucket_ms: int = 60_000


def partition_rows(
    topic: str, partition: int, facts: Iterable[Fact], view: HistoryView
) -> Iterator[tuple[str, Row]]:
    """Yields (table, row) for one partition. Times are in columns `*_ms`."""
    told = _told(facts)
    place = {"topic": topic, "partition": partition}
    load = _load_row(told, view)
    for row in _episode_rows(told, load["holders"] if load else (), view):
        yield "isr_episodes", {**place, **row}
    if load:
        yield "partition_loads", {**place, **load}
    for group in sorted(told[names.LAG]):
        for table, row in _group_rows(told, group, view):
            yield table, {"consumer_group": group, **place, **row}


def _told(facts: Iterable[Fact]) -> Told:
    raw: Told = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        teller = fact.broker if fact.consumer_group is None else fact.consumer_group
        raw[fact.metric][teller].append((fact.at_ms, fact.value))
    sorted_points: Told = defaultdict(dict)
    for metric, by_teller in raw.items():
        sorted_points[metric] = {teller: newest_by_time(points) for teller, points in by_teller.items()}
    return sorted_points


def _sightings(told: Told) -> Iterator[Sighting]:
    for teller, points in told[names.IN_SYNC].items():
        replicas = dict(told[names.REPLICAS].get(teller, ()))
        leaders = dict(told[names.LEADER].get(teller, ()))
        under_min = dict(told[names.UNDER_MIN_ISR].get(teller, ()))
        for at_ms, in_sync in points:
            count = replicas.get(at_ms)
            if count is None:
                continue  # the scrape was cut off, and one value is useless without the other
            leader = leaders.get(at_ms, teller)
            yield Sighting(
                at_ms,
                teller,
                int(count),
                int(in_sync),
                None if leader is None else int(leader),
                bool(under_min.get(at_ms, 0)),
            )


def _episode_rows(told: Told, holders: Iterable[int], view: HistoryView) -> Iterator[Row]:
    sightings = agreed(list(_sightings(told)), view.interval_ms)
    holders = list(holders)
    for episode in episodes_of(sightings, view.interval_ms):
        silent = silent_in(episode, holders, view.heard, view.interval_ms)
        yield {
            "began_after_ms": episode.began_after_ms,
            "began_ms": episode.began_ms,
            "ended_ms": episode.ended_ms,
            "last_ms": episode.last_ms,
            "seconds": episode.seconds,
            "is_open": episode.ended_ms is None,
            "replicas": episode.replicas,
            "least_in_sync": episode.least_in_sync,
            "shrinks": episode.shrinks,
            "expands": episode.expands,
            "under_min_isr_s": episode.under_min_ms / 1000,
            "unseen_s": episode.unseen_ms / 1000,
            "leaders": episode.leaders,
            "silent_brokers": silent,
        }


def _all_tellers(told: Told, metric: str) -> list[Point]:
    return newest_by_time([point for points in told[metric].values() for point in points])


def _load_row(told: Told, view: HistoryView) -> Row | None:
    sizes = {broker: points for broker, points in told[names.LOG_SIZE].items() if broker is not None}
    ends, starts = _all_tellers(told, names.END_OFFSET), _all_tellers(told, names.START_OFFSET)
    counts = _all_tellers(told, names.REPLICAS)
    leaders = _last_told(told[names.LEADER])
    if not (sizes or ends):
        return None
    leader = None if leaders is None else int(leaders)
    preferred = _last_told(told[names.IS_PREFERRED])
    holders = holders_of(
        sizes,
        int(counts[-1][1]) if counts else len(sizes),
        leader,
        leads_as_preferred=bool(preferred),
        history_end_ms=view.end_ms,
        interval_ms=view.interval_ms,
    )
    stored = max((points[-1][1] for broker, points in sizes.items() if broker in holders), default=0.0)
    records = max(0.0, ends[-1][1] - starts[-1][1]) if ends and starts else 0.0
    growth = trend(latest(after_last_fall(ends), view.trend_window_ms))
    per_s = max(0.0, growth.per_s) if growth else 0.0
    return {
        "leader": leader,
        "replicas": int(counts[-1][1]) if counts else len(holders),
        "holders": list(holders),
        "bytes": stored,
        "records": records,
        "records_per_s": per_s,
        # The size of a record is estimated by the mean of the existing ones. For a compacted topic this is a
        # guess.
        "bytes_per_s": per_s * stored / records if records else 0.0,
        "leads_as_preferred": None if preferred is None else bool(preferred),
    }


def _last_told(by_teller: Mapping[Any, list[Point]]) -> float | None:  # see Told
    """Returns the point of the teller that reported last."""
    newest = max((points[-1] for points in by_teller.values() if points), default=None)
    return None if newest is None else newest[1]


def _group_rows(told: Told, group: str, view: HistoryView) -> Iterator[tuple[str, Row]]:
    lags = told[names.LAG][group]
    buckets = {(at_ms - view.start_ms) // view.bucket_ms: value for at_ms, value in lags}
    yield LAG_POINTS, {"buckets": list(buckets), "lags": list(buckets.values())}
    committed = told[names.COMMITTED].get(group, [])
    lag = lag_trend(
        lags,
        committed,
        window_ms=view.trend_window_ms,
        interval_ms=view.interval_ms,
        history_end_ms=view.end_ms,
    )
    yield (
        "lag_trends",
        {
            "at_ms": lag.last_ms,
            "state": lag.state,
            "lag": int(lag.lag),
            "greatest_lag": int(lag.greatest_lag),
            "committed_offset": None if lag.committed is None else int(lag.committed),
            "produced_per_s": lag.produced_per_s,
            "consumed_per_s": lag.consumed_per_s,
            "lag_per_s": lag.lag_per_s,
            "drain_s": lag.drain_s,
            "drained_ms": _later(lag.last_ms, lag.drain_s),
        },
    )
    found = forecast(
        lag,
        committed,
        _all_tellers(told, names.START_OFFSET),
        told[names.UNREAD_EXPIRES].get(group, []),
        window_ms=view.trend_window_ms,
    )
    yield (
        "retention_forecasts",
        {
            "at_ms": lag.last_ms,
            "verdict": found.verdict,
            "unread": int(found.unread),
            "lost": found.lost,
            "margin": None if found.margin is None else int(found.margin),
            "expires_s": found.expires_s,
            "by_time_s": found.by_time_s,
            "by_offset_s": found.by_offset_s,
            "loses_in_s": found.loses_in_s,
            "drain_s": lag.drain_s,
            "loses_ms": _later(lag.last_ms, found.loses_in_s),
        },
    )


_FARTHEST_S: Final = 100 * 365 * 86_400.0
"""The longest forecast. A time more than a hundred years ahead is meaningless."""


def _later(at_ms: int, seconds: float | None) -> int | None:
    return None if seconds is None or seconds > _FARTHEST_S else at_ms + int(seconds * 1000)
