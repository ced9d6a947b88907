"""The records that applications with tidelog's Python client sent, received and committed, and their checks.

A record is identified by its value: the life of the producer that sent it, and its number in that life.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sim.histories import SEPARATOR, Fail, Transaction, TransactionHistory, transaction_name
from tidelog.group_coordinator.groups.offset_commits import read_record
from tidelog.group_coordinator.shard_core import ReplayedRecord
from tidelog.kernel.instants import WallMs
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader
from tidelog.records.record import iterate_records

if TYPE_CHECKING:
    from sim.invariants import CommittedLog

SENT: Final = b"sent by "
"""The beginning of the values of idempotent producers."""
_OFFSET_KEY: Final = b"\x00\x01"
"""The kind at the beginning of the keys of offset records."""
_NO_TIME: Final = WallMs(-1)


def sent_value(life: str, number: int) -> bytes:
    return SENT + life.encode() + SEPARATOR + str(number).encode()


class SentRecords:
    """The records of all idempotent producers, and their places in the committed logs."""

    def __init__(self, fail: Fail) -> None:
        self.acknowledged = 0
        self.failed = 0
        self._fail = fail
        self._places: dict[tuple[TopicPartition, bytes], int] = {}
        self._last_numbers: dict[tuple[TopicPartition, bytes], int] = {}

    def batch_committed(self, topic_partition: TopicPartition, header: BatchHeader, data: bytes) -> None:
        """Records that a batch is below a high watermark."""
        if header.is_control or SENT not in data:
            return
        for record in iterate_records(data):
            value = record.value or b""
            life, _, number = value.partition(SEPARATOR)
            last = self._last_numbers.get((topic_partition, life), -1)
            if int(number) <= last:
                is_known = (topic_partition, value) in self._places
                self._fail(
                    f"idempotent producer, {'no duplicates' if is_known else 'order is kept'}",
                    f"{topic_partition}: {value!r} is stored at {record.offset} after number {last}",
                )
            self._last_numbers[topic_partition, life] = int(number)
            self._places[topic_partition, value] = record.offset

    def was_acknowledged(self, topic_partition: TopicPartition, value: bytes, offset: int) -> None:
        """Records that the application was told that the record is stored at `offset`, -1 if the offset is
        not known.
        """
        self.acknowledged += 1
        stored_at = self._places.get((topic_partition, value))
        if stored_at is None or offset not in (stored_at, -1):
            self._fail(
                "everything acknowledged is committed",
                f"{topic_partition}: {value!r} was acknowledged at {offset}, committed at {stored_at}",
            )


class GroupReads:
    """The records that the members of one consumer group dealt with, and the group's committed offsets."""

    def __init__(
        self,
        group: str,
        fail: Fail,
        log: Callable[[TopicPartition], CommittedLog],
        deleted_below: dict[TopicPartition, int],
        transactions: TransactionHistory,
        *,
        reads_committed: bool,
    ) -> None:
        self.group = group
        self.reads_committed = reads_committed
        self.committed: dict[TopicPartition, int] = {}
        self.delivered_since_healing = 0
        self._fail = fail
        self._log = log
        self._deleted_below = deleted_below
        self._transactions = transactions
        self._dealt_with: set[tuple[TopicPartition, int]] = set()
        self._checked: dict[TopicPartition, int] = {}

    def was_delivered(
        self, topic_partition: TopicPartition, offset: int, value: bytes | None, member: str
    ) -> None:
        """Records that a member's application got a record."""
        self.delivered_since_healing += 1
        found = self._log(topic_partition).at(offset)
        if found is None or (value or b"") not in found[1] or found[0].is_control:
            self._fail(
                "consumers get records that are committed",
                f"{member} {topic_partition} {offset}: {value!r}, committed is {found}",
            )
        elif self.reads_committed:
            self._transactions.shown(topic_partition, *found, member)

    def was_dealt_with(self, topic_partition: TopicPartition, offset: int) -> None:
        self._dealt_with.add((topic_partition, offset))

    def offset_committed(self, topic_partition: TopicPartition, offset: int) -> None:
        """Records that the group's offset of a partition is below the high watermark of the shard's log."""
        self.committed[topic_partition] = offset
        log = self._log(topic_partition)
        if offset > log.end_offset:
            self._fail("committed offsets exist", f"{self.group} {topic_partition}: {offset}")
            return
        at = max(self._checked.get(topic_partition, 0), self._deleted_below.get(topic_partition, 0))
        for header, data in log.batches_from(at):
            if header.base_offset >= offset:
                break
            if not self._is_invisible(topic_partition, header, data):
                self._check_batch(topic_partition, header, at, offset)
        self._checked[topic_partition] = max(self._checked.get(topic_partition, 0), offset)

    def _check_batch(
        self, topic_partition: TopicPartition, header: BatchHeader, start: int, committed: int
    ) -> None:
        for offset in range(max(header.base_offset, start), min(header.last_offset + 1, committed)):
            if (topic_partition, offset) not in self._dealt_with:
                self._fail(
                    "committed offsets never pass unread records",
                    f"{self.group} {topic_partition}: {committed} is committed, {offset} was not read",
                )
                return

    def _is_invisible(self, topic_partition: TopicPartition, header: BatchHeader, data: bytes) -> bool:
        if header.is_control:
            return True
        if not self.reads_committed or not header.is_transactional:
            return False
        transaction: Transaction = self._transactions.transactions[transaction_name(data)]
        return transaction.outcomes.get(topic_partition) is False

    def unread(self, topic_partition: TopicPartition) -> int | None:
        """Returns the first record that the group has not committed, None if there is none."""
        start = max(self.committed.get(topic_partition, 0), self._deleted_below.get(topic_partition, 0))
        for header, data in self._log(topic_partition).batches_from(start):
            if not self._is_invisible(topic_partition, header, data):
                return max(start, header.base_offset)
        return None


class GroupOffsets:
    """Finds the commits of some groups in the committed logs of the coordinators' shards."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupReads] = {}

    def batch_committed(self, header: BatchHeader, data: bytes) -> None:
        if header.is_control or not any(group.encode() in data for group in self.groups):
            return
        for record in iterate_records(data):
            if record.key is None or not record.key.startswith(_OFFSET_KEY):
                continue
            key, committed = read_record(1, ReplayedRecord(record.key, record.value, _NO_TIME, None))
            reads = self.groups.get(key.group_id)
            if reads is not None and committed is not None:
                reads.offset_committed(key.topic_partition, committed.offset)
