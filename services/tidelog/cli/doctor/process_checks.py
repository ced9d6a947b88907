"""Judges the facts about processes, which metrics, etcd and certificates tell. No I/O, no clock.

Each check returns its findings, one finding if all is well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.cli.doctor.facts import (
    EtcdMember,
    Finding,
    ServiceMetrics,
    State,
    Unseen,
    not_checked,
    shortened,
)
from tidelog.model.text import counted
from tidelog.observe.number_texts import size_text

SKEW_WARN_MS: Final = 2_000
SKEW_FAIL_MS: Final = 30_000
EXPIRY_WARN_DAYS: Final = 30
EXPIRY_FAIL_DAYS: Final = 3
SLOW_HEALTH_MS: Final = 100.0
FULL_DATABASE: Final = 0.8
LEASE_WARN_S: Final = 10.0
SLOW_FSYNC_MS: Final = 25.0
"""etcd's own advice is a 99th percentile below 10 ms; the next bucket of its histogram ends at 16 ms."""
TOLD_TRANSITIONS: Final = 4
"""The last transitions of an offline replica that a finding tells: a first failure, and the last attempt."""


def check_offline_replicas(metrics: Mapping[int, ServiceMetrics | Unseen]) -> list[Finding]:
    """Names the replicas whose logs a broker cannot use, each with its last transitions."""
    step = "repair the disk and restart the broker; 'tidelog doctor DIR' examines its files"
    return shortened(
        [
            Finding(
                "replicas",
                State.FAIL,
                f"{replica.topic}-{replica.partition} is offline on broker {broker_id}: "
                + "; ".join(replica.story[-TOLD_TRANSITIONS:]),
                step,
            )
            for broker_id, each in sorted(metrics.items())
            if not isinstance(each, Unseen)
            for replica in each.offline
        ]
    )


def check_clocks(metrics: Mapping[int, ServiceMetrics | Unseen]) -> list[Finding]:
    """Compares the brokers' clocks by the `Date` headers of their metrics endpoints."""
    check = "clocks"
    seen = _seen(metrics)
    if isinstance(seen, Unseen):
        return [not_checked(check, seen)]
    ahead = {broker_id: each.clock_ahead_ms for broker_id, each in seen.items()}
    error_ms = max(each.clock_error_ms for each in seen.values())
    first, last = min(ahead, key=lambda b: ahead[b]), max(ahead, key=lambda b: ahead[b])
    accuracy = f"measured to {error_ms / 1000:.1f} s by the Date header of their metrics"
    if len(ahead) == 1:
        skew_ms = abs(ahead[first])
        text = f"the clock of broker {first} and this machine's differ by {skew_ms / 1000:.1f} s, {accuracy}"
    else:
        skew_ms = ahead[last] - ahead[first]
        text = (
            f"the clocks of {len(ahead)} brokers differ by {skew_ms / 1000:.1f} s "
            f"(broker {last} is ahead of {first}), {accuracy}"
        )
    certain_ms = max(0, skew_ms - error_ms)
    silent = _silent(check, metrics)
    if certain_ms < SKEW_WARN_MS:
        return [Finding(check, State.OK, text), *silent]
    state = State.FAIL if certain_ms >= SKEW_FAIL_MS else State.WARN
    return [Finding(check, state, text, "synchronize the clocks (NTP): retention depends on them"), *silent]


def check_leases(metrics: Mapping[int, ServiceMetrics | Unseen]) -> list[Finding]:
    """Looks for brokers that have not renewed their lease for a while, or have lost one."""
    check = "leases"
    seen = _seen(metrics)
    if isinstance(seen, Unseen):
        return [not_checked(check, seen)]
    found: list[Finding] = []
    for broker_id, each in sorted(seen.items()):
        if each.lease_age_s is not None and each.lease_age_s > LEASE_WARN_S:
            text = f"broker {broker_id} renewed its lease {each.lease_age_s:.0f} s ago"
            found.append(Finding(check, State.WARN, text, "check etcd and the broker's event loop"))
        if each.lost_leases:
            text = f"broker {broker_id} has lost {each.lost_leases} leases since its start"
            found.append(Finding(check, State.WARN, text, "check etcd's latency and the broker's pauses"))
    if found:
        return shortened(found)
    ages = [each.lease_age_s for each in seen.values() if each.lease_age_s is not None]
    if not ages:
        return [not_checked(check, Unseen("the brokers' metrics have no lease"))]
    brokers = counted(len(ages), "broker")
    text = f"all leases were renewed within {max(ages):.0f} s, and none was lost ({brokers})"
    return [Finding(check, State.OK, text), *_silent(check, metrics)]


