"""What all clients of a chaos run did and were told: the format that the checker judges.

Times are of the machine's monotonic clock, which all processes of one machine share. A history file is
gzipped JSON, one object a line: the name of a list of `History` and the fields of its entry in order.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from clusterlab.history import ACKNOWLEDGED, NO_PLACE, UNKNOWN, Read, Sent

COMMITTED = "committed"
ABORTED = "aborted"
NOTHING_COMMITTED = -1

__all__ = [
    "ABORTED",
    "ACKNOWLEDGED",
    "COMMITTED",
    "NOTHING_COMMITTED",
    "NO_PLACE",
    "UNKNOWN",
    "Commit",
    "History",
    "Poll",
    "Position",
    "Send",
    "Transaction",
    "poll_of",
    "send_of",
]


class Send(NamedTuple):
    """A record a producer was given. Within a transaction only the transaction's outcome counts."""

    process: str
    topic: str
    partition: int
    key: str
    number: int
    outcome: str
    offset: int
    sent_at_s: float
    settled_at_s: float
    transaction: str = ""
    error: str = ""


class Transaction(NamedTuple):
    """What became of it: COMMITTED, ABORTED or UNKNOWN."""

    name: str
    outcome: str
    began_at_s: float
    ended_at_s: float


class Poll(NamedTuple):
    """A record a reader was shown, in the order shown. `assignment` changes whenever the reader was given
    this partition anew, so only within one does it have to go on where it was.
    """

    reader: str
    group: str
    assignment: int
    topic: str
    partition: int
    offset: int
    key: str
    number: int
    is_intact: bool
    at_s: float


class Commit(NamedTuple):
    """A group's position as a member committed it; ACKNOWLEDGED or UNKNOWN."""

    group: str
    topic: str
    partition: int
    offset: int
    outcome: str
    began_at_s: float
    ended_at_s: float


class Position(NamedTuple):
    """A committed position as a member was told it when it was assigned the partition: where it goes on."""

    reader: str
    group: str
    assignment: int
    topic: str
    partition: int
    offset: int
    began_at_s: float
    ended_at_s: float


KINDS = {"sends": Send, "transactions": Transaction, "polls": Poll, "commits": Commit, "positions": Position}


@dataclass
class History:
    """`final` is what one reader saw from each partition's start to its end after everything else.

    `audience` names the topics whose every record each group has to be shown, `copies` which topic is the
    exact copy of which.
    """

    sends: list[Send] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    final: list[Poll] = field(default_factory=list)
    audience: dict[str, list[str]] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        with gzip.open(path, "wt", compresslevel=3) as file:
            file.write(json.dumps({"audience": self.audience, "copies": self.copies}) + "\n")
            for name in (*KINDS, "final"):
                file.writelines(json.dumps({name: entry}) + "\n" for entry in getattr(self, name))

    @staticmethod
    def load(path: Path) -> History:
        with gzip.open(path, "rt") as file:
            history = History(**json.loads(file.readline()))
            for line in file:
                ((name, fields),) = json.loads(line).items()
                getattr(history, name).append(KINDS.get(name, Poll)(*fields))
        return history

    def outcomes(self) -> Mapping[str, str]:
        """Of the transactions, by name."""
        return {transaction.name: transaction.outcome for transaction in self.transactions}


def send_of(topic: str, sent: Sent) -> Send:
    """A record of `clusterlab.load`."""
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
    """A record that a consumer of `clusterlab.load` was shown."""
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
