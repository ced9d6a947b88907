"""The short texts of `tidelog top`. No I/O."""

from __future__ import annotations

from tidelog.cli.output import counted
from tidelog.observe.rates import ClusterSummary


def summary_text(found: ClusterSummary) -> str:
    """Returns one line about the whole cluster."""
    faults = []
    if found.missing_replicas:
        faults.append(f"{counted(found.missing_replicas, 'replica')} missing")
    if found.offline:
        faults.append(f"{counted(found.offline, 'partition')} offline")
    return (
        f"{counted(found.brokers, 'broker')}, controller {found.controller}, "
        f"{counted(found.topics, 'topic')}, "
        f"{counted(found.partitions, 'partition')}, {', '.join(faults) or 'all replicas in sync'}, "
        f"{short(found.records_per_s)} records/s, {short(found.bytes_per_s)}B/s"
    )


def short(value: float | None) -> str:
    """Returns a number with at most three digits and a decimal prefix, `-` if it is unknown."""
    if value is None:
        return "-"
    for prefix in ("", " k", " M", " G", " T"):
        if abs(value) < 999.5:
            digits = 0 if abs(value) >= 99.95 or value == int(value) else 1
            return f"{value:.{digits}f}{prefix}"
        value /= 1000
    return f"{value:.0f} P"


def duration_text(seconds: float | None) -> str:
    """Returns a time in its greatest unit, `-` if it is unknown."""
    if seconds is None:
        return "-"
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} s"
