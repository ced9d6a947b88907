"""Transactions from the clients' view: producers, epochs, ends, timeouts and descriptions."""

from __future__ import annotations

import pytest

from brokerlab.counted_work import least_cpu_s
from grouplab.transaction_lab import TransactionLab
from tidelog.group_coordinator.groups.consumer.topic_regex import TopicRegex
from tidelog.group_coordinator.shard_core import EndTransaction, Producer, SetTimer
from tidelog.group_coordinator.transactions import answers
from tidelog.group_coordinator.transactions.answers import MAX_WAITING, WaitTimer
from tidelog.group_coordinator.transactions.transaction import LAST_EPOCH, TransactionStatus
from tidelog.group_coordinator.transactions.transaction_core import (
    EXPIRY_TIMER,
    MAX_MARKERS_AT_ONCE,
    MAX_TIMED_OUT_AT_ONCE,
    NEXT_TIMEOUTS_MS,
    TIMEOUTS_TIMER,
)
from tidelog.kernel.instants import WallMs
from tidelog.model import topics
from tidelog.model.coordinator_shards import ShardKind, shard_for
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import MAX_NAME_BYTES, TopicPartition
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tidelog.wire.messages.describe_transactions import DescribeTransactionsRequest
from tidelog.wire.messages.list_transactions import ListTransactionsRequest


@pytest.fixture
def lab() -> TransactionLab:
    return TransactionLab()


def begin(lab: TransactionLab, name: str = "t") -> tuple[int, int]:
    told = lab.init(name)
    assert told.error_code == ErrorCode.NONE
    return told.producer_id, told.producer_epoch


def status(lab: TransactionLab, name: str = "t") -> TransactionStatus:
    return lab.core.transactions[name].status


