"""A model of a correct cluster, whose logs are lists, and the histories of clients that use it.

A history is made from steps, so Hypothesis can draw and shrink it. Every process has at most one transaction.
Readers receive the records before the first open transaction of a partition, without the aborted ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from chaoslab.history import (
    ABORTED,
    ACKNOWLEDGED,
    COMMITTED,
    History,
    Poll,
    Send,
    Transaction,
    TransactionRead,
)

TOPIC: Final = "log"
GROUP, READER = "group", "group.1"
PARTITIONS: Final = 2
PROCESSES: Final = 3
SEND, READ, COMMIT, ABORT, PLAIN_SEND, POLL = "send", "read", "commit", "abort", "plain send", "poll"
ACTIONS: Final = (SEND, SEND, READ, READ, COMMIT, ABORT, PLAIN_SEND, POLL)


class Step(NamedTuple):
    action: str
    process: int
    partition: int


class _Stored(NamedTuple):
    transaction: str
    key: str
    number: int


@dataclass
class _Open:
    """An open transaction, and the positions of its process when it began."""

    name: str
    began_at_s: float
    positions: list[int]


@dataclass
class ListModel:
    history: History = field(default_factory=lambda: History(audience={GROUP: [TOPIC]}))
    _logs: list[list[_Stored | None]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    """None is a control record."""
    _outcomes: dict[str, str] = field(default_factory=dict)
    _open: dict[int, _Open] = field(default_factory=dict)
    _positions: list[list[int]] = field(default_factory=lambda: [[0] * PARTITIONS for _ in range(PROCESSES)])
    _group: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    _count: int = 0
    _numbers: dict[str, int] = field(default_factory=dict)
    _now_s: float = 0.0

    def take(self, step: Step) -> None:
        self._now_s += 1.0
        if step.action in (COMMIT, ABORT):
            if step.process in self._open:
                self._end(step.process, COMMITTED if step.action == COMMIT else ABORTED)
        elif step.action == SEND:
            self._send(f"p{step.process}", step.partition, self._transaction(step.process).name)
        elif step.action == PLAIN_SEND:
            self._send("plain", step.partition, "")
        elif step.action == READ:
            self._read(step.process, step.partition)
        else:
            self._poll(step.partition)

    def finished(self) -> History:
        """Ends all transactions, lets the group catch up, and reads everything."""
        for process in tuple(self._open):
            self._now_s += 1.0
            self._end(process, ABORTED)
        for partition in range(PARTITIONS):
            while self._poll(partition):
                pass
            offset = -1
            while (offset := self._next(partition, offset + 1)) >= 0:
                self.history.final.append(self._as_poll(partition, offset, "final", "final", 0))
        return self.history

    def _transaction(self, process: int) -> _Open:
        if process not in self._open:
            self._count += 1
            name = f"p{process}#{self._count}"
            self._open[process] = _Open(name, self._now_s, list(self._positions[process]))
        return self._open[process]

    def _end(self, process: int, outcome: str) -> None:
        ended = self._open.pop(process)
        self._outcomes[ended.name] = outcome
        if outcome == ABORTED:
            self._positions[process] = ended.positions
        for log in self._logs:
            if any(record is not None and record.transaction == ended.name for record in log):
                log.append(None)
        self.history.transactions.append(Transaction(ended.name, outcome, ended.began_at_s, self._now_s))

    def _send(self, process: str, partition: int, transaction: str) -> None:
        key = f"{process}.k{partition}"
        number = self._numbers[key] = self._numbers.get(key, -1) + 1
        log = self._logs[partition]
        self.history.sends.append(
            Send(
                *(process, TOPIC, partition, key, number, ACKNOWLEDGED, len(log)),
                *(self._now_s, self._now_s + 0.5, transaction),
            )
        )
        log.append(_Stored(transaction, key, number))

    def _read(self, process: int, partition: int) -> None:
        transaction = self._transaction(process)
        offset = self._next(partition, self._positions[process][partition])
        if offset < 0:
            return
        self._positions[process][partition] = offset + 1
        record = self._at(partition, offset)
        self.history.reads.append(
            TransactionRead(
                *(transaction.name, f"p{process}", TOPIC, partition, offset),
                *(record.key, record.number, self._now_s),
            )
        )

    def _poll(self, partition: int) -> bool:
        offset = self._next(partition, self._group[partition])
        if offset < 0:
            return False
        self._group[partition] = offset + 1
        self.history.polls.append(self._as_poll(partition, offset, READER, GROUP, 1))
        return True

    def _as_poll(self, partition: int, offset: int, reader: str, group: str, assignment: int) -> Poll:
        record = self._at(partition, offset)
        return Poll(
            *(reader, group, assignment, TOPIC, partition, offset),
            *(record.key, record.number, True, self._now_s),
        )

    def _at(self, partition: int, offset: int) -> _Stored:
        record = self._logs[partition][offset]
        assert record is not None
        return record

    def _next(self, partition: int, position: int) -> int:
        """Returns the offset of the next record for a reader at `position`, -1 if there is none."""
        opened = {transaction.name for transaction in self._open.values()}
        for offset, record in enumerate(self._logs[partition]):
            if record is None:
                continue
            if record.transaction in opened:
                return -1
            if offset >= position and self._outcomes.get(record.transaction, COMMITTED) == COMMITTED:
                return offset
        return -1


def history_of(steps: list[Step]) -> History:
    model = ListModel()
    for step in steps:
        model.take(step)
    return model.finished()
