"""The pictures of an analysis, as bytes of PNG files, because the report is a single file."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import matplotlib as mpl

mpl.use("agg")
from matplotlib import dates as mdates
from matplotlib import pyplot as plt

from tidelog.pipeline.analytics.facts import Row
from tidelog.pipeline.analytics.plan import Proposal
from tidelog.pipeline.analytics.skew import PartitionLoad

Figure: TypeAlias = Any
Axes: TypeAlias = Any
"""matplotlib's classes. Their annotations are incomplete: many methods exist only at run time."""
WIDTH_INCHES: Final = 13.0
DOTS_PER_INCH: Final = 80
MOST_LINES: Final = 8
MOST_ROWS: Final = 30
RED, ORANGE, GREEN, BLUE, DARK, GREY = "#c0392b", "#e67e22", "#1e8449", "#2980b9", "#2c3e50", "#95a5a6"
VERDICT_COLOURS: Final = {"lost": RED, "at risk": ORANGE, "safe": GREEN, "unknown": GREY}


def isr_timeline(episodes: Sequence[Row], start_ms: int, end_ms: int) -> bytes | None:
    """Draws the number of partitions out of sync over time, and below it each episode as a bar."""
    if not episodes:
        return None
    worst: dict[tuple[str, int], float] = {}
    for row in episodes:
        key = row["topic"], row["partition"]
        worst[key] = worst.get(key, 0.0) + row["seconds"]
    shown = sorted(sorted(worst, key=lambda key: -worst[key])[:MOST_ROWS], reverse=True)

    def draw(figure: Figure) -> None:
        count, bars = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1 + 0.3 * len(shown)))
        times, counts = _out_of_sync(episodes, start_ms, end_ms)
        count.fill_between(times, counts, step="post", color=ORANGE)
        count.set_ylabel("partitions\nout of sync")
        for row in episodes:
            key = row["topic"], row["partition"]
            if key not in shown:
                continue
            began, ended = _moment(row["began_ms"]), _moment(_end_of(row))
            # Even an episode of a moment must be visible.
            least = (_moment(end_ms) - _moment(start_ms)) / 400
            bars.barh(
                shown.index(key),
                max(ended - began, least),
                left=began,
                height=0.7,
                color=RED if row["under_min_isr_s"] else ORANGE,
            )
        bars.set_yticks(range(len(shown)), [f"{topic}-{partition}" for topic, partition in shown], fontsize=7)
        bars.set_xlim(_moment(start_ms), _moment(end_ms))
        _time_axis(bars, start_ms, end_ms)
        for axis in (count, bars):
            axis.grid(alpha=0.25)
        figure.suptitle("ISR episodes (red: fewer replicas in sync than acks=all needs)")

    return _picture(3.2 + 0.22 * len(shown), draw)


def lag_lines(lags: Mapping[str, Sequence[tuple[int, float]]], start_ms: int, end_ms: int) -> bytes | None:
    """Draws the lag of the groups that were farthest behind."""
    chosen = sorted(lags, key=lambda group: -max(value for _, value in lags[group]))[:MOST_LINES]
    if not chosen:
        return None

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for group in chosen:
            times = [_moment(at_ms) for at_ms, _ in lags[group]]
            axis.plot(times, [value for _, value in lags[group]], linewidth=1.2, label=group)
        axis.set_yscale("symlog", linthresh=1)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("records behind")
        axis.set_xlim(_moment(start_ms), _moment(end_ms))
        axis.legend(loc="lower right", fontsize="small")
        axis.grid(alpha=0.25)
        _time_axis(axis, start_ms, end_ms)
        figure.suptitle("Lag by group")

    return _picture(4.0, draw)


def retention_bars(forecasts: Sequence[Row]) -> bytes | None:
    """Draws, for partitions that will lose records, the hours until the loss and until the lag ends."""
    chosen = [row for row in forecasts if row["loses_in_s"] is not None]
    chosen = sorted(chosen, key=lambda row: row["loses_in_s"])[:MOST_ROWS][::-1]
    if not chosen:
        return None

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        places = range(len(chosen))
        # A logarithmic scale has no zero, so the present is drawn at one second.
        hours = [max(row["loses_in_s"], 1) / 3600 for row in chosen]
        axis.barh(places, hours, color=[VERDICT_COLOURS[row["verdict"]] for row in chosen], height=0.6)
        for place, row in zip(places, chosen, strict=True):
            if row["drain_s"]:
                axis.plot(row["drain_s"] / 3600, place, "D", color=DARK, markersize=5)
        labels = [f"{row['consumer_group']}: {row['topic']}-{row['partition']}" for row in chosen]
        axis.set_yticks(places, labels, fontsize=7)
        axis.set_xscale("symlog", linthresh=1)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlim(left=0)
        axis.set_xlabel(
            "hours until unread records are deleted, at current rates (diamond: until the lag ends)"
        )
        axis.grid(alpha=0.25, axis="x")
        figure.suptitle("Retention forecast (red: records were lost, orange: at risk, green: read in time)")

    return _picture(1.6 + 0.26 * len(chosen), draw)