class TestKip890:
    """Clients with transaction version 2, whose epoch is raised by each end."""

    def test_each_end_raises_and_returns_the_epoch(self, lab: TransactionLab) -> None:
        producer_id, epoch = begin(lab)
        assert epoch == 0
        for expected_epoch in (1, 2):
            assert lab.add((producer_id, epoch), {"a": [0, 1]}) == {("a", 0): 0, ("a", 1): 0}
            answer = lab.end((producer_id, epoch), True)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
                0,
                producer_id,
                expected_epoch,
            )
            (written,) = lab.write_markers()
            assert written == EndTransaction(
                "t",
                Producer(producer_id, expected_epoch),
                True,
                lab.epoch,
                2,
                (TopicPartition("a", 0), TopicPartition("a", 1)),
            )
            assert status(lab) is TransactionStatus.COMPLETE_COMMIT
            epoch = expected_epoch

    def test_a_repeated_end_is_confirmed_and_changes_nothing(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0]})
        first = lab.end(producer, True)
        assert lab.end(producer, True).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        lab.load()
        lab.write_markers()
        size = len(lab.log)
        assert lab.end(producer, True) == first
        assert lab.end(producer, False).error_code == ErrorCode.INVALID_TXN_STATE
        assert len(lab.log) == size

    def test_a_late_end_never_ends_the_next_transaction(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0]})
        told = lab.end(producer, True)
        lab.write_markers()
        following = (told.producer_id, told.producer_epoch)
        lab.add(following, {"a": [0]})
        for commit in (True, False):
            assert lab.end(producer, commit).error_code == ErrorCode.PRODUCER_FENCED
        assert status(lab) is TransactionStatus.ONGOING

    def test_an_abort_without_a_transaction_completes_at_once(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        answer = lab.end(producer, False)
        assert (answer.error_code, answer.producer_epoch) == (0, 1)
        assert status(lab) is TransactionStatus.COMPLETE_ABORT
        assert lab.write_markers() == []
        assert lab.end((answer.producer_id, 1), True).error_code == ErrorCode.INVALID_TXN_STATE

    def test_exhausted_epochs_are_followed_by_another_producer_id(self, lab: TransactionLab) -> None:
        producer_id, _ = begin(lab)
        exhaust(lab, LAST_EPOCH - 1)
        producer = (producer_id, LAST_EPOCH - 1)
        lab.add(producer, {"a": [0]})
        lab.ids_at_once = False
        assert lab.end(producer, True) is None
        assert lab.end(producer, True).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        assert lab.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        lab.tell_producer_id(lab.awaited[0])
        (written,) = lab.write_markers()
        assert written.producer == Producer(producer_id, LAST_EPOCH)
        lab.load()
        again = lab.end(producer, True)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, lab.next_producer_id, 0)
        assert lab.add((lab.next_producer_id, 0), {"a": [0]}) == {("a", 0): 0}

    def test_a_missing_producer_id_is_a_retriable_error(self, lab: TransactionLab) -> None:
        lab.ids_at_once = False
        assert lab.init() is None
        (effect,) = lab.awaited
        lab.take(lab.core.effect_done(effect, None, lab.now_ms))
        assert lab.replies[1].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        lab.ids_at_once = True
        assert begin(lab)[1] == 0

    @pytest.mark.parametrize("jump_ms", [7_200_000, -7_200_000])
    def test_a_loaded_transaction_times_out_from_its_loading(self, lab: TransactionLab, jump_ms: int) -> None:
        """The clock of the coordinator that loads it is hours away from the one that began it."""
        lab.add(begin(lab), {"a": [0]})
        lab.now_ms = WallMs(lab.now_ms + jump_ms)
        lab.load()
        lab.pass_time(59_000, TIMEOUTS_TIMER)
        assert not lab.awaited
        lab.pass_time(2_000, TIMEOUTS_TIMER)
        assert [effect.is_commit for effect in lab.write_markers()] == [False]

    def test_a_timed_out_producer_continues_after_its_abort(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0]})
        lab.pass_time(60_001, TIMEOUTS_TIMER)
        assert [(effect.producer, effect.is_commit) for effect in lab.write_markers()] == [
            (Producer(producer[0], 1), False)
        ]
        lab.load()
        assert lab.end(producer, True).error_code == ErrorCode.INVALID_TXN_STATE
        answer = lab.end(producer, False)
        assert (answer.error_code, answer.producer_epoch) == (0, 1)

    @pytest.mark.parametrize(
        ("transactions", "partitions", "at_once"),
        [
            (MAX_TIMED_OUT_AT_ONCE * 2 + 5, 1, MAX_TIMED_OUT_AT_ONCE),
            (MAX_TIMED_OUT_AT_ONCE, 1, MAX_TIMED_OUT_AT_ONCE),
            (5, MAX_MARKERS_AT_ONCE // 2, 2),
            (3, MAX_MARKERS_AT_ONCE + 1, 1),
        ],
    )
    def test_many_transactions_time_out_in_steps(
        self, lab: TransactionLab, transactions: int, partitions: int, at_once: int
    ) -> None:
        for number in range(transactions):
            name = f"t{number}"
            producer = begin(lab, name)
            for start in range(0, partitions, 500):
                lab.add(producer, {"a": list(range(start, min(start + 500, partitions)))}, name=name)
        lab.now_ms += 60_001
        remaining = transactions
        interval_ms = lab.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        later = lab.init("later", timeout_ms=900_000)
        lab.add((later.producer_id, later.producer_epoch), {"a": [0]}, name="later")
        while remaining:
            decision = lab.core.timer_fired(TIMEOUTS_TIMER, lab.now_ms)
            assert len(decision.effects) == len(decision.records) == min(at_once, remaining)
            remaining -= len(decision.effects)
            pause_ms = NEXT_TIMEOUTS_MS if remaining else interval_ms
            assert decision.timers == [SetTimer(TIMEOUTS_TIMER, pause_ms)]
        assert status(lab, "later") is TransactionStatus.ONGOING


def exhaust(lab: TransactionLab, epoch: int) -> None:
    from tidelog.group_coordinator.transactions.transaction import transaction_record

    at_the_end = lab.core.transactions["t"]._replace(producer_epoch=epoch)
    lab.log.append(transaction_record("t", at_the_end))
    lab.load()


class TestBeforeKip890:
    def test_the_epoch_stays_and_the_end_may_be_repeated(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        assert lab.add(producer, {"a": [0]}, version=3) == {("a", 0): 0}
        assert lab.add_offsets(producer, "g") == 0
        assert lab.end(producer, True, version=4).error_code == 0
        assert lab.end(producer, True, version=4).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        assert lab.end(producer, False, version=4).error_code == ErrorCode.INVALID_TXN_STATE
        (written,) = lab.write_markers()
        offsets = shard_for(ShardKind.GROUP, "g", 50).topic_partition
        assert written.partitions == (offsets, TopicPartition("a", 0))
        assert (written.producer, written.transaction_version) == (Producer(*producer), 0)
        lab.load()
        assert lab.end(producer, True, version=4).error_code == 0
        assert lab.add(producer, {"a": [0]}, version=3) == {("a", 0): 0}

    def test_a_timed_out_producer_is_fenced(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0]}, version=3)
        lab.pass_time(60_001, TIMEOUTS_TIMER)
        assert lab.end(producer, False, version=4).error_code == ErrorCode.PRODUCER_FENCED
        assert lab.end(producer, False, version=1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        lab.write_markers()
        assert lab.add(producer, {"a": [0]}, version=1) == {("a", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
        assert begin(lab) == (producer[0], 2)


class TestInitProducerId:
    def test_a_new_producer_fences_the_previous_one(self, lab: TransactionLab) -> None:
        old = begin(lab)
        new = begin(lab)
        assert new == (old[0], 1)
        assert lab.add(old, {"a": [0]}) == {("a", 0): ErrorCode.PRODUCER_FENCED}
        assert lab.end(old, True).error_code == ErrorCode.PRODUCER_FENCED
        assert lab.init(named=old).error_code == ErrorCode.PRODUCER_FENCED
        assert lab.init(named=old, version=3).error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    def test_an_open_transaction_is_aborted_first(self, lab: TransactionLab) -> None:
        old = begin(lab)
        lab.add(old, {"a": [0]})
        for _ in range(2):
            refused = lab.init()
            assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (51, -1, -1)
        (written,) = lab.write_markers()
        assert (written.producer, written.is_commit) == (Producer(old[0], 1), False)
        assert lab.end(old, False).error_code == ErrorCode.PRODUCER_FENCED
        assert begin(lab) == (old[0], 2)

    def test_a_named_epoch_is_raised_also_after_a_lost_response(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        first = lab.init(named=producer)
        assert (first.error_code, first.producer_epoch) == (0, 1)
        lab.load()
        assert lab.init(named=producer) == first
        assert lab.init(named=producer) == first
        assert lab.add((producer[0], 1), {"a": [0]}) == {("a", 0): 0}
        assert lab.init(named=producer).error_code == ErrorCode.PRODUCER_FENCED

    def test_exhausted_named_epochs_give_a_new_id_also_after_a_lost_response(
        self, lab: TransactionLab
    ) -> None:
        producer_id, _ = begin(lab)
        exhaust(lab, LAST_EPOCH - 1)
        named = (producer_id, LAST_EPOCH - 1)
        first = lab.init(named=named)
        assert (first.error_code, first.producer_epoch) == (0, 0)
        assert first.producer_id != producer_id
        lab.load()
        assert lab.init(named=named) == first

    def test_fence_at_the_last_epoch(self, lab: TransactionLab) -> None:
        producer_id, _ = begin(lab)
        exhaust(lab, LAST_EPOCH - 1)
        lab.add((producer_id, LAST_EPOCH - 1), {"a": [0]})
        assert lab.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        (written,) = lab.write_markers()
        assert written.producer == Producer(producer_id, LAST_EPOCH)
        told = lab.init()
        assert told.producer_id != producer_id
        assert told.producer_epoch == 0

    @pytest.mark.parametrize(
        ("name", "timeout_ms", "named", "error"),
        [
            ("", 60_000, (-1, -1), ErrorCode.INVALID_REQUEST),
            ("t", 0, (-1, -1), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            ("t", 900_001, (-1, -1), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            ("t", 60_000, (1, -1), ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_invalid_requests_are_rejected(
        self, lab: TransactionLab, name: str, timeout_ms: int, named: tuple[int, int], error: ErrorCode
    ) -> None:
        assert lab.init(name, timeout_ms=timeout_ms, named=named).error_code == error
        assert lab.log == []

    def test_a_producer_without_a_transactional_id_gets_a_new_producer_id(self, lab: TransactionLab) -> None:
        assert (lab.init(None).producer_id, lab.init(None).producer_id) == (1001, 1002)
        assert lab.log == []

    def test_waiting_requests_are_rejected_when_the_shard_moves(self, lab: TransactionLab) -> None:
        lab.ids_at_once = False
        assert lab.init() is None
        (reply,) = lab.core.deactivate()
        assert reply.message.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class TestPartitions:
    def test_known_partitions_are_not_logged_again(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0, 1]})
        size = len(lab.log)
        lab.add(producer, {"a": [1]})
        assert len(lab.log) == size

    def test_a_transaction_begins_without_the_partitions_of_the_previous_one(
        self, lab: TransactionLab
    ) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0]}, version=3)
        lab.end(producer, True, version=4)
        assert lab.add(producer, {"a": [1]}, version=3) == {("a", 1): ErrorCode.CONCURRENT_TRANSACTIONS}
        lab.write_markers()
        lab.add(producer, {"a": [1]}, version=3)
        assert lab.core.transactions["t"].partitions == {TopicPartition("a", 1)}

    @pytest.mark.parametrize(("version", "missing"), [(4, 48), (5, 120)])
    def test_verification(self, lab: TransactionLab, version: int, missing: int) -> None:
        producer = begin(lab)

        def verified(who: tuple[int, int], name: str = "t") -> dict[tuple[str, int], int]:
            return lab.add(who, {"a": [0, 1]}, verify=True, version=version, name=name)

        assert set(verified(producer).values()) == {missing}
        lab.add(producer, {"a": [0]})
        size = len(lab.log)
        assert verified(producer) == {("a", 0): 0, ("a", 1): missing}
        assert set(verified((producer[0], 7)).values()) == {ErrorCode.PRODUCER_FENCED}
        assert set(verified((7, 0)).values()) == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        assert set(verified(producer, "u").values()) == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        lab.end(producer, True)
        assert len(lab.log) == size + 1
        assert set(verified(producer).values()) == {ErrorCode.PRODUCER_FENCED}


class TestRest:
    def test_a_repeated_report_of_markers_does_not_change_the_next_transaction(
        self, lab: TransactionLab
    ) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0]}, version=3)
        lab.end(producer, True, version=4)
        (effect,) = lab.write_markers()
        lab.add(producer, {"a": [0]}, version=3)
        lab.end(producer, False, version=4)
        lab.take(lab.core.effect_done(effect, None, lab.now_ms))
        assert status(lab) is TransactionStatus.PREPARE_ABORT

    def test_a_decided_transaction_is_ended_by_the_next_owner(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0]})
        lab.end(producer, True)
        lab.load()
        (written,) = lab.write_markers()
        assert (written.is_commit, written.coordinator_epoch) == (True, 2)
        assert status(lab) is TransactionStatus.COMPLETE_COMMIT

    @pytest.mark.parametrize("is_commit", [True, False])
    def test_another_owner_between_the_partitions_and_the_offsets(
        self, lab: TransactionLab, is_commit: bool
    ) -> None:
        """The next owner ends the transaction in the partition, which the previous owner added, and in the
        group.
        """
        producer = begin(lab)
        lab.add(producer, {"a": [0]})
        lab.load()
        assert lab.add_offsets(producer, "g") == 0
        lab.load()
        assert lab.end(producer, is_commit).error_code == 0
        (written,) = lab.write_markers()
        offsets = shard_for(ShardKind.GROUP, "g", 50).topic_partition
        assert (written.partitions, written.is_commit) == ((offsets, TopicPartition("a", 0)), is_commit)
        assert written.producer == Producer(producer[0], producer[1] + 1)

    def test_only_transactional_ids_without_an_open_transaction_expire(self, lab: TransactionLab) -> None:
        begin(lab, "idle")
        lab.add(begin(lab, "open"), {"a": [0]}, name="open")
        lab.pass_time(604_800_000, EXPIRY_TIMER)
        assert set(lab.core.transactions) == {"open"}
        lab.load()
        assert set(lab.core.transactions) == {"open"}

    def test_transactional_ids_of_an_unknown_time_do_not_expire(self, lab: TransactionLab) -> None:
        now_ms, lab.now_ms = lab.now_ms, WallMs(-1)
        begin(lab, "unknown")
        lab.now_ms = now_ms
        begin(lab, "idle")
        lab.pass_time(604_800_000, EXPIRY_TIMER)
        assert set(lab.core.transactions) == {"unknown"}

    def test_describe(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [1, 0], "b": [2]})
        answer = lab.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(["t", "unknown", ""]))
        described, unknown, unnamed = answer.transaction_states
        assert (described.transaction_state, described.producer_id, described.producer_epoch) == (
            "Ongoing",
            *producer,
        )
        assert (described.transaction_timeout_ms, described.transaction_start_time_ms) == (60_000, lab.now_ms)
        assert [(topic.topic, topic.partitions) for topic in described.topics] == [("a", [0, 1]), ("b", [2])]
        assert (unknown.error_code, unnamed.error_code) == (105, 42)

    @pytest.mark.parametrize(
        ("request_", "names"),
        [
            (ListTransactionsRequest(), {"open", "idle", "a b/\u00fc"}),
            (ListTransactionsRequest(["Ongoing"]), {"open"}),
            (ListTransactionsRequest(["Empty", "nonsense"]), {"idle", "a b/\u00fc"}),
            (ListTransactionsRequest(producer_id_filters=[1001]), {"idle"}),
            (ListTransactionsRequest(["Ongoing"], duration_filter=5_000), set()),
            (ListTransactionsRequest(["Ongoing"], duration_filter=4_999), {"open"}),
            (ListTransactionsRequest(transactional_id_pattern="o.*"), {"open"}),
            (ListTransactionsRequest(transactional_id_pattern="pen"), set()),
            (ListTransactionsRequest(transactional_id_pattern="a b/.+"), {"a b/\u00fc"}),
        ],
    )
    def test_list(self, lab: TransactionLab, request_: ListTransactionsRequest, names: set[str]) -> None:
        begin(lab, "idle")
        lab.add(begin(lab, "open"), {"a": [0]}, name="open")
        begin(lab, "a b/\u00fc")
        lab.now_ms += 5_000
        answer = lab.ask(ApiKey.LIST_TRANSACTIONS, 2, request_)
        assert {state.transactional_id for state in answer.transaction_states} == names
        assert answer.unknown_state_filters == [name for name in request_.state_filters if name == "nonsense"]


