"""The judgement of facts about a cluster, and the forecasts."""

from __future__ import annotations

import pytest

from tidelog.cli.doctor.checks import (
    check_answers,
    check_certificates,
    check_clocks,
    check_confirmed,
    check_etcd,
    check_forecast,
    check_groups,
    check_leaders,
    check_leases,
    check_offline_replicas,
    check_partitions,
    check_registrations,
    check_settings,
    check_space,
    check_transactions,
)
from tidelog.cli.doctor.fact_reader import hanging_transactions
from tidelog.cli.doctor.facts import (
    ALL_WELL,
    COULD_NOT_LOOK,
    FAILURES,
    SHOWN_OF_A_CHECK,
    WARNINGS,
    EtcdMember,
    Finding,
    OfflineReplica,
    Registrations,
    ServiceMetrics,
    State,
    Unseen,
    exit_code,
    shortened,
)
from tidelog.client.admin.brokers import LogDir, ReplicaSize
from tidelog.client.admin.groups import Transaction
from tidelog.client.admin.transactions import NO_TRANSACTION, PartitionProducer
from tidelog.kernel.instants import DAY_MS, HOUR_MS
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.observe.availability import PartitionView
from tidelog.observe.cluster_reader import OpenTransaction
from tidelog.observe.lag import LogOffsets, Retention, growth_of, left_to_read_ms

GIB = 1024**3
KEY = ("t", 0)


def view(leader: int, isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3)) -> PartitionView:
    return PartitionView("t", 0, leader, replicas, frozenset(isr), 2)


def offsets(
    start: int = 0,
    end: int = 1_000,
    *,
    recent: int = 1_000,
    recent_ms: int = HOUR_MS,
    ageing: int = 0,
    retention_ms: int = -1,
    retention_bytes: int = -1,
    stable: int | None = None,
    is_deleted: bool = True,
) -> LogOffsets:
    return LogOffsets(
        start,
        end,
        recent,
        recent_ms,
        ageing,
        end if stable is None else stable,
        Retention(retention_ms, retention_bytes, is_deleted),
    )


def volume(usable: int, total: int = 100 * GIB, error: ErrorCode = ErrorCode.NONE) -> LogDir:
    replica = ReplicaSize(TopicPartition(*KEY), GIB, 0, is_future=False)
    return LogDir(1, "/data", error, total, usable, (replica,))


def the(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_check_that_was_not_made_states_its_reason() -> None:
    silent = Unseen("no answer")
    for findings in (
        check_partitions(silent),
        check_leaders(silent),
        check_confirmed(silent),
        check_forecast([volume(1)], silent),
        check_groups({}, silent, [], {}, {}),
        check_groups(silent, {}, [], {}, {}),
        check_transactions(silent, []),
        check_etcd(silent),
        check_clocks({1: silent}),
        check_leases({1: silent}),
        check_certificates(silent, {1: silent}, 0),
    ):
        assert the(findings).state is State.UNKNOWN
        assert the(findings).text == "not checked: no answer"


def test_partitions_are_offline_or_below_min_isr_or_lack_replicas() -> None:
    assert the(check_partitions([view(1, (1, 2, 3))])).state is State.OK
    assert "without a leader" in the(check_partitions([view(-1, ())])).text
    under_min = the(check_partitions([view(1, (1,))]))
    assert (under_min.state, "min.insync.replicas" in under_min.text) == (State.FAIL, True)
    lacking = the(check_partitions([view(1, (1, 2))]))
    assert (lacking.state, "brokers 3" in lacking.text) == (State.WARN, True)


def test_leaders_that_are_not_preferred_are_counted_with_those_that_can_be_elected() -> None:
    assert the(check_leaders([view(1, (1, 2))])).state is State.OK
    assert "makes 1 of the preferred" in the(check_leaders([view(2, (1, 2)), view(2, (2, 3))])).next_step
    assert "wait" in the(check_leaders([view(2, (2, 3))])).next_step


def test_missing_registrations_are_failures() -> None:
    registered = Registrations([], [], 5)
    assert the(check_registrations(registered, {1, 2, 3}, [view(1, (1, 2, 3))])).state is State.OK
    dead = the(check_registrations(registered, {1, 2}, [view(1, (1, 2))]))
    assert (dead.state, "--without 3" in dead.next_step) == (State.FAIL, True)
    lost = check_registrations(Registrations(["coordinator-1"], ["broker-2"], 3), {1}, [])
    assert [finding.state for finding in lost] == [State.FAIL, State.FAIL]
    assert the(check_registrations(Registrations(["broker-3"], [], 3), {1, 2}, [view(1, (1, 2))]))
    assert the(check_answers({2: "timeout"}, {1, 2})).state is State.FAIL


def test_settings_that_differ_are_named_and_those_of_one_broker_are_not() -> None:
    first = {"node.id": "1", "num.io.threads": "8", "x.tls.ca.file": "/1"}
    second = {"node.id": "2", "num.io.threads": "9", "x.tls.ca.file": "/2"}
    finding = the(check_settings({1: first, 2: second}))
    assert finding.state is State.WARN
    assert finding.text == "brokers differ: num.io.threads is '8' on 1, '9' on 2"
    assert the(check_settings({1: first, 2: {**second, "num.io.threads": "8"}})).state is State.OK
    assert the(check_settings({})).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("usable", "state"), [(50 * GIB, State.OK), (10 * GIB, State.WARN), (GIB, State.FAIL)]
)
def test_little_free_space_is_reported(usable: int, state: State) -> None:
    assert check_space([volume(usable)])[0].state is state


