"""What a decision wants written, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tidelog.metadata.entries import Entry

ReplyT = TypeVar("ReplyT")

# A record's condition: the key must not be there yet.
ABSENT = 0


class Write(NamedTuple):
    """Put `entry`; `expected_mod_revision` is compared first (ABSENT: no such key), None writes whatever
    stands there.

    A partition's state is always compared, for its leader writes it too; the rest is the controller's alone.
    """

    entry: Entry
    expected_mod_revision: int | None = None


class Erase(NamedTuple):
    key: str
    expected_mod_revision: int | None = None


Record = Write | Erase


@dataclass(frozen=True, slots=True)
class Decision(Generic[ReplyT]):
    """`records` in the order in which they may become durable: cut off anywhere, `resume` finishes or
    undoes the rest.
    """

    records: tuple[Record, ...]
    reply: ReplyT
