"""The promises that clients of groups and transactions received, and what happened to them.

An offset is identified by the name that was committed with it as its metadata, and a transaction by the name
that all its records carry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.model.topics import TopicPartition
from tidelog.records.batch import CRC_COVERS_FROM, BatchHeader, decode_end_transaction, iterate_headers
from tidelog.records.record import iterate_records

SEPARATOR: Final = b"|"
NO_GENERATION: Final = -1
COMMITS_REMEMBERED: Final = 50

Fail = Callable[[str, str], None]


class ShardWriters:
    """The shard epochs of the owners that wrote the batches in a shard's log."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._epochs: dict[tuple[TopicPartition, bytes], int] = {}
        self._newest: dict[TopicPartition, int] = {}

    def will_write(self, shard: TopicPartition, batches: bytes, shard_epoch: int) -> None:
        """Records that an owner asks to append this batch."""
        for position, header in iterate_headers(batches):
            key = (shard, batches[position + CRC_COVERS_FROM : position + header.size_bytes])
            self._epochs[key] = max(shard_epoch, self._epochs.get(key, shard_epoch))

    def batch_committed(self, shard: TopicPartition, data: bytes) -> None:
        epoch = self._epochs.get((shard, data[CRC_COVERS_FROM:]))
        if epoch is None:
            self._fail("only owners write to shards", f"{shard} {data!r}")
            return
        newest = self._newest.setdefault(shard, epoch)
        if epoch < newest:
            self._fail(
                "no owner writes to a shard after a newer one",
                f"{shard}: {data!r} of shard epoch {epoch}, after {newest}",
            )
        self._newest[shard] = max(newest, epoch)


class Commit:
    """One offset that a member of `generation` has asked to commit."""

    def __init__(self, member: str, number: int, generation: int, sent_s: float) -> None:
        self.member = member
        self.name = f"{member}:{number}"
        self.generation = generation
        self.sent_s = sent_s
        self.acknowledged_s: float | None = None

    def is_older_than(self, later: Commit) -> bool:
        """Returns True if clients can know that this commit is older: it was acknowledged before the later
        one was sent, or one member sent both, the later one after it had stopped waiting for this one.
        """
        if self.acknowledged_s is not None and self.acknowledged_s <= later.sent_s:
            return True
        return self.member == later.member and self.sent_s < later.sent_s

    def __repr__(self) -> str:
        return f"{self.name} of generation {self.generation}, {self.sent_s:.3f} {self.acknowledged_s}"


class CommitHistory:
    """The commits of all groups."""

    def __init__(self, fail: Fail) -> None:
        self.acknowledged = 0
        self.read = 0
        self._fail = fail
        self._commits: dict[tuple[str, int], dict[str, Commit]] = {}
        self._acknowledged: dict[tuple[str, int], list[Commit]] = {}
        self._generations: dict[str, list[tuple[float, int]]] = {}

    def generation_known(self, group: str, generation: int, now_s: float) -> None:
        """Records that a member has an assignment of this generation, so the generation is stored."""
        known = self._generations.setdefault(group, [])
        if not known or generation > known[-1][1]:
            known.append((now_s, generation))

    def sent(self, group: str, partition: int, commit: Commit) -> None:
        self._commits.setdefault((group, partition), {})[commit.name] = commit

    def was_acknowledged(self, group: str, partition: int, commit: Commit, now_s: float) -> None:
        self.acknowledged += 1
        commit.acknowledged_s = now_s
        acknowledged = self._acknowledged.setdefault((group, partition), [])
        acknowledged.append(commit)
        del acknowledged[:-COMMITS_REMEMBERED]
        for known_s, generation in self._generations.get(group, ()):
            if known_s <= commit.sent_s and generation > commit.generation:
                self._fail(
                    "a commit of an old generation never counts",
                    f"{group} {partition}: {commit} was taken, {generation} was there at {known_s:.3f}",
                )

    def was_read(self, group: str, partition: int, name: str | None, asked_s: float) -> None:
        """Records the answer to a fetch of committed offsets that was sent at `asked_s`. None means that no
        offset is committed.
        """
        self.read += 1
        found = None
        if name:
            found = self._commits.get((group, partition), {}).get(name)
            if found is None:
                self._fail("offsets are those that were committed", f"{group} {partition}: {name}")
                return
        for later in self._acknowledged.get((group, partition), ()):
            if later is found or later.acknowledged_s is None or later.acknowledged_s > asked_s:
                continue
            if found is None or found.is_older_than(later):
                self._fail(
                    "an acknowledged commit is never lost or replaced by an older one",
                    f"{group} {partition}: read {found}, acknowledged was {later}",
                )
                return
            if found.generation < later.generation:
                self._fail(
                    "a commit of an old generation never counts",
                    f"{group} {partition}: read {found}, acknowledged was {later}",
                )
                return


class Transaction:
    """The client's intention for a transaction, and the answers that it got."""

    def __init__(self, client: str, number: int) -> None:
        self.client = client
        self.number = number
        self.name = f"{client}:{number}"
        self.wants_commit: bool | None = None
        """The intention that the client states in EndTxn, or None before. A transaction without an intention
        must not be committed.
        """
        self.told_commit: bool | None = None
        """The outcome that the client was told."""
        self.written: dict[TopicPartition, int] = {}
        """The number of acknowledged records."""
        self.commits_offset = False
        self.outcomes: dict[TopicPartition, bool] = {}
        self.found: dict[TopicPartition, int] = {}

    def __repr__(self) -> str:
        return (
            f"{self.name} (wants commit {self.wants_commit}, told {self.told_commit}, written {self.written},"
            f" found {self.found}, outcomes {self.outcomes})"
        )


