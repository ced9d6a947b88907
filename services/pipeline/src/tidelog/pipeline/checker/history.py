"""What all clients of a chaos run did and were told: the format that the checkers judge.

Times are of the machine's monotonic clock, which all processes of one machine share. A history file is
gzipped JSON, one object a line: first `audience` and `copies`, then a line an entry, the name of a list of
`History` and the entry's fields in order.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

ACKNOWLEDGED: Final = "acknowledged"
UNKNOWN: Final = "unknown"
"""No acknowledgement came (time-out, an error after sending, the client's end): stored or not, who knows."""
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
NO_PLACE: Final = -1
"""Of an acknowledged record: where it is stored wasn't said."""
NOTHING_COMMITTED: Final = -1


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


ENTRIES: Final[Mapping[str, type[Any]]] = {
    "sends": Send,
    "transactions": Transaction,
    "polls": Poll,
    "commits": Commit,
    "positions": Position,
    "final": Poll,
}
"""The lists of a history, in the order in which a file holds them."""


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
        """Of the transactions, by name."""
        return {transaction.name: transaction.outcome for transaction in self.transactions}
