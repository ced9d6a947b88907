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

    A partition's state is always compared, for its leader writes it too; the rest is the controller's alone,
    and no transaction of an earlier controller, or given up by this one, can still take effect.
    """

    entry: Entry
    expected_mod_revision: int | None = None


class Erase(NamedTuple):
    key: str
    expected_mod_revision: int | None = None


class NoteShutdown(NamedTuple):
    """Remember, for as long as this term lasts, that a life of a broker is on its way out. Not stored: the
    broker asks the next controller again.
    """

    broker_id: int
    broker_epoch: int


Record = Write | Erase | NoteShutdown


@dataclass(frozen=True, slots=True)
class Decision(Generic[ReplyT]):
    """`records` in the order in which they may become durable: cut off anywhere, `finish_half_done` finishes
    or undoes the rest. States of partitions that stand next to each other may become durable in any order.
    """

    records: tuple[Record, ...]
    reply: ReplyT
