"""The follower's side of the partition core: truncation, appends, and the offsets that readers may see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import (
    AdvanceHighWatermark,
    AdvanceLogStartOffset,
    AppendReceived,
    AskEpochEnd,
    Effect,
    EpochDiverged,
    EpochEndReceived,
    FetchedOutOfRange,
    LeaderAndIsrReceived,
    PersistLeaderEpochs,
    ReceivedAppended,
    RecordsReceived,
    Refuse,
    RestartLogAt,
    Truncated,
    TruncateTo,
)
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.broker.partition.roles import FetchState
from tidelog.log_format.leader_epochs import EpochEntry, LeaderEpochs
from tidelog.model.errors import KafkaError
from tidelog.records.batch import BatchHeader

ME, LEADER = 1, 2
NOW = 1_700_000_000_000
Entries = list[tuple[int, int]]


def core_with(
    entries: Entries, log_end_offset: int, high_watermark: int = 0, *, by_epoch: bool = True
) -> PartitionCore:
    return PartitionCore(
        ME,
        ProducerState(),
        LeaderEpochs([EpochEntry(*entry) for entry in entries]),
        log_start_offset=0,
        log_end_offset=log_end_offset,
        high_watermark=high_watermark,
        truncates_by_epoch=by_epoch,
    )


def follow(core: PartitionCore, epoch: int) -> list[Effect]:
    event = LeaderAndIsrReceived(LEADER, epoch, epoch * 10, (ME, LEADER), (ME, LEADER), NOW)
    return core.step(event)


def following(entries: Entries, log_end_offset: int, epoch: int, high_watermark: int = 0) -> PartitionCore:
    """Returns a follower that is fetching already."""
    core = core_with(entries, log_end_offset, high_watermark)
    follow(core, epoch)
    if entries:
        latest = entries[-1][0]
        core.step(EpochEndReceived(epoch, latest, latest, log_end_offset))
    assert core.fetch_state is FetchState.FETCHING
    return core


def batch(base_offset: int, count: int, epoch: int) -> BatchHeader:
    return BatchHeader(base_offset, 100, epoch, 2, 0, 0, count - 1, NOW, NOW, -1, -1, -1, count)


def test_an_empty_log_fetches_at_once() -> None:
    core = core_with([], 0)
    assert follow(core, 3) == []
    assert core.fetch_state is FetchState.FETCHING


def test_a_log_with_epochs_asks_for_the_end_of_its_newest() -> None:
    core = core_with([(1, 0), (4, 7)], 10)
    assert follow(core, 6) == [AskEpochEnd(6, 4)]
    assert core.fetch_state is FetchState.TRUNCATING


def test_records_that_the_leader_lacks_are_truncated_even_below_the_high_watermark() -> None:
    core = core_with([(1, 0)], 10, high_watermark=10)
    follow(core, 6)
    assert core.step(EpochEndReceived(6, 1, 1, 8)) == [TruncateTo(8)]
    assert core.step(Truncated(0, 8)) == []
    assert (core.log_end_offset, core.high_watermark, core.fetch_state) == (8, 8, FetchState.FETCHING)


def test_records_that_the_leader_has_are_kept_even_above_the_high_watermark() -> None:
    """This was the first failure of truncation by high watermark (KIP-101)."""
    core = core_with([(0, 0)], 2, high_watermark=1)
    follow(core, 1)
    assert core.step(EpochEndReceived(1, 0, 0, 2)) == []
    assert core.log_end_offset == 2 and core.fetch_state is FetchState.FETCHING
    old = core_with([(0, 0)], 2, high_watermark=1, by_epoch=False)
    assert follow(old, 1) == [TruncateTo(1)]


def test_if_the_follower_lacks_the_answers_epoch_it_asks_about_its_next_lower_one() -> None:
    core = core_with([(1, 0), (3, 5), (5, 8)], 10)
    follow(core, 6)
    # The leader's epochs are (1, 0), (2, 4), (6, 6). The largest epoch not above 5 is 2, which ends at 6.
    assert core.step(EpochEndReceived(6, 5, 2, 6)) == [TruncateTo(5)]
    assert core.step(Truncated(0, 5)) == [AskEpochEnd(6, 1)]
    assert core.step(EpochEndReceived(6, 1, 1, 4)) == [TruncateTo(4)]
    assert core.step(Truncated(0, 4)) == []
    assert core.fetch_state is FetchState.FETCHING


def test_answers_for_another_role_are_dropped() -> None:
    core = core_with([(1, 0)], 10)
    follow(core, 6)
    assert core.step(EpochEndReceived(5, 1, 1, 3)) == []
    assert core.step(EpochEndReceived(6, 0, 0, 3)) == []
    assert core.fetch_state is FetchState.TRUNCATING


def test_a_fetch_response_may_report_a_diverging_epoch() -> None:
    core = following([(1, 0), (4, 7)], 10, 6)
    assert core.step(EpochDiverged(6, 1, 5)) == [TruncateTo(5)]
    assert core.fetch_state is FetchState.TRUNCATING
    assert core.step(RecordsReceived(6, [batch(10, 1, 6)], 11, 0)) == [], (
        "nothing is appended during the truncation"
    )
    core.step(Truncated(0, 5))
    assert core.fetch_state is FetchState.FETCHING


def test_a_new_epoch_is_on_disk_before_its_batches_count() -> None:
    core = following([(1, 0)], 10, 6)
    received = RecordsReceived(6, [batch(10, 2, 1), batch(12, 1, 6)], 11, 0)
    assert core.step(received) == [PersistLeaderEpochs()]
    assert core.log_end_offset == 10
    assert isinstance(core.step(received)[0], AppendReceived)
    assert core.step(ReceivedAppended(received.headers, 11, 0, NOW)) == [AdvanceHighWatermark(11)]
    assert core.log_end_offset == 13 and core.last_fetched_epoch == 6
    assert [tuple(e) for e in core.leader_epochs] == [(1, 0), (6, 12)]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([batch(9, 1, 6)], id="below the end"),
        pytest.param([batch(10, 2, 6), batch(11, 1, 6)], id="overlapping"),
        pytest.param([batch(10, 1, 7)], id="an epoch to come"),
        pytest.param([batch(10, 1, 6), batch(11, 1, 5)], id="epochs backwards"),
    ],
)
def test_batches_with_impossible_epochs_or_offsets_are_refused(headers: list[BatchHeader]) -> None:
    core = following([(1, 0)], 10, 6)
    (refusal,) = core.step(RecordsReceived(6, headers, 10, 0))
    assert isinstance(refusal, Refuse)
    assert core.log_end_offset == 10 and [tuple(e) for e in core.leader_epochs] == [(1, 0)]


def test_a_gap_left_by_compaction_is_accepted() -> None:
    core = following([(6, 0)], 10, 6)
    core.step(RecordsReceived(6, [batch(15, 1, 6)], 0, 0))
    core.step(ReceivedAppended([batch(15, 1, 6)], 0, 0, NOW))
    assert core.log_end_offset == 16


def test_the_high_watermark_is_the_leaders_but_not_above_the_log_end() -> None:
    core = following([(6, 0)], 10, 6, high_watermark=3)
    assert core.step(ReceivedAppended([], 50, 0, NOW)) == [AdvanceHighWatermark(10)]
    assert core.step(ReceivedAppended([], 4, 0, NOW)) == [], "a new leader may know a lower high watermark"
    assert core.high_watermark == 10


def test_the_log_start_follows_the_leaders() -> None:
    core = following([(6, 0)], 10, 6, high_watermark=8)
    assert core.step(ReceivedAppended([], 8, 5, NOW)) == [AdvanceLogStartOffset(5)]
    assert core.step(ReceivedAppended([], 8, 9, NOW)) == [AdvanceLogStartOffset(8)]


def test_a_log_that_ends_before_the_leaders_begins_restarts() -> None:
    core = following([(6, 0)], 10, 6, high_watermark=8)
    assert core.step(FetchedOutOfRange(6, 100, 200)) == [RestartLogAt(100)]
    core.step(Truncated(100, 100))
    assert (core.log_start_offset, core.log_end_offset, core.high_watermark) == (100, 100, 100)
    assert core.fetch_state is FetchState.FETCHING


def test_a_log_that_ends_within_the_batch_where_the_leaders_begins_restarts() -> None:
    """The follower's last record was of an epoch that the leader truncated, and DeleteRecords then moved the
    log start into the leader's batch. In the simulator (seed 4101391962), the follower never caught up.
    """
    core = following([(0, 0)], 87, 7, high_watermark=76)
    headers = [batch(86, 3, 3), batch(89, 1, 7)]
    assert core.step(RecordsReceived(7, headers, 257, 87)) == [RestartLogAt(86)]
    core.step(Truncated(86, 86))
    assert core.fetch_state is FetchState.FETCHING and core.fetch_offset == 87
    received = RecordsReceived(7, headers, 257, 87)
    assert core.step(received) == [PersistLeaderEpochs()]
    assert isinstance(core.step(received)[0], AppendReceived)
    core.step(ReceivedAppended(headers, 257, 87, NOW))
    assert core.log_end_offset == 90 and core.high_watermark == 90
    still_there = following([(0, 0)], 87, 7)
    (refusal,) = still_there.step(RecordsReceived(7, headers, 257, 40))
    assert isinstance(refusal, Refuse), "records that the leader still has are kept"


def test_a_log_that_ends_above_the_leaders_end_asks() -> None:
    core = following([(6, 0)], 10, 6)
    assert core.step(FetchedOutOfRange(6, 0, 5)) == [AskEpochEnd(6, 6)]


def test_a_repeated_command_changes_nothing() -> None:
    core = following([(6, 0)], 10, 6)
    event = LeaderAndIsrReceived(LEADER, 6, 61, (LEADER,), (ME, LEADER), NOW)
    assert core.step(event) == []
    assert core.fetch_state is FetchState.FETCHING and core.in_sync_replicas == (LEADER,)


def test_a_leader_does_not_fetch() -> None:
    core = following([(6, 0)], 10, 6)
    core.step(LeaderAndIsrReceived(ME, 7, 70, (ME,), (ME, LEADER), NOW))
    assert core.fetch_state is FetchState.NONE and core.is_leader
    assert core.step(EpochDiverged(6, 1, 5)) == []


def test_the_leader_reports_where_logs_diverge() -> None:
    core = core_with([(1, 0), (4, 7)], 10)
    core.step(LeaderAndIsrReceived(ME, 6, 60, (ME, LEADER), (ME, LEADER), NOW))
    assert core.diverging_epoch(-1, 3) is None
    assert core.diverging_epoch(4, 10) is None
    assert core.diverging_epoch(1, 7) is None
    assert core.diverging_epoch(1, 8) == (1, 7)
    assert core.diverging_epoch(3, 9) == (1, 7)
    with pytest.raises(KafkaError):
        core.diverging_epoch(7, 10)


Log = list[int]  # the epoch of each offset


@st.composite
def _two_logs(draw: st.DrawFn) -> tuple[Log, Log, int]:
    """Generates two logs as replication makes them: a common beginning, then different epochs in each."""
    common = sorted(draw(st.lists(st.integers(0, 5), max_size=10)))
    next_epoch = (common[-1] if common else 0) + 1
    owners = draw(st.lists(st.sampled_from("lf"), max_size=6))
    logs: dict[str, Log] = {"l": list(common), "f": list(common)}
    # The last common epoch may continue in one of the two.
    if common and owners:
        logs[owners[0]] += [common[-1]] * draw(st.integers(0, 3))
    for owner in owners:
        logs[owner] += [next_epoch] * draw(st.integers(1, 4))
        next_epoch += 1
    return logs["l"], logs["f"], next_epoch


def _entries(log: Log) -> Entries:
    return [(epoch, offset) for offset, epoch in enumerate(log) if offset == 0 or log[offset - 1] != epoch]


@given(_two_logs())
def test_truncation_ends_with_a_prefix_of_the_leaders_log(logs: tuple[Log, Log, int]) -> None:
    """The follower also truncates no more than necessary."""
    leader_log, log, epoch = logs
    leader = core_with(_entries(leader_log), len(leader_log))
    leader.step(LeaderAndIsrReceived(ME, epoch, 1, (ME,), (ME, 9), NOW))
    agreed = 0
    while agreed < min(len(leader_log), len(log)) and leader_log[agreed] == log[agreed]:
        agreed += 1
    core = core_with(_entries(log), len(log))
    effects = follow(core, epoch)
    for _ in range(20):
        if not effects:
            break
        (effect,) = effects
        if isinstance(effect, AskEpochEnd):
            end = leader.epoch_end(effect.epoch)
            effects = core.step(EpochEndReceived(epoch, effect.epoch, *end))
        else:
            assert isinstance(effect, TruncateTo)
            log = log[: effect.offset]
            effects = core.step(Truncated(0, len(log)))
    assert core.fetch_state is FetchState.FETCHING
    assert log == leader_log[: len(log)] and len(log) == agreed
    assert leader.diverging_epoch(core.last_fetched_epoch, core.log_end_offset) is None