@pytest.mark.timeout(20)
def test_a_pattern_cannot_block_the_shard(lab: TransactionLab) -> None:
    begin(lab, "a" * 60 + "!")
    asked = ListTransactionsRequest(transactional_id_pattern="(a+)+$")
    assert lab.ask(ApiKey.LIST_TRANSACTIONS, 2, asked).transaction_states == []
    broken = lab.ask(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(transactional_id_pattern="("))
    assert broken.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", ["(.?){1000}(.?){99}z", "(.?){1000}" * 30 + "z", "(.*a.{200})*"])
def test_a_pattern_takes_a_bounded_time_for_long_ids(lab: TransactionLab, pattern: str) -> None:
    """A client without rights sends the pattern, which is compared with the ids of others."""
    for number in range(16):
        begin(lab, "ab" * 500 + str(number))
    asked = ListTransactionsRequest(transactional_id_pattern=pattern)

    def ask() -> None:
        answers._compiled.cache_clear()
        told = lab.ask(ApiKey.LIST_TRANSACTIONS, 2, asked)
        assert told.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert told.transaction_states == []

    assert least_cpu_s(ask) < 0.2
    few = lab.ask(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(transactional_id_pattern="(ab)+[01]"))
    assert len(few.transaction_states) == 2


def test_a_pattern_is_compiled_once_for_all_shards(
    lab: TransactionLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_(expression: str) -> TopicRegex:
        compiled.append(expression)
        return TopicRegex(expression)

    monkeypatch.setattr(answers, "TopicRegex", compile_)
    for pattern in ("once.*", "(once"):
        for shard in (lab, TransactionLab()):
            shard.ask(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(transactional_id_pattern=pattern))
    assert compiled == ["once.*", "(once"]


class TestWaitingForMarkers:
    def test_the_next_transaction_begins_as_soon_as_the_markers_are_written(
        self, lab: TransactionLab
    ) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0]}, version=3)
        lab.end(producer, True, version=4)
        lab.is_patient = True
        topics = [AddPartitionsToTxnTopic("a", [1])]
        asked = AddPartitionsToTxnRequest([], "t", *producer, topics)
        assert lab.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, asked) is None
        lab.write_markers()
        (topic,) = lab.newest_reply().results_by_topic_v3_and_below
        assert topic.results_by_partition[0].partition_error_code == 0
        assert status(lab) is TransactionStatus.ONGOING
        assert lab.core.timer_fired(WaitTimer("t"), lab.now_ms).replies == []

    def test_a_fencing_producer_is_answered_once(self, lab: TransactionLab) -> None:
        old = begin(lab)
        lab.add(old, {"a": [0]})
        lab.is_patient = True
        assert lab.init() is None
        lab.write_markers()
        told = lab.newest_reply()
        assert (told.error_code, told.producer_id, told.producer_epoch) == (0, old[0], 2)

    def test_a_repeated_end_is_confirmed_when_the_markers_are_written(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0]})
        first = lab.end(producer, True)
        lab.is_patient = True
        assert lab.end(producer, True) is None
        lab.write_markers()
        assert lab.newest_reply() == first

    def test_the_number_and_time_of_waiting_requests_are_limited(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0]})
        lab.end(producer, True)
        lab.is_patient = True
        answers = [lab.init() for _ in range(MAX_WAITING + 1)]
        assert answers[:-1] == [None] * MAX_WAITING
        assert answers[-1].error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        overdue = lab.core.timer_fired(WaitTimer("t"), lab.now_ms).replies
        assert {reply.message.error_code for reply in overdue} == {ErrorCode.CONCURRENT_TRANSACTIONS}
        assert len(overdue) == MAX_WAITING

    def test_a_lost_shard_rejects_waiting_requests(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        lab.add(producer, {"a": [0]})
        lab.end(producer, True)
        lab.is_patient = True
        assert lab.init() is None
        (reply,) = lab.core.deactivate()
        assert reply.message.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class TestLongIds:
    def test_a_long_transactional_id_is_refused(self, lab: TransactionLab) -> None:
        assert lab.init("é" * (MAX_NAME_BYTES // 2)).error_code == ErrorCode.NONE
        for long in ("x" * (MAX_NAME_BYTES + 1), "é" * (MAX_NAME_BYTES // 2) + "x", "x" * 32_000):
            assert lab.init(long).error_code == ErrorCode.INVALID_REQUEST
            for version in (3, 5):
                added = lab.add((1, 0), {"a": [0]}, name=long, version=version)
                assert added == {("a", 0): ErrorCode.INVALID_REQUEST}
            assert lab.add_offsets((1, 0), "g", name=long) == ErrorCode.INVALID_REQUEST
            assert long not in lab.core.transactions

    def test_offsets_of_a_group_with_a_long_id_are_refused(self, lab: TransactionLab) -> None:
        producer = begin(lab)
        assert lab.add_offsets(producer, "x" * (MAX_NAME_BYTES + 1)) == ErrorCode.INVALID_GROUP_ID
        assert lab.add_offsets(producer, "x" * MAX_NAME_BYTES) == ErrorCode.NONE

    def test_a_transaction_with_a_longer_id_in_the_log_is_loaded_and_ends(
        self, lab: TransactionLab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        long = "x" * 30_000
        with monkeypatch.context() as patch:
            patch.setattr(topics, "MAX_NAME_BYTES", 1 << 20)
            producer = begin(lab, long)
            lab.add(producer, {"a": [0]}, name=long)
        lab.load()
        assert status(lab, long) is TransactionStatus.ONGOING
        assert lab.end(producer, True, name=long).error_code == ErrorCode.NONE
