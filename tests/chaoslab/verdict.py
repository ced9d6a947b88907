"""The kinds of anomalies and the texts of the findings. Both checkers give the same text for the same
history.

The names are those of Jepsen's Kafka workload. Names that Jepsen does not have are marked *.

| anomaly | meaning |
|---|---|
| lost-write | an acknowledged or received record is not in the log, or not in the log's copy |
| duplicate | a record is in a log more than once |
| inconsistent-offsets | one place held different records, or a record is not where its acknowledgement said |
| aborted-read | a reader of committed records received one of an aborted transaction |
| torn-transaction * | only a part of a transaction of unknown outcome is visible |
| nonmonotonic-send | a producer's records of one key are stored in another order than they were sent |
| nonmonotonic-poll | a reader moved backwards within one assignment |
| poll-skip | a reader skipped a record that is in the log, within one assignment |
| unseen | a record in the log that a group, or the tailing reader, never received |
| stale-commit * | a group received a position older than one whose commit had been acknowledged |
| garbage-read * | a record that nobody sent, or that has another value |
| share-redelivery * | a share group received a record again after its acceptance or rejection was stored |
| share-unfinished * | a record that a share group neither accepted nor rejected nor gave up |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

LOST_WRITE: Final = "lost-write"
DUPLICATE: Final = "duplicate"
INCONSISTENT_OFFSETS: Final = "inconsistent-offsets"
ABORTED_READ: Final = "aborted-read"
TORN_TRANSACTION: Final = "torn-transaction"
NONMONOTONIC_SEND: Final = "nonmonotonic-send"
NONMONOTONIC_POLL: Final = "nonmonotonic-poll"
POLL_SKIP: Final = "poll-skip"
UNSEEN: Final = "unseen"
STALE_COMMIT: Final = "stale-commit"
GARBAGE_READ: Final = "garbage-read"
SHARE_REDELIVERY: Final = "share-redelivery"
SHARE_UNFINISHED: Final = "share-unfinished"
SHARE_KINDS: Final = (SHARE_REDELIVERY, SHARE_UNFINISHED)
KINDS: Final = (
    LOST_WRITE,
    DUPLICATE,
    INCONSISTENT_OFFSETS,
    ABORTED_READ,
    TORN_TRANSACTION,
    NONMONOTONIC_SEND,
    NONMONOTONIC_POLL,
    POLL_SKIP,
    UNSEEN,
    STALE_COMMIT,
    GARBAGE_READ,
    *SHARE_KINDS,
)
SHOWN_ANOMALIES: Final = 10

# Both Python's % and Spark's format_string accept these formats.
ACKNOWLEDGED_AND_GONE: Final = "%s %s of %s was acknowledged"
SHOWN_AND_GONE: Final = "%s %s was shown to %s, and is gone"
NOT_IN_ITS_COPY: Final = "%s %s is at %s offset %s, not in its copy"
ALSO_ELSEWHERE: Final = "%s %s also at partition %s offset %s"
ACKNOWLEDGED_ELSEWHERE: Final = "%s %s was acknowledged there, and is at %s"
SHOWN_THERE: Final = "%s %s shown to %s"
ACKNOWLEDGED_THERE: Final = "%s %s acknowledged to %s"
SHOWN_THOUGH_ABORTED: Final = "%s %s of %s was shown to %s"
PARTLY_VISIBLE: Final = "%s of %s records of %s are visible"
STANDS_AFTER: Final = "%s %s is stored after %s"
HAD_BEEN_AT: Final = "%s had been at %s"
PASSED_OVER: Final = "%s went from %s to %s"
NEVER_SHOWN: Final = "%s was never shown it"
TOLD_AN_OLDER_ONE: Final = "%s was told %s at %d.%03d, %s had been acknowledged at %d.%03d"
ANOTHER_VALUE: Final = "a record of key '%s' was shown to %s with another value"
NEVER_SENT: Final = "%s %s was shown to %s, and was never sent"
GOT_WHAT_WAS_DONE: Final = "%s got what %s of %s had %s"
NEVER_FINISHED: Final = "%s got it %s times and never finished it"


class Anomaly(NamedTuple):
    kind: str
    topic: str
    partition: int
    offset: int
    detail: str


@dataclass(frozen=True)
class Verdict:
    anomalies: tuple[Anomaly, ...]
    counts: Mapping[str, int]
    """The number of checked entries of each kind: sends, acknowledged, transactions, polls, commits,
    deliveries, final.
    """
    more: Mapping[str, int] = field(default_factory=dict)
    """The number of anomalies of each kind that are not listed."""

    @property
    def is_sound(self) -> bool:
        return not self.kinds

    @property
    def kinds(self) -> Counter[str]:
        listed = Counter(anomaly.kind for anomaly in self.anomalies)
        return listed + Counter(self.more)

    def __str__(self) -> str:
        head = ", ".join(f"{count} {name}" for name, count in self.counts.items()) + ": "
        if self.is_sound:
            return head + "no anomaly"
        lines = [head + ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())]
        for anomaly in self.anomalies[:SHOWN_ANOMALIES]:
            place = f"{anomaly.topic}-{anomaly.partition} offset {anomaly.offset}"
            lines.append(f"  {anomaly.kind}: {place}: {anomaly.detail}")
        return "\n".join(lines)


def seconds_and_ms(at_s: float) -> tuple[int, int]:
    """Returns seconds and milliseconds for TOLD_AN_OLDER_ONE, rounded half to even like Spark's rint."""
    return divmod(round(at_s * 1000), 1000)
