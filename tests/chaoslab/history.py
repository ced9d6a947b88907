"""The histories of chaos runs, in the format of `tidelog.pipeline.checker`, which Spark reads, too."""

from __future__ import annotations

from clusterlab.history import Read, Sent
from tidelog.pipeline.checker.history import (
    ABORTED,
    ACCEPTED,
    ACKNOWLEDGED,
    COMMITTED,
    NO_PLACE,
    NOTHING_COMMITTED,
    REJECTED,
    RELEASED,
    UNKNOWN,
    Commit,
    Delivery,
    History,
    Poll,
    ReaderPosition,
    Send,
    Transaction,
    TransactionRead,
)

__all__ = [
    "ABORTED",
    "ACCEPTED",
    "ACKNOWLEDGED",
    "COMMITTED",
    "NOTHING_COMMITTED",
    "NO_PLACE",
    "REJECTED",
    "RELEASED",
    "UNKNOWN",
    "Commit",
    "Delivery",
    "History",
    "Poll",
    "ReaderPosition",
    "Send",
    "Transaction",
    "TransactionRead",
    "poll_of",
    "send_of",
]


def send_of(topic: str, sent: Sent) -> Send:
    """Converts a record of `clusterlab.load`."""
    process = sent.key.split(".")[0]
    return Send(
        process,
        topic,
        sent.partition,
        sent.key,
        sent.number,
        sent.outcome,
        sent.offset,
        sent.sent_at_s,
        sent.settled_at_s,
        "",
        sent.error,
    )


def poll_of(
    read: Read, reader: str, topic: str, *, group: str = "", assignment: int = 0, at_s: float = 0.0
) -> Poll:
    """Converts a record that a consumer of `clusterlab.load` received."""
    return Poll(
        reader,
        group or reader,
        assignment,
        topic,
        read.partition,
        read.offset,
        read.key,
        read.number,
        read.is_intact,
        at_s,
    )