def test_an_offline_directory_is_a_failure_and_a_silent_one_is_unknown() -> None:
    assert check_space([volume(GIB, error=ErrorCode.KAFKA_STORAGE_ERROR)])[0].state is State.FAIL
    assert check_space([volume(-1, total=-1)])[0].state is State.UNKNOWN


def test_the_forecast_stops_at_retention() -> None:
    # A tenth of the records were written in the last hour.
    log = offsets(recent=900, retention_ms=5 * DAY_MS)
    rate, room = growth_of(log, GIB)
    assert rate * HOUR_MS == pytest.approx(GIB / 10)
    assert room == pytest.approx(12 * GIB - GIB)
    assert growth_of(offsets(recent=900, retention_bytes=GIB), GIB) == (0, 0)
    assert growth_of(offsets(recent=900, is_deleted=False), GIB) == (0, 0)
    assert growth_of(offsets(recent=1_000), GIB) == (0, 0)
    assert the(check_forecast([volume(12 * GIB)], {KEY: log})).state is State.OK
    soon = the(check_forecast([volume(5 * GIB)], {KEY: log}))
    assert (soon.state, "full in 2 days" in soon.text) == (State.WARN, True)
    assert the(check_forecast([volume(GIB)], {KEY: log})).state is State.FAIL


def test_a_group_behind_the_log_start_has_lost_records() -> None:
    finding = the(check_groups({"g": {KEY: 5}}, {KEY: offsets(start=12)}, [], {}, {}))
    assert (finding.state, "lost 7 records" in finding.text) == (State.FAIL, True)


def test_a_group_that_reads_more_slowly_than_retention_deletes_is_warned() -> None:
    log = offsets(ageing=500, retention_ms=10 * HOUR_MS)
    finding = the(check_groups({"g": {KEY: 499}}, {KEY: log}, [], {}, {}))
    assert (finding.state, "within 2 h" in finding.text) == (State.WARN, True)
    assert the(check_groups({"g": {KEY: 500}}, {KEY: log}, [], {}, {})).state is State.OK
    assert left_to_read_ms(offsets(ageing=1_000, retention_ms=HOUR_MS), 1_000, GIB) is None
    assert left_to_read_ms(offsets(ageing=1_000, retention_ms=HOUR_MS, is_deleted=False), 1, GIB) is None
    by_size = offsets(recent=900, retention_bytes=GIB)
    assert left_to_read_ms(by_size, 500, GIB) is None
    # 90 % of the retained bytes are unread, and 10 % of them are written each hour.
    assert left_to_read_ms(by_size, 100, GIB) == pytest.approx(HOUR_MS, rel=1e-6)


