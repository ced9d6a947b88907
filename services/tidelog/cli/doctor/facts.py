"""The facts about a cluster that `tidelog doctor` judges, and the findings of its checks. No I/O.

A finding has a state, one line, and the next step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from tidelog.client.admin.brokers import LogDir
from tidelog.client.admin.transactions import PartitionProducer
from tidelog.model.topics import TopicPartition
from tidelog.observe.availability import PartitionView
from tidelog.observe.cluster_reader import OpenTransaction
from tidelog.observe.lag import LogOffsets

ALL_WELL: Final = 0
WARNINGS: Final = 1
FAILURES: Final = 2
COULD_NOT_LOOK: Final = 3
"""The exit codes of `tidelog doctor`."""
SHOWN_OF_A_CHECK: Final = 20
"""The number of findings of one check that are shown."""


class OfflineReplica(NamedTuple):
    """A replica whose log a broker cannot use, and its last transitions as text, the oldest first."""

    topic: str
    partition: int
    story: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServiceMetrics:
    """The figures of a broker's metrics endpoint.

    `clock_ahead_ms` is the `Date` header less this machine's clock, with an error of `clock_error_ms`: the
    header has whole seconds. `lease_age_s` is the time since the lease was renewed. `certificate_expiry_s`
    has seconds since 1970 by use.
    """

    clock_ahead_ms: int
    clock_error_ms: int
    lease_age_s: float | None = None
    lost_leases: int = 0
    certificate_expiry_s: Mapping[str, float] = field(default_factory=dict)
    offline: Sequence[OfflineReplica] = ()


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """An etcd server. `problem` is empty if it is healthy. A health check is a read by a quorum."""

    name: str
    problem: str = ""
    health_ms: float = 0.0
    fsync_p99_ms: float | None = None
    database_bytes: int | None = None
    quota_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Registrations:
    """The services that should be registered in the metadata store, and those whose keys have no lease."""

    missing: Sequence[str]
    without_lease: Sequence[str]
    count: int


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Everything that was read. Unseen stands for facts that could not be read."""

    live: frozenset[int]
    silent: Mapping[int, str]
    """The registered brokers that do not answer, with the reason. Other facts about them are missing."""
    partitions: Sequence[PartitionView] | Unseen
    settings: Mapping[int, Mapping[str, str]]
    """The effective settings of each broker, without secrets."""
    unconfirmed: Sequence[str] | Unseen
    """The topics whose settings were lost and are not confirmed yet."""
    log_directories: Sequence[LogDir]
    offsets: Mapping[TopicPartition, LogOffsets] | Unseen
    committed: Mapping[str, Mapping[TopicPartition, int]] | Unseen
    """The next offsets of each group: committed offsets, or the start offsets of a share group."""
    unseen_groups: Mapping[str, str]
    """Groups whose offsets could not be read, with the reason."""
    group_types: Mapping[str, str]
    transactions: Sequence[OpenTransaction] | Unseen
    hanging: Sequence[PartitionProducer] | Unseen
    """The producers of transactions that are open in a partition and unknown to their coordinator."""
    metrics: Mapping[int, ServiceMetrics | Unseen]
    certificate_expiry_s: Mapping[str, float] | Unseen
    """The times at which certificates expire, by their holders, in seconds since 1970."""
    etcd: Sequence[EtcdMember] | Unseen
    registrations: Registrations | Unseen


class State(StrEnum):
    """The state of a check. UNKNOWN means that it was not made; the finding then states the reason."""

    FAIL = "fail"
    WARN = "warn"
    OK = "ok"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `next_step` is empty if there is nothing to do."""

    check: str
    state: State
    text: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Stands for facts that could not be read, with the reason."""

    reason: str
    next_step: str = ""


def not_checked(check: str, unseen: Unseen) -> Finding:
    return Finding(check, State.UNKNOWN, f"not checked: {unseen.reason}", unseen.next_step)


def exit_code(findings: Collection[Finding]) -> int:
    """Returns the code of the worst finding. Checks that were not made count only if none was made."""
    states = {finding.state for finding in findings}
    if State.FAIL in states:
        return FAILURES
    if State.WARN in states:
        return WARNINGS
    return ALL_WELL if State.OK in states else COULD_NOT_LOOK


def shortened(findings: list[Finding]) -> list[Finding]:
    """Returns the findings of one check, the worst first, and no more than SHOWN_OF_A_CHECK."""
    ordered = worst_first(findings)
    rest = ordered[SHOWN_OF_A_CHECK:]
    if not rest:
        return ordered
    more = Finding(rest[0].check, rest[0].state, f"{len(rest)} more findings are not shown")
    return [*ordered[:SHOWN_OF_A_CHECK], more]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    order = list(State)
    return sorted(findings, key=lambda finding: order.index(finding.state))


def sum_of(text: str, name: str) -> float | None:
    """Returns the sum of a metric of Prometheus over all label sets, or None if it does not exist.

    Raises ValueError if a value is not a number.
    """
    found: float | None = None
    for line in text.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in (" ", "{"):
            value = line.rpartition("}")[2] if "}" in line else line[len(name) :]
            found = (found or 0.0) + float(value.split()[0])
    return found