def broker_bars(proposal: Proposal) -> bytes | None:
    """Draws what each broker stores, writes and leads, now and after the plan."""
    if not proposal.before:
        return None
    names = (
        ("bytes", "bytes stored"),
        ("written_bytes_per_s", "bytes / s written"),
        ("led_bytes_per_s", "bytes / s led"),
        ("replicas", "replicas"),
    )

    def draw(figure: Figure) -> None:
        for axis, (name, label) in zip(figure.subplots(1, len(names)), names, strict=True):
            for shift, loads, colour, legend in (
                (-0.2, proposal.before, GREY, "now"),
                (0.2, proposal.after, BLUE, "planned"),
            ):
                axis.bar(
                    [place + shift for place in range(len(loads))],
                    [getattr(load, name) for load in loads],
                    width=0.4,
                    color=colour,
                    label=legend,
                )
            axis.set_xticks(range(len(proposal.before)), [load.broker for load in proposal.before])
            axis.set_xlabel("broker")
            axis.set_title(label, fontsize="medium")
            axis.grid(alpha=0.25, axis="y")
            axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4))
        figure.axes[0].legend(fontsize="small")

    return _picture(3.4, draw)


def skew_bars(loads: Sequence[PartitionLoad], topics: Sequence[str]) -> bytes | None:
    """Draws the records a second of each partition of the most uneven topics, with the mean as a line."""
    chosen = [topic for topic in topics if any(r.topic == topic and r.records_per_s for r in loads)][:4]
    if not chosen:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(chosen), squeeze=False)[0]
        for axis, topic in zip(axes, chosen, strict=True):
            rows = sorted((r for r in loads if r.topic == topic), key=lambda r: r.partition)
            rates = [row.records_per_s for row in rows]
            mean = sum(rates) / len(rates)
            colours = [ORANGE if rate > 2 * mean else DARK for rate in rates]
            axis.bar([row.partition for row in rows], rates, color=colours)
            axis.axhline(mean, color=RED, linewidth=0.8)
            axis.set_title(topic, fontsize="medium")
            axis.set_xlabel("partition")
            axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
            axis.grid(alpha=0.25, axis="y")
        axes[0].set_ylabel("records / s")

    return _picture(3.2, draw)


def _out_of_sync(episodes: Sequence[Row], start_ms: int, end_ms: int) -> tuple[list[float], list[int]]:
    """Returns the number of open episodes at each time."""
    changes = sorted([(row["began_ms"], 1) for row in episodes] + [(_end_of(row), -1) for row in episodes])
    times, counts = [_moment(start_ms)], [0]
    for at_ms, by in changes:
        times.append(_moment(at_ms))
        counts.append(counts[-1] + by)
    return [*times, _moment(end_ms)], [*counts, counts[-1]]


def _end_of(row: Row) -> int:
    end_ms: int = row["last_ms"] if row["ended_ms"] is None else row["ended_ms"]
    return end_ms


def _moment(at_ms: int) -> float:
    return float(mdates.date2num(datetime.fromtimestamp(at_ms / 1000, UTC)))


def _time_axis(axis: Axes, start_ms: int, end_ms: int) -> None:
    is_short = end_ms - start_ms < 600_000
    locator = mdates.AutoDateLocator(tz=UTC)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(
        mdates.DateFormatter("%H:%M:%S", UTC) if is_short else mdates.ConciseDateFormatter(locator, UTC)
    )
    axis.set_xlabel("UTC")


def _picture(height_inches: float, draw: Callable[[Figure], None]) -> bytes:
    figure = plt.figure(figsize=(WIDTH_INCHES, height_inches))
    try:
        draw(figure)
        figure.tight_layout()
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=DOTS_PER_INCH)
        return target.getvalue()
    finally:
        plt.close(figure)