def check_certificates(
    expiry_s: Mapping[str, float] | Unseen, metrics: Mapping[int, ServiceMetrics | Unseen], now_s: float
) -> list[Finding]:
    """Looks for certificates that expire soon, those of listeners and those among the services."""
    check = "certificates"
    known: dict[str, float] = {} if isinstance(expiry_s, Unseen) else dict(expiry_s)
    seen = _seen(metrics)
    if not isinstance(seen, Unseen):
        for broker_id, each in seen.items():
            for use, at_s in each.certificate_expiry_s.items():
                known[f"broker {broker_id} ({use})"] = at_s
    if not known:
        return [
            not_checked(
                check, expiry_s if isinstance(expiry_s, Unseen) else Unseen("there is no certificate")
            )
        ]
    found: list[Finding] = []
    for holder, at_s in sorted(known.items(), key=lambda row: row[1]):
        days = (at_s - now_s) / 86_400
        if days < EXPIRY_WARN_DAYS:
            state = State.FAIL if days < EXPIRY_FAIL_DAYS else State.WARN
            when = f"expires in {days:.1f} days" if days >= 0 else f"expired {-days:.1f} days ago"
            step = (
                "renew it; a local cluster: tidelog cluster renew-certificates --data-dir DIR; "
                "a release of the chart: helm upgrade"
            )
            found.append(Finding(check, state, f"the certificate of {holder} {when}", step))
    first = min(known, key=lambda holder: known[holder])
    days = (known[first] - now_s) / 86_400
    text = f"the first certificate to expire is that of {first}, in {days:.0f} days ({len(known)} examined)"
    return shortened(found) or [Finding(check, State.OK, text)]


def check_etcd(members: Sequence[EtcdMember] | Unseen) -> list[Finding]:
    """Judges etcd's health, the time of a read by a quorum, the time of its fsyncs, and its size."""
    check = "etcd"
    if isinstance(members, Unseen):
        return [not_checked(check, members)]
    found: list[Finding] = []
    for member in members:
        if member.problem:
            step = "read etcd's log; without a majority of its servers, nothing can change in the cluster"
            found.append(Finding(check, State.FAIL, f"{member.name}: {member.problem}", step))
            continue
        if member.health_ms > SLOW_HEALTH_MS:
            text = f"{member.name} needs {member.health_ms:.0f} ms for a read by a quorum"
            found.append(Finding(check, State.WARN, text, "give etcd its own, faster disk and enough CPU"))
        if member.fsync_p99_ms is not None and member.fsync_p99_ms > SLOW_FSYNC_MS:
            text = f"{member.name}: 99 % of the fsyncs of its log take up to {member.fsync_p99_ms:.0f} ms"
            found.append(Finding(check, State.WARN, text, "give etcd its own, faster disk"))
        if member.database_bytes and member.quota_bytes:
            used = member.database_bytes / member.quota_bytes
            if used > FULL_DATABASE:
                text = f"{member.name} uses {used:.0%} of its quota of {size_text(member.quota_bytes)}"
                found.append(
                    Finding(check, State.FAIL, text, "compact and defragment etcd, or raise its quota")
                )
    if found:
        return shortened(found)
    slowest = max(member.health_ms for member in members)
    text = f"healthy ({counted(len(members), 'server')}), a read by a quorum takes {slowest:.1f} ms"
    return [Finding(check, State.OK, text)]


def _seen(metrics: Mapping[int, ServiceMetrics | Unseen]) -> dict[int, ServiceMetrics] | Unseen:
    seen = {broker: each for broker, each in metrics.items() if not isinstance(each, Unseen)}
    reasons = [each for each in metrics.values() if isinstance(each, Unseen)]
    return seen or (reasons[0] if reasons else Unseen("there is no broker"))


def _silent(check: str, metrics: Mapping[int, ServiceMetrics | Unseen]) -> list[Finding]:
    return [
        not_checked(check, Unseen(f"broker {broker_id}: {each.reason}", each.next_step))
        for broker_id, each in sorted(metrics.items())
        if isinstance(each, Unseen)
    ]
