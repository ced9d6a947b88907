"""The invariants, which are checked after every step of any process (docs/architecture.md lists them).

The reference is the committed log of each partition: everything that some leader's high watermark has passed.
It is kept here, outside the cluster, and only grows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from sim.deliveries import GroupOffsets, SentRecords
from sim.disk import SimPartitionLog, index_of
from sim.histories import CommitHistory, ShardWriters, TransactionHistory
from sim.plan import TOPIC, TOPICS
from sim.streams_members import StreamsHistory
from sim.trace import Trace
from tidelog.metadata.entries import TOPIC_PREFIX, PartitionStateEntry, TopicEntry, decode_entry
from tidelog.metadata.store import Delete, Put
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader

if TYPE_CHECKING:
    from sim.loop import SimLoop, SimProcess
    from sim.share_members import ShareDeliveries

NO_LEADER: Final = -1


class CommittedLog:
    """Batches below the highest high watermark of any leader."""

    def __init__(self) -> None:
        self.base_offsets: list[int] = []
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.epochs: list[int] = []
        """The epoch of the leader whose high watermark passed the batch first. It never decreases."""
        self.next_sequences: dict[tuple[int, int], int] = {}
        """Sequence numbers by producer id and epoch."""

    @property
    def end_offset(self) -> int:
        return self.batches[-1][0].last_offset + 1 if self.batches else 0

    def end_before(self, leader_epoch: int) -> int:
        """Returns the end of what leaders of earlier epochs committed."""
        count = bisect_left(self.epochs, leader_epoch)
        return self.batches[count - 1][0].last_offset + 1 if count else 0

    def at(self, offset: int) -> tuple[BatchHeader, bytes] | None:
        """Returns the batch that contains `offset`."""
        index = bisect_right(self.base_offsets, offset) - 1
        if index < 0 or self.batches[index][0].last_offset < offset:
            return None
        return self.batches[index]

    def batches_from(self, offset: int) -> list[tuple[BatchHeader, bytes]]:
        """Returns the batches with records at or above `offset`."""
        if offset >= self.end_offset:
            return []
        return self.batches[max(0, bisect_right(self.base_offsets, offset) - 1) :]


class Invariants:
    """`violation` is the first violation, or None. The simulated components call the hooks."""

    def __init__(self, loop: SimLoop, trace: Trace) -> None:
        self.violation: str | None = None
        self.deleted_below: dict[TopicPartition, int] = {}
        """True if an operator asked for an unclean election. Before that, no record may be lost."""
        self.committed: dict[TopicPartition, CommittedLog] = {}
        self.on_committed: Callable[[TopicPartition, Any, BatchHeader], None] = lambda *_: None
        """Called when the high watermark of a leader passes a batch first: (partition, its core, batch)."""
        self._loop = loop
        self._trace = trace
        self._leaders: dict[tuple[TopicPartition, int], SimProcess] = {}
        self._assignments: dict[str, TopicEntry] = {}
        self._states: dict[str, PartitionStateEntry] = {}
        self._seen: dict[tuple[SimProcess, TopicPartition], tuple[int, int, int]] = {}
        self._told_end: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        self.writers = ShardWriters(self.fail)
        self.commits = CommitHistory(self.fail)
        self.transactions = TransactionHistory(self.fail)
        self.sent = SentRecords(self.fail)
        self.group_offsets = GroupOffsets()
        self.streams = StreamsHistory(self.fail)
        self.share_deliveries: ShareDeliveries | None = None

    def fail(self, invariant: str, details: str) -> None:
        if self.violation is None:
            self.violation = f"{invariant}: {details}"
            self._trace.add(self._loop.now, "VIOLATION", self.violation)

    def log(self, topic_partition: TopicPartition) -> CommittedLog:
        return self.committed.setdefault(topic_partition, CommittedLog())

    # -- brokers

    def check_broker(self, process: SimProcess, replicas: dict[TopicPartition, Any]) -> None:
        """Checks a broker after one of its steps."""
        for topic_partition, replica in replicas.items():
            if topic_partition.topic not in TOPICS:
                continue  # created and deleted during the run; offsets restart each time
            core = replica.core
            now = (core.high_watermark, core.log_end_offset, core.leader_epoch if core.is_leader else -1)
            key = (process, topic_partition)
            before = self._seen.get(key)
            if before == now:
                continue
            self._seen[key] = now
            self._check_replica(process, topic_partition, replica, before)

    def _check_replica(
        self, process: SimProcess, topic_partition: TopicPartition, replica: Any, before: Any
    ) -> None:
        core = replica.core
        where = f"{process} {topic_partition} epoch {core.leader_epoch}"
        if not core.log_start_offset <= core.last_stable_offset <= core.high_watermark <= core.log_end_offset:
            self.fail(
                "start <= LSO <= HW <= LEO",
                f"{where}: {core.log_start_offset} {core.last_stable_offset} {core.high_watermark}"
                f" {core.log_end_offset}",
            )
        if core.log_start_offset > self.deleted_below.get(topic_partition, 0):
            self.fail("no record is deleted without a request", f"{where}: begins at {core.log_start_offset}")
        if core.is_leader and (before is None or before[2] != core.leader_epoch):
            self._began_to_lead(process, topic_partition, replica, where)
        high_watermark_before = 0 if before is None else before[0]
        has_led_before = core.is_leader and before is not None and before[2] == core.leader_epoch
        if has_led_before and core.high_watermark < high_watermark_before:
            self.fail("HW never goes back", f"{where}: {core.high_watermark} < {high_watermark_before}")
        if core.high_watermark > high_watermark_before:
            self._check_committed(topic_partition, replica, high_watermark_before, where)

    def _began_to_lead(
        self, process: SimProcess, topic_partition: TopicPartition, replica: Any, where: str
    ) -> None:
        holder = self._leaders.setdefault((topic_partition, replica.core.leader_epoch), process)
        if holder is not process:
            self.fail("one leader an epoch", f"{where}: {holder} leads or led it too")
        # A leader that learns of its election late may lack what its successors have committed since.
        end = self.log(topic_partition).end_before(replica.core.leader_epoch)
        self._check_same(topic_partition, replica.log, 0, end, f"{where} new leader")

    def _check_same(
        self, topic_partition: TopicPartition, log: SimPartitionLog, start: int, end: int, where: str
    ) -> None:
        """Checks that the log contains the committed batches from `start` to `end`."""
        committed = self.log(topic_partition)
        if log.stored.end_offset < end:
            self.fail(
                "acknowledged records survive",
                f"{where}: log ends at {log.stored.end_offset}, committed {end}",
            )
            return
        start = max(start, log.log_start_offset)
        if start >= end:
            return
        index = max(0, bisect_right(committed.base_offsets, start) - 1)
        batches = log.stored.batches
        own = index_of(batches, start)
        for header, data in committed.batches[index:]:
            if header.base_offset >= end:
                return
            if header.last_offset < start:
                continue
            if own == len(batches) or batches[own][1] != data:
                found = None if own == len(batches) else describe(*batches[own])
                self.fail(
                    "logs agree below the high watermark",
                    f"{where}: committed {describe(header, data)}, here {found}",
                )
                return
            own += 1

    def _check_committed(self, topic_partition: TopicPartition, replica: Any, start: int, where: str) -> None:
        committed, core, log = self.log(topic_partition), replica.core, replica.log
        known_end = committed.end_offset
        self._check_same(topic_partition, log, start, min(core.high_watermark, known_end), where)
        if core.high_watermark <= known_end or self.violation:
            return
        if not core.is_leader:
            self.fail("followers' HW <= leader's HW", f"{where}: {core.high_watermark} > {known_end}")
            return
        for header, data in log.stored.batches[index_of(log.stored.batches, known_end) :]:
            if header.last_offset >= core.high_watermark:
                break
            self._commit(topic_partition, header, data, core.leader_epoch, where)
            self.on_committed(topic_partition, core, header)

    def _commit(
        self, topic_partition: TopicPartition, header: BatchHeader, data: bytes, leader_epoch: int, where: str
    ) -> None:
        committed = self.log(topic_partition)
        if committed.epochs:
            # Followers may still tell a deposed leader, which does not know of its deposition, that they have
            # everything.
            leader_epoch = max(leader_epoch, committed.epochs[-1])
        committed.epochs.append(leader_epoch)
        if header.base_offset != committed.end_offset:
            self.fail("offsets have no holes", f"{where}: {header.base_offset} after {committed.end_offset}")
        committed.base_offsets.append(header.base_offset)
        committed.batches.append((header, data))
        if topic_partition.topic == TOPIC:
            self.transactions.batch_committed(topic_partition, header, data)
            self.sent.batch_committed(topic_partition, header, data)
        else:
            self.writers.batch_committed(topic_partition, data)
            self.group_offsets.batch_committed(header, data)
            self.streams.batch_committed(header, data)
        if header.producer_id >= 0 and header.base_sequence >= 0:
            producer = (header.producer_id, header.producer_epoch)
            expected = committed.next_sequences.get(producer, 0)
            if header.base_sequence != expected:
                kind = "no duplicates" if header.base_sequence < expected else "order is kept"
                self.fail(
                    f"idempotence, {kind}",
                    f"{where}: {describe(header, data)} committed, sequence {expected} was next",
                )
            committed.next_sequences[producer] = header.base_sequence + header.record_count

    # -- clients

    def acknowledged(self, topic_partition: TopicPartition, base_offset: int, values: list[bytes]) -> None:
        """Records that a producer with acks=all was told that its batch is at `base_offset`."""
        found = self.log(topic_partition).at(base_offset)
        if found is None or not all(value in found[1] for value in values):
            shown = None if found is None else describe(*found)
            self.fail(
                "everything acknowledged is committed", f"{topic_partition} {base_offset} {values!r}: {shown}"
            )

    def shown(self, topic_partition: TopicPartition, header: BatchHeader, data: bytes, reader: str) -> None:
        """Records that a reader received this batch."""
        found = self.log(topic_partition).at(header.base_offset)
        if found is None or found[1] != data:
            committed = None if found is None else describe(*found)
            self.fail(
                "records that were shown never disappear",
                f"{reader} {topic_partition} read {describe(header, data)}, committed is {committed}",
            )

    def taken_back(self, topic_partition: TopicPartition, offset: int, reader: str, error: str) -> None:
        """Records that a reader's position, which the reader was shown, was refused."""
        self.fail(
            "records that were shown never disappear", f"{reader} {topic_partition} at {offset}: {error}"
        )

    def told_log_end(
        self, topic_partition: TopicPartition, leader_epoch: int, offset: int, reader: str
    ) -> None:
        """Records the log end that ListOffsets returned. It must not move back under a newer leader."""
        epoch, end = self._told_end.get((reader, topic_partition), (-1, 0))
        if leader_epoch >= epoch and offset < end:
            self.fail(
                "the log's end never goes back",
                f"{topic_partition}: {offset} of {leader_epoch}, {end} of {epoch}",
            )
        if leader_epoch >= epoch:
            self._told_end[reader, topic_partition] = (leader_epoch, max(end, offset))

    # -- the store

    def stored(self, source: SimProcess | None, changes: Sequence[Put | Delete], revision: int) -> None:
        """Records that a transaction of the store took effect."""
        for change in changes:
            if not isinstance(change, Put) or not change.key.startswith(TOPIC_PREFIX):
                continue
            entry = decode_entry(change.key, change.value)
            if isinstance(entry, TopicEntry):
                self._assignments[entry.name] = entry
            elif isinstance(entry, PartitionStateEntry):
                self._check_state(source, entry)

    def _check_state(self, source: SimProcess | None, entry: PartitionStateEntry) -> None:
        if entry.topic not in TOPICS:
            return
        topic = self._assignments.get(entry.topic)
        before = self._states.get(entry.key)
        self._states[entry.key] = entry
        if topic is None:
            return
        replicas = topic.assignments[entry.partition]
        where = f"{entry.topic}-{entry.partition} by {source}: {entry}"
        if not set(entry.isr) <= set(replicas):
            self.fail("ISR is a subset of AR", f"{where}, replicas {replicas}")
        if len(set(entry.isr)) != len(entry.isr) or set(entry.isr) & set(entry.elr):
            self.fail("ISR and ELR name a replica once", where)
        if entry.leader != NO_LEADER and entry.leader not in entry.isr:
            self.fail("the leader is in the ISR", where)
        if before is None:
            return
        if entry.leader_epoch < before.leader_epoch or entry.controller_epoch < before.controller_epoch:
            self.fail("epochs only grow", f"{where}, before {before}")
        if entry.leader_epoch == before.leader_epoch and entry.leader != before.leader:
            self.fail("one leader an epoch", f"{where}, before {before}")


def describe(header: BatchHeader, data: bytes) -> str:
    return (
        f"[{header.base_offset}..{header.last_offset} epoch {header.partition_leader_epoch}"
        f" producer {header.producer_id} sequence {header.base_sequence} {bytes(data[61:90])!r}]"
    )