def test_groups_that_could_not_be_read_are_named() -> None:
    findings = check_groups({}, {}, [], {"g": "no answer"}, {})
    assert [finding.state for finding in findings] == [State.OK, State.UNKNOWN]
    assert "group g: no answer" in findings[1].text


def test_the_type_of_a_group_that_does_not_commit_as_consumers_do_is_named() -> None:
    """Members of a share group may have read records after its start offset: the loss is an upper limit."""
    log = offsets(start=12)
    types = {"a": "share", "b": "streams", "c": "classic", "d": "share"}
    positions = {KEY: 5}
    found = check_groups(
        {"a": positions, "b": positions, "c": positions}, {KEY: log}, [], {"d": "gone"}, types
    )
    texts = [finding.text for finding in found]
    assert texts[0].startswith("share group a has lost up to 7 records")
    assert texts[1].startswith("streams group b has lost 7 records")
    assert texts[2].startswith("group c has lost 7 records")
    assert texts[3] == "not checked: share group d: gone"


def opened(name: str, state: str, age_ms: int, timeout_ms: int) -> OpenTransaction:
    return OpenTransaction(Transaction(name, 7, 0, state, timeout_ms, 0, ()), age_ms)


@pytest.mark.parametrize(
    ("transaction", "state"),
    [
        (opened("x", "Ongoing", 10_000, 60_000), State.OK),
        (opened("x", "Ongoing", 6 * 60_000, 900_000), State.WARN),
        (opened("x", "Ongoing", 200_000, 60_000), State.FAIL),
        (opened("x", "PrepareCommit", 30_000, 60_000), State.OK),
        (opened("x", "PrepareAbort", 200_000, 60_000), State.FAIL),
    ],
)
def test_stuck_transactions(transaction: OpenTransaction, state: State) -> None:
    assert the(check_transactions([transaction], [])).state is state


def producer(producer_id: int, start_offset: int, partition: int = 0) -> PartitionProducer:
    return PartitionProducer(TopicPartition("t", partition), producer_id, 0, 0, 0, 0, start_offset)


def test_each_hanging_transaction_has_the_command_that_aborts_it() -> None:
    first, second = check_transactions([], [producer(7, 10), producer(8, 20, partition=1)])
    assert (first.state, "producer 7 in t-0" in first.text) == (State.WARN, True)
    assert first.next_step == "abort it: tidelog transactions abort t --partition 0 --start-offset 10"
    assert "--partition 1 --start-offset 20" in second.next_step


def test_the_name_in_a_command_is_one_word_of_the_shell() -> None:
    finding = the(check_transactions([opened("a b", "Ongoing", 6 * 60_000, 900_000)], []))
    assert finding.next_step.endswith(" force-terminate 'a b'")


def test_transactions_are_judged_where_hanging_ones_could_not_be_seen() -> None:
    ok, unseen = check_transactions([], Unseen("no answer"))
    assert (ok.state, unseen.state) == (State.OK, State.UNKNOWN)
    assert unseen.text == "not checked: hanging transactions: no answer"


def test_only_a_transaction_that_lasts_and_that_no_coordinator_knows_hangs() -> None:
    known = Transaction("x", 7, 0, "Ongoing", 60_000, 0, (TopicPartition("t", 0),))
    both = [producer(7, 10), producer(8, 20)]
    assert hanging_transactions(both, {7: known}, both) == [producer(8, 20)]
    assert hanging_transactions([producer(7, 10, partition=1)], {7: known}, [producer(7, 10, partition=1)])
    assert not hanging_transactions([producer(8, 20)], {}, []), "it ended in between"
    assert not hanging_transactions([producer(8, 20)], {}, [producer(8, 25)]), "the next one began in between"
    assert not hanging_transactions([producer(8, NO_TRANSACTION)], {}, [producer(8, NO_TRANSACTION)])