class TransactionHistory:
    """Reads the committed part of each partition."""

    def __init__(self, fail: Fail) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.visible: dict[TopicPartition, list[tuple[int, str]]] = {}
        """Offset and transaction of each batch that read_committed readers must see, in the order of
        markers.
        """
        self._fail = fail
        self._open: dict[tuple[TopicPartition, int], list[tuple[int, Transaction]]] = {}
        self._last_committed: dict[tuple[TopicPartition, str], int] = {}

    def begin(self, client: str, number: int) -> Transaction:
        transaction = Transaction(client, number)
        self.transactions[transaction.name] = transaction
        return transaction

    @property
    def committed(self) -> int:
        return sum(1 for transaction in self.transactions.values() if transaction.told_commit)

    def batch_committed(self, topic_partition: TopicPartition, header: BatchHeader, data: bytes) -> None:
        """Records that a batch is below a high watermark."""
        if not header.is_transactional:
            return
        key = (topic_partition, header.producer_id)
        if header.is_control:
            self._marker(key, data)
            return
        transaction = self.transactions[transaction_name(data)]
        if topic_partition in transaction.outcomes:
            self._fail(
                "nothing joins a transaction that has ended", f"{topic_partition}: {transaction} {header}"
            )
        transaction.found[topic_partition] = transaction.found.get(topic_partition, 0) + header.record_count
        self._open.setdefault(key, []).append((header.base_offset, transaction))

    def _marker(self, key: tuple[TopicPartition, int], data: bytes) -> None:
        [record] = iterate_records(data)
        marker = decode_end_transaction(record.key or b"", record.value or b"")
        assert marker is not None
        topic_partition = key[0]
        batches = self._open.pop(key, [])
        for transaction in dict.fromkeys(transaction for _, transaction in batches):
            self._ended(topic_partition, transaction, is_commit=marker.is_commit)
        if marker.is_commit:
            visible = self.visible.setdefault(topic_partition, [])
            visible += [(offset, transaction.name) for offset, transaction in batches]

    def _ended(self, topic_partition: TopicPartition, transaction: Transaction, *, is_commit: bool) -> None:
        transaction.outcomes[topic_partition] = is_commit
        where = f"{topic_partition}: {transaction}"
        if is_commit and not transaction.wants_commit:
            self._fail("a delayed EndTxn never touches the next transaction", f"{where} is committed")
        if not is_commit and transaction.told_commit:
            self._fail("an acknowledged commit is never aborted", where)
        if is_commit and transaction.told_commit is False:
            self._fail("an acknowledged abort is never committed", where)
        if len(set(transaction.outcomes.values())) > 1:
            self._fail("a transaction is visible as a whole or not at all", where)
        if is_commit:
            if transaction.found.get(topic_partition, 0) < transaction.written.get(topic_partition, 0):
                self._fail("a transaction is visible as a whole or not at all", where)
            key = (topic_partition, transaction.client)
            if self._last_committed.get(key, -1) >= transaction.number:
                self._fail("transactions are seen in order", where)
            self._last_committed[key] = transaction.number

    def was_told(self, transaction: Transaction, *, is_commit: bool) -> None:
        """Records that the coordinator has answered the EndTxn."""
        transaction.told_commit = is_commit
        if any(outcome != is_commit for outcome in transaction.outcomes.values()):
            self._fail("the answers to EndTxn are kept", f"{transaction}")

    def shown(self, topic_partition: TopicPartition, header: BatchHeader, data: bytes, reader: str) -> None:
        """Records that a read_committed reader received this batch and was not told that it is aborted."""
        if not header.is_transactional or header.is_control:
            return
        transaction = self.transactions[transaction_name(data)]
        if not transaction.outcomes.get(topic_partition):
            self._fail("read_committed shows only committed records", f"{reader} {header} {transaction}")

    def hidden(self, topic_partition: TopicPartition, header: BatchHeader, data: bytes, reader: str) -> None:
        """Records that a read_committed reader was told that this batch is aborted."""
        transaction = self.transactions[transaction_name(data)]
        if transaction.outcomes.get(topic_partition) is not False:
            self._fail("read_committed shows all that is committed", f"{reader} {header} {transaction}")

    # -- final checks

    def unfinished(self) -> list[str]:
        """Returns transactions that lack a marker in a partition where they wrote."""
        return [
            f"{transaction} is open in {key[0]}"
            for key, batches in self._open.items()
            for _, transaction in batches
        ]

    def check_end(self) -> None:
        for transaction in self.transactions.values():
            for topic_partition, count in transaction.written.items():
                if transaction.found.get(topic_partition, 0) < count:
                    self._fail("everything acknowledged is committed", f"{topic_partition}: {transaction}")
            if transaction.told_commit and not all(transaction.outcomes.get(p) for p in transaction.written):
                self._fail("an acknowledged commit is never aborted", f"{transaction}")

    def last_with_offset(self, client: str) -> str | None:
        """Returns this client's last committed transaction that committed an offset."""
        last = None
        for transaction in self.transactions.values():
            is_committed = transaction.told_commit or any(transaction.outcomes.values())
            if transaction.client == client and transaction.commits_offset and is_committed:
                last = transaction.name
        return last


def transaction_name(batch: bytes) -> str:
    for record in iterate_records(batch):
        return (record.value or b"").partition(SEPARATOR)[0].decode()
    raise AssertionError("an empty batch")


def transaction_value(transaction: Transaction, number: int) -> bytes:
    return transaction.name.encode() + SEPARATOR + str(number).encode()
