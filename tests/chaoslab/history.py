"""The history of a chaos run: what all clients did and which answers they got, in the format that the
checkers read.

Times are on the machine's monotonic clock, which all processes of one machine share. A history file is
gzipped JSON with one object a line: first `audience`, `copies` and `shared`, then a line for each entry, with
the name of a list of `History` and the entry's fields in order.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from clusterlab.history import Read, Sent

ACKNOWLEDGED: Final = "acknowledged"
UNKNOWN: Final = "unknown"
"""No acknowledgement arrived (timeout, error after sending, end of the client), so it is unknown whether the
record is stored.
"""
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
ACCEPTED: Final = "accepted"
RELEASED: Final = "released"
REJECTED: Final = "rejected"
NO_PLACE: Final = -1
"""The offset of an acknowledged record whose acknowledgement did not name it."""
NOTHING_COMMITTED: Final = -1
DELIVERY_LIMIT: Final = 10
"""The deliveries after which a share group of a run gives a record up."""
BUFFERED_S: Final = 45.0
"""The longest time for which a member may have a record before its application sees it: a member waits up to
30 s for an acknowledgement. Meanwhile its lock ends, and another member may accept the record.
"""


class Send(NamedTuple):
    """A record that a producer accepted. For a record of a transaction, only the transaction's outcome
    counts.
    """

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
    """The outcome of a transaction: COMMITTED, ABORTED or UNKNOWN."""

    name: str
    outcome: str
    began_at_s: float
    ended_at_s: float


class Poll(NamedTuple):
    """A record that a reader received, in the order received. `assignment` changes each time the reader is
    assigned this partition, so the order matters only within one assignment.
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
    """A group's position as a member committed it: ACKNOWLEDGED or UNKNOWN."""

    group: str
    topic: str
    partition: int
    offset: int
    outcome: str
    began_at_s: float
    ended_at_s: float


class ReaderPosition(NamedTuple):
    """A committed position as a member received it with its assignment, which is where it continues."""

    reader: str
    group: str
    assignment: int
    topic: str
    partition: int
    offset: int
    began_at_s: float
    ended_at_s: float


class TransactionRead(NamedTuple):
    """A record that a transaction received, in the order received: the input of a copier, for example. A
    transaction that was aborted reads its records again in the next one.
    """

    transaction: str
    process: str
    topic: str
    partition: int
    offset: int
    key: str
    number: int
    at_s: float


class Delivery(NamedTuple):
    """A record that a member of a share group received. `delivery_count` is the number of the delivery as the
    member saw it. `answer` is the acknowledgement: ACCEPTED, RELEASED or REJECTED. Its `outcome` is
    ACKNOWLEDGED or UNKNOWN.
    """

    member: str
    group: str
    topic: str
    partition: int
    offset: int
    key: str
    number: int
    is_intact: bool
    delivery_count: int
    delivered_at_s: float
    answer: str
    outcome: str
    settled_at_s: float


ENTRIES: Final[Mapping[str, type[Any]]] = {  # each is a NamedTuple
    "sends": Send,
    "transactions": Transaction,
    "polls": Poll,
    "commits": Commit,
    "positions": ReaderPosition,
    "reads": TransactionRead,
    "deliveries": Delivery,
    "final": Poll,
}
"""The lists of a history, in the order in which a file holds them."""


@dataclass
class History:
    """`final` is what one reader saw of each partition, from its start to its end, after everything else.

    `audience` names the topics whose every record each group must receive. `copies` names topics that must be
    exact copies of others. `shared` names the topics whose every record each share group must finish.
    """

    sends: list[Send] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    positions: list[ReaderPosition] = field(default_factory=list)
    reads: list[TransactionRead] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    final: list[Poll] = field(default_factory=list)
    audience: dict[str, list[str]] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    shared: dict[str, list[str]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        with gzip.open(path, "wt", compresslevel=3) as file:
            head = {"audience": self.audience, "copies": self.copies, "shared": self.shared}
            file.write(json.dumps(head) + "\n")
            for name in ENTRIES:
                file.writelines(json.dumps({name: entry}) + "\n" for entry in getattr(self, name))

    @staticmethod
    def load(path: Path) -> History:
        with gzip.open(path, "rt") as file:
            history = History(**json.loads(file.readline()))
            for line in file:
                ((name, fields),) = json.loads(line).items()
                getattr(history, name).append(ENTRIES[name](*fields))
        return history

    def outcomes(self) -> Mapping[str, str]:
        """Returns the outcomes of the transactions by name."""
        return {transaction.name: transaction.outcome for transaction in self.transactions}


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
