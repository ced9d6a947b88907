"""Pictures of a run: faults over throughput, ISR and lag, and the duration of each kind of fault's effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

from chaoslab.recovery import Fault

Sample = Mapping[str, Any]
SIZE = (13, 8)
DOTS_PER_INCH = 80
COLOURS = {
    "kill": "#c0392b",
    "freeze": "#2980b9",
    "partition-brokers": "#8e44ad",
    "partition-etcd": "#8e44ad",
    "stop-etcd": "#16a085",
    "delete-claim": "#d35400",
    "fill-volume": "#d35400",
    "upgrade": "#7f8c8d",
    "scale": "#7f8c8d",
    "rebalance": "#95a5a6",
}
RATE_S = 1.0
HIGHEST_OF_MEDIAN = 4


def timeline(path: Path, samples: Sequence[Sample], faults: Sequence[Fault], title: str) -> None:
    """Draws acknowledged records a second, partitions out of sync or without a leader, and lag over the same
    time.
    """
    start_s = samples[0]["at_s"]
    times = [sample["at_s"] - start_s for sample in samples]
    figure, (rate, isr, lag) = plt.subplots(3, 1, figsize=SIZE, sharex=True, height_ratios=(3, 2, 2))
    rate_times, rates = rates_of(samples, "acknowledged")
    rate.plot(rate_times, rates, color="#2c3e50", linewidth=0.8)
    # After a fault, waiting records arrive at once. Their peak would flatten the rest of the line, so it is
    # cut.
    rate.set_ylim(0, min(max(rates), HIGHEST_OF_MEDIAN * max(median(rates), 1)) * 1.05)
    rate.set_ylabel("records acknowledged / s")
    isr.fill_between(
        times,
        [s["under_replicated"] for s in samples],
        step="post",
        color="#e67e22",
        label="under-replicated",
    )
    isr.fill_between(
        times, [s["leaderless"] for s in samples], step="post", color="#c0392b", label="no leader"
    )
    isr.set_ylabel("partitions")
    isr.legend(loc="upper right", fontsize="small")
    for name in samples[-1]["lags"]:
        values = [max(s["lags"].get(name, 0), 0.5) for s in samples]
        lag.plot(times, values, linewidth=0.8, label=name)
    lag.set_yscale("log")
    lag.set_ylabel("lag, records")
    lag.set_xlabel("seconds")
    lag.legend(loc="upper right", fontsize="small")
    for axis in (rate, isr, lag):
        axis.set_xlim(0, max(times))
        axis.grid(alpha=0.25)
        _mark(axis, faults, start_s)
    top = rate.get_ylim()[1]
    for index, fault in enumerate(faults):
        height = top * (0.98 - 0.06 * (index % 4))
        rate.text(fault.at_s - start_s, height, f" {fault.kind}", fontsize=6, va="top", color=_colour(fault))
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=DOTS_PER_INCH)
    plt.close(figure)


def _mark(axis: Any, faults: Sequence[Fault], start_s: float) -> None:
    for fault in faults:
        if fault.until_s > fault.at_s:
            axis.axvspan(fault.at_s - start_s, fault.until_s - start_s, color=_colour(fault), alpha=0.12)
        axis.axvline(fault.at_s - start_s, color=_colour(fault), linewidth=0.7, alpha=0.7)


def _colour(fault: Fault) -> str:
    return COLOURS.get(fault.kind.split(" ")[0], "#555555")


def rates_of(samples: Sequence[Sample], name: str) -> tuple[list[float], list[float]]:
    """Returns a counter's growth a second, over windows of at least `RATE_S`."""
    times, rates = [], []
    first, before = samples[0], samples[0]
    for sample in samples[1:]:
        passed_s = sample["at_s"] - before["at_s"]
        if passed_s >= RATE_S:
            times.append(sample["at_s"] - first["at_s"])
            rates.append((sample[name] - before[name]) / passed_s)
            before = sample
    return times, rates


def recoveries(path: Path, faults: Sequence[Fault]) -> None:
    """Draws a dot for each fault: the seconds to the next acknowledged write, and to the full ISR."""
    kinds = sorted({fault.kind for fault in faults}, reverse=True)
    figure, axes = plt.subplots(1, 2, figsize=(SIZE[0], 0.6 + 0.36 * len(kinds) + 0.8), sharey=True)
    for axis, name, label in zip(
        axes,
        ("next_write_s", "whole_isr_s"),
        ("s to the next acknowledged write, all partitions", "s to the whole ISR"),
        strict=True,
    ):
        for fault in faults:
            value = getattr(fault, name)
            if value is not None:
                axis.plot(value, kinds.index(fault.kind), "o", color=_colour(fault), alpha=0.6)
        axis.set_yticks(range(len(kinds)), kinds, fontsize="small")
        axis.set_xlabel(label)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=DOTS_PER_INCH)
    plt.close(figure)