def test_clocks_count_only_beyond_what_the_measurement_can_tell() -> None:
    def clocks(*ahead: int) -> Finding:
        return the(check_clocks({i: ServiceMetrics(ms, 1_010) for i, ms in enumerate(ahead)}))

    assert clocks(0, 900, -900).state is State.OK
    assert clocks(0, 4_000).state is State.WARN
    assert clocks(0, 60_000).state is State.FAIL
    assert "this machine's differ by 5.0 s" in clocks(-5_000).text


def test_replicas_that_are_offline_tell_their_story() -> None:
    replica = OfflineReplica("t", 3, tuple(f"step {number}" for number in range(6)))
    found = the(check_offline_replicas({1: ServiceMetrics(0, 1, offline=[replica]), 2: Unseen("no metrics")}))
    assert found.state is State.FAIL
    assert found.text == "t-3 is offline on broker 1: step 2; step 3; step 4; step 5"
    assert check_offline_replicas({1: ServiceMetrics(0, 1)}) == []


def test_leases_that_are_old_or_lost_are_warnings() -> None:
    assert the(check_leases({1: ServiceMetrics(0, 1, 2.0)})).state is State.OK
    assert the(check_leases({1: ServiceMetrics(0, 1, 20.0)})).state is State.WARN
    assert the(check_leases({1: ServiceMetrics(0, 1, 2.0, lost_leases=1)})).state is State.WARN
    partly = check_leases({1: ServiceMetrics(0, 1, 2.0), 2: Unseen("no metrics")})
    assert [finding.state for finding in partly] == [State.OK, State.UNKNOWN]


@pytest.mark.parametrize(
    ("days", "state"), [(90, State.OK), (20, State.WARN), (1, State.FAIL), (-1, State.FAIL)]
)
def test_certificates_that_expire(days: int, state: State) -> None:
    assert the(check_certificates({"broker 1": 86_400.0 * days}, {}, 0)).state is state
    of_metrics = {1: ServiceMetrics(0, 1, certificate_expiry_s={"rpc": 86_400.0 * days})}
    assert the(check_certificates(Unseen("plaintext"), of_metrics, 0)).state is state


@pytest.mark.parametrize(
    ("member", "state"),
    [
        (EtcdMember("e", "", 2.0, 8.0, 1, 100), State.OK),
        (EtcdMember("e", "does not answer"), State.FAIL),
        (EtcdMember("e", "", 500.0), State.WARN),
        (EtcdMember("e", "", 2.0, 512.0), State.WARN),
        (EtcdMember("e", "", 2.0, 8.0, 90, 100), State.FAIL),
    ],
)
def test_etcd_is_healthy_fast_and_not_full(member: EtcdMember, state: State) -> None:
    assert the(check_etcd([member])).state is state


def test_the_exit_code_is_that_of_the_worst_finding() -> None:
    def code(*states: State) -> int:
        return exit_code([Finding("c", state, "") for state in states])

    assert code(State.OK, State.UNKNOWN) == ALL_WELL
    assert code(State.OK, State.WARN) == WARNINGS
    assert code(State.WARN, State.FAIL) == FAILURES
    assert code(State.UNKNOWN) == code() == COULD_NOT_LOOK


def test_findings_of_a_check_are_limited_and_the_worst_come_first() -> None:
    many = [Finding("c", State.WARN, str(number)) for number in range(SHOWN_OF_A_CHECK + 5)]
    shown = shortened([*many, Finding("c", State.FAIL, "worst")])
    assert len(shown) == SHOWN_OF_A_CHECK + 1
    assert shown[0].text == "worst"
    assert shown[-1].text == "6 more findings are not shown"


def test_topics_whose_settings_were_lost_are_named() -> None:
    assert the(check_confirmed([])).state is State.OK
    found = the(check_confirmed(["flights", "prices"]))
    assert (found.state, "flights, prices" in found.text) == (State.WARN, True)
    assert "tidelog topic confirm-settings" in found.next_step
