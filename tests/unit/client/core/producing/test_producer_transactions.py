"""A transaction stores all of its records once and in order, or it cannot be committed, under all faults.

The brokers are a model (brokerlab.model_brokers), and so is the coordinator: each end of a transaction raises
the epoch, and brokers refuse what has an earlier one (KIP-890). Planted faults must be found.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerlab.model_brokers import REQUEST_TIMEOUT_MS, Faults, ModelCluster
from brokerlab.producer_runs import PRODUCER_FAULTS
from tidelog.client.core.producing.producer import ProducerCore
from tidelog.client.core.producing.producer_batch import PartitionAnswer, PartitionQueue, ProducerIdReceived
from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import TransactionAbortableError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.process.build import is_compiled
from tidelog.records.batch import parse_header

SETTINGS = ProducerSettings(
    batch_size=200,
    linger_ms=5,
    buffer_memory=20_000,
    request_timeout_ms=REQUEST_TIMEOUT_MS,
    delivery_timeout_ms=4_000,
    transactional_id="x",
)
PRODUCER_ID = 101
TRANSACTIONS = 20
HEALING_MS = 60_000


class TransactionalCluster(ModelCluster):
    """A cluster, its coordinator, and an application with one transaction after the other."""

    epoch = 0
    failed_count = 0
    """The number of transactions that had to be aborted."""

    def process(
        self, node_id: int, data: list[tuple[TopicPartition, UUID, bytes]]
    ) -> dict[TopicPartition, PartitionAnswer]:
        fenced = {place for place, _, batch in data if parse_header(batch).producer_epoch < self.epoch}
        answers = super().process(node_id, [row for row in data if row[0] not in fenced])
        refusal = PartitionAnswer(ErrorCode.INVALID_PRODUCER_EPOCH, -1, -1, None, None)
        return answers | dict.fromkeys(fenced, refusal)

    def transact(self, number: int) -> None:
        """Runs a transaction, as the shell does it. Checks what a commit makes visible."""
        ends = [len(partition.records) for partition in self.partitions]
        sent = self._send_some(number)
        is_aborted = self.chance.random() < 0.2
        if not is_aborted:
            self._flush()
        has_failed = self.core.abort_error is not None
        self.failed_count += has_failed
        if is_aborted or has_failed:
            self.perform(self.core.fail_all(TransactionAbortableError("aborted")))
            self.run(self.now_ms + self.chance.choice((0, 1, 50)))
        else:
            stored = [partition.records[end:] for partition, end in zip(self.partitions, ends, strict=True)]
            assert stored == sent, f"transaction {number} stored {stored} and not {sent}"
        self.epoch += 1
        self.core.abort_error = None
        self.step(ProducerIdReceived(PRODUCER_ID, self.epoch))

    def _send_some(self, number: int) -> list[list[bytes]]:
        sent: list[list[bytes]] = [[] for _ in self.partitions]
        for index in range(self.chance.randint(1, 15)):
            partition = self.chance.randrange(len(sent))
            value = b"%d-%d" % (number, index)
            try:
                batch = self.core.append("t", partition, 1_000, None, value, (), self.now_ms)
            except KafkaError:
                break  # the transaction must be aborted
            if batch is not None:
                sent[partition].append(value)
            self.run(self.now_ms + self.chance.choice((0, 0, 1, 20, 200, 500)))
        return sent

    def _flush(self) -> None:
        self.core.is_flushing = True
        pending = self.core.pending_batches()
        self.run(self.now_ms + self.chance.choice((100, 3_000)))
        if not all(batch.is_done for batch in pending):
            self.run(self.now_ms + SETTINGS.delivery_timeout_ms)
        assert all(batch.is_done for batch in pending), "a batch outlives delivery.timeout.ms"
        self.core.is_flushing = False


def run(seed: int, faults: Faults) -> int:
    """Returns the number of transactions that had to be aborted."""
    cluster = TransactionalCluster(SETTINGS, seed, faults)
    cluster.step(ProducerIdReceived(PRODUCER_ID, 0))
    for number in range(TRANSACTIONS):
        cluster.transact(number)
    cluster.is_healed = True
    cluster.run(cluster.now_ms + HEALING_MS)
    assert not cluster.core.pending_batches()
    assert cluster.core.free_bytes == SETTINGS.buffer_memory, "the buffer leaks"
    return cluster.failed_count


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), PRODUCER_FAULTS)
def test_a_committed_transaction_has_all_its_records_once(seed: int, faults: Faults) -> None:
    run(seed, faults)


SEEDS = range(100)


def test_without_faults_transactions_are_committed() -> None:
    for seed in SEEDS:
        check_commits(seed)


def check_commits(seed: int) -> None:
    """Checks that no transaction is aborted unless the application does so on purpose."""
    assert run(seed, Faults()) == 0, f"seed {seed}"


def _failure_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record fails, and the transaction can be committed."""
    monkeypatch.setattr(ProducerCore, "_spoil_transaction", lambda core, error: None)


def _sequence_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of the next transaction go on where the aborted one ended."""
    original = PartitionQueue.adopt

    def adopt(queue: PartitionQueue, producer_id: int, producer_epoch: int) -> None:
        kept = queue.next_sequence
        original(queue, producer_id, producer_epoch)
        queue.next_sequence = kept

    monkeypatch.setattr(PartitionQueue, "adopt", adopt)


@pytest.mark.skipif(is_compiled(), reason="the methods of compiled classes cannot be replaced")
@pytest.mark.parametrize("plant", [_failure_forgotten, _sequence_kept])
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            run(seed, Faults(lost_request=0.1, lost_response=0.1, refused=0.1, rejected=0.05))
            check_commits(seed)
