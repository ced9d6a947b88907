"""One owned shard: loading, claiming, serving, holding replies, losing its attachment, and draining."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from grouplab.shards import SHARD, Answer, Coordinator, Line, Partition
from tidelog.group_coordinator.shard_core import (
    AllocateProducerId,
    CoordinatorRecord,
    EndTransaction,
    Producer,
    SetTimer,
    ShardDecision,
    TrimLog,
)
from tidelog.group_coordinator.shards import shard as shards
from tidelog.group_coordinator.shards import shard_log
from tidelog.group_coordinator.shards.shard import ShardState
from tidelog.group_coordinator.shards.shard_log import (
    CLAIM_KEY,
    MAX_BATCH_BYTES,
    BatchWriter,
    ShardClaim,
    decode_claim,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import iterate_headers
from tidelog.records.record import iterate_records
from tidelog.rpc.coordinator_session import MAX_UNSENT_BYTES, AnswerRequest, AppendToShard

ENDING = EndTransaction("t", Producer(5, 0), True, 1, 2, ())


def serving(shard_epoch: int = 1, partition: Partition | None = None) -> Coordinator:
    coordinator = Coordinator(partition or Partition(), shard_epoch)
    coordinator.attach()
    coordinator.settle()
    assert coordinator.shard.state is ShardState.SERVING
    return coordinator


def log_numbers(partition: Partition) -> dict[str, int]:
    return {
        (record.key or b"").decode(): int(record.value or b"0")
        for _, _, batch in partition.log
        for record in iterate_records(batch)
        if record.key != CLAIM_KEY
    }


def test_an_empty_shard_is_claimed_and_served_once_the_claim_is_replicated() -> None:
    partition = Partition()
    coordinator = Coordinator(partition, 4, coordinator_id=9)
    coordinator.attach()
    coordinator.settle(commits=False)
    assert coordinator.shard.state is ShardState.CLAIMING
    (record,) = iterate_records(partition.log[0][2])
    assert record.key == CLAIM_KEY
    assert decode_claim(record.value) == ShardClaim(4, 9)
    partition.commit(0)
    coordinator.settle(commits=False)
    assert coordinator.shard.state is ShardState.CLAIMING
    partition.commit(1)
    coordinator.settle()
    assert coordinator.shard.state is ShardState.SERVING
    assert coordinator.core.is_active


def test_an_answer_that_depends_on_unreplicated_records_waits_for_the_high_watermark() -> None:
    coordinator = serving()
    partition = coordinator.partition
    written = partition.request(coordinator.line, "g", 7)
    seen = partition.request(coordinator.line, "g", 0, "read")
    coordinator.settle(commits=False)
    assert (written.count, seen.count) == (0, 0)
    partition.commit(partition.log_end_offset)
    assert written.is_good
    assert seen.message is not None
    assert seen.message.throttle_time_ms == 7


def test_the_decisions_of_a_turn_make_one_append() -> None:
    coordinator = serving()
    partition = coordinator.partition
    before = partition.append_count
    for number in range(20):
        partition.request(coordinator.line, f"g{number}", number)
        coordinator.shard.request(coordinator.line.inbound.popleft(), coordinator.line)  # type: ignore[arg-type]
    coordinator.end_turn()
    coordinator.settle()
    assert partition.append_count == before + 1
    assert log_numbers(partition) == {f"g{number}": number for number in range(20)}


def test_the_shard_holds_the_answer_to_another_broker() -> None:
    coordinator = serving()
    partition, elsewhere = coordinator.partition, Line(coordinator.partition)
    partition.request(coordinator.line, "g", 7)
    asked = partition.request(elsewhere, "g", 0, "read")
    coordinator.deliver_in()
    coordinator.shard.request(elsewhere.inbound.popleft(), elsewhere)  # type: ignore[arg-type]
    coordinator.settle(commits=False)
    assert not elsewhere.outbound
    partition.commit(partition.log_end_offset)
    coordinator.settle()
    partition.take(elsewhere, elsewhere.outbound.popleft())
    assert asked.message is not None
    assert asked.message.throttle_time_ms == 7


def test_a_held_answer_becomes_a_refusal_if_the_attachment_is_lost() -> None:
    coordinator = serving()
    partition, elsewhere = coordinator.partition, Line(coordinator.partition)
    partition.request(coordinator.line, "g", 7)
    asked = partition.request(elsewhere, "g", 0, "read")
    coordinator.deliver_in()
    coordinator.shard.request(elsewhere.inbound.popleft(), elsewhere)  # type: ignore[arg-type]
    coordinator.deliver_out()
    partition.change_leader()
    coordinator.settle()
    partition.take(elsewhere, elsewhere.outbound.popleft())
    assert asked.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_decisions_that_are_not_sent_before_a_loss_are_not_appended() -> None:
    coordinator = serving()
    partition = coordinator.partition
    undone = partition.request(coordinator.line, "g", 7)
    coordinator.shard.request(coordinator.line.inbound.popleft(), coordinator.line)  # type: ignore[arg-type]
    coordinator.shard.lose("the session ended", broker_knows=True)
    partition.attached = None
    coordinator.attach()
    coordinator.settle()
    assert undone.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.core.numbers == {}
    assert coordinator.shard.log.end_offset == partition.log_end_offset


def test_a_lost_shard_is_loaded_without_its_unreplicated_records() -> None:
    coordinator = serving()
    partition = coordinator.partition
    kept = partition.request(coordinator.line, "g", 1)
    coordinator.settle()
    gone = partition.request(coordinator.line, "g", 2)
    parked = partition.request(coordinator.line, "g", 0, "park")
    coordinator.settle(commits=False)
    assert coordinator.core.numbers["g"] == 2
    partition.change_leader()
    coordinator.settle()
    assert coordinator.shard.state is ShardState.WAITING
    assert kept.is_good
    assert gone.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert parked.message is not None
    assert parked.message.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    coordinator.attach()
    coordinator.settle()
    assert coordinator.core.numbers == {"g": 1}


def test_a_newer_claim_closes_the_shard() -> None:
    partition = Partition()
    serving(5, partition)
    partition.attached, partition.highest_shard_epoch = None, -1  # a new leader, which knows of neither owner
    late = Coordinator(partition, 4, coordinator_id=2)
    late.attach()
    late.settle()
    assert late.events == ["deposed by 5"]
    assert late.shard.state is ShardState.CLOSED


def test_a_released_shard_sends_its_decided_replies() -> None:
    coordinator = serving()
    partition = coordinator.partition
    written = partition.request(coordinator.line, "g", 1)
    parked = partition.request(coordinator.line, "g", 0, "park")
    coordinator.settle(commits=False)
    coordinator.shard.release()
    coordinator.settle(commits=False)
    assert coordinator.events[-1] == "serving"
    late = partition.request(coordinator.line, "g", 2)
    coordinator.settle(commits=False)
    assert late.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    partition.commit(partition.log_end_offset)
    coordinator.settle()
    assert coordinator.events[-1] == "drained"
    assert written.is_good
    assert parked.count == 1
    assert partition.attached is None


def test_a_core_that_fails_is_loaded_again() -> None:
    coordinator = serving()
    written = coordinator.partition.request(coordinator.line, "g", 1)
    coordinator.settle()
    failed = coordinator.partition.request(coordinator.line, "g", 1, "fail")
    coordinator.settle()
    assert written.is_good
    assert failed.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.events[-1] == "lost"
    coordinator.attach()
    coordinator.settle()
    assert coordinator.core.numbers == {"g": 1}


def test_other_requests_are_answered_while_a_large_answer_is_made() -> None:
    coordinator = serving()
    partition = coordinator.partition
    large = partition.request(coordinator.line, "g", 10, "steps")
    coordinator.settle()
    written = partition.request(coordinator.line, "g", 7)
    coordinator.settle()
    assert written.is_good
    assert large.count == 0
    later = partition.request(coordinator.line, "g", 8)
    coordinator.settle(commits=False)
    coordinator.work(20)
    coordinator.settle(commits=False)
    assert (later.count, large.count) == (0, 0), "the large answer depends on a record that is not replicated"
    partition.commit(partition.log_end_offset)
    assert large.message is not None
    assert large.message.throttle_time_ms == 8


@pytest.mark.parametrize("event", ["lost", "released"])
def test_a_large_answer_is_refused_if_the_core_ends_meanwhile(event: str) -> None:
    coordinator = serving()
    large = coordinator.partition.request(coordinator.line, "g", 10, "steps")
    coordinator.settle()
    if event == "lost":
        coordinator.partition.lose(ErrorCode.NOT_ENOUGH_REPLICAS)
    else:
        coordinator.shard.release()
    coordinator.settle()
    assert (large.count, large.error) == (1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    coordinator.work(1)
    assert not coordinator.works, "the core that has ended takes no further steps"
    coordinator.attach()
    coordinator.settle()
    assert large.count == 1


def test_a_core_that_fails_in_the_middle_of_an_answer_is_loaded_again() -> None:
    coordinator = serving()
    failed = coordinator.partition.request(coordinator.line, "fail", 10, "steps")
    coordinator.settle()
    coordinator.work(20)
    coordinator.settle()
    assert (failed.count, failed.error) == (1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert coordinator.events[-1] == "lost"
    coordinator.attach()
    coordinator.settle()
    assert coordinator.shard.state is ShardState.SERVING


def test_large_answers_are_not_added_to_many_unsent_bytes() -> None:
    coordinator = serving()
    large = coordinator.partition.request(coordinator.line, "g", 10, "steps")
    coordinator.settle()
    coordinator.line.unsent_bytes = shards.MAX_WAITING_BYTES + 1
    coordinator.work(20)
    coordinator.settle()
    assert (large.count, large.error) == (1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def test_a_transaction_is_ended_only_when_its_end_is_replicated() -> None:
    coordinator = serving()
    coordinator.core.next_decision = ShardDecision(effects=[ENDING, AllocateProducerId("token")])
    coordinator.partition.request(coordinator.line, "g", 1)
    coordinator.settle(commits=False)
    assert coordinator.asked_for_ids == [AllocateProducerId("token")]
    assert not coordinator.ended
    coordinator.partition.commit(coordinator.partition.log_end_offset)
    coordinator.settle()
    assert coordinator.ended == [ENDING]
    core = coordinator.core
    coordinator.shard.effect_done(core, ENDING, None)
    assert core.effects_done == [(ENDING, None)]


def test_a_log_is_trimmed_after_a_new_claim_is_replicated() -> None:
    coordinator = serving()
    partition = coordinator.partition
    for number in range(3):
        partition.request(coordinator.line, f"g{number}", 1)
        coordinator.settle()
    end = partition.log_end_offset
    before = list(partition.log)
    coordinator.core.next_decision = ShardDecision(effects=[TrimLog(end)])
    partition.request(coordinator.line, "g", 1)
    coordinator.settle(commits=False)
    assert partition.log_end_offset == end + 2  # the record of the request, and the claim
    assert partition.log[: len(before)] == before
    partition.commit(partition.log_end_offset)
    coordinator.settle()
    assert partition.log[0][0] == end
    partition.attached, partition.highest_shard_epoch = None, -1
    late = Coordinator(partition, coordinator.shard.shard_epoch - 1, coordinator_id=2)
    late.attach()
    late.settle()
    assert late.shard.state is ShardState.CLOSED


def test_the_outcome_for_a_discarded_core_is_ignored() -> None:
    coordinator = serving()
    old = coordinator.core
    coordinator.partition.lose(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    coordinator.settle()
    coordinator.attach()
    coordinator.settle()
    coordinator.shard.effect_done(old, ENDING, None)
    assert not old.effects_done
    assert not coordinator.core.effects_done


def test_a_timer_fires_after_its_delay_although_the_wall_clock_was_set_back() -> None:
    coordinator = serving()
    coordinator.core.next_decision = ShardDecision(timers=[SetTimer("tick", 500)])
    coordinator.partition.request(coordinator.line, "g", 1)
    coordinator.settle()
    coordinator.advance(499)
    assert "tick" not in coordinator.core.numbers
    coordinator.wall_skew_ms = -300_000
    coordinator.advance(1)
    assert coordinator.core.numbers["tick"] == coordinator.now - 300_000


def test_the_load_time_is_measured_on_the_monotonic_clock() -> None:
    coordinator = Coordinator(Partition(), 1)
    coordinator.attach()
    coordinator.settle(commits=False)
    coordinator.wall_skew_ms = -300_000
    coordinator.advance(40)
    coordinator.partition.commit(1)
    coordinator.settle()
    assert coordinator.load_times_ms == [40]


def test_a_timer_that_is_moved_later_keeps_running() -> None:
    coordinator = serving()
    running = len(coordinator.timers)
    for _ in range(3):
        coordinator.core.next_decision = ShardDecision(timers=[SetTimer("tick", 500)])
        coordinator.partition.request(coordinator.line, "g", 1)
        coordinator.settle()
        assert len(coordinator.timers) == running + 1
        coordinator.advance(200)
    coordinator.advance(299)
    assert "tick" not in coordinator.core.numbers
    coordinator.advance(1)
    assert "tick" in coordinator.core.numbers


def test_a_timer_that_is_moved_earlier_fires_earlier() -> None:
    coordinator = serving()
    for delay_ms in (900, 500):
        coordinator.core.next_decision = ShardDecision(timers=[SetTimer("tick", delay_ms)])
        coordinator.partition.request(coordinator.line, "g", 1)
        coordinator.settle()
    coordinator.advance(500)
    assert "tick" in coordinator.core.numbers


def test_a_replaced_timer_does_not_fire() -> None:
    coordinator = serving()
    for delay_ms in (500, 900):
        coordinator.core.next_decision = ShardDecision(timers=[SetTimer("tick", delay_ms)])
        coordinator.partition.request(coordinator.line, "g", 1)
        coordinator.settle()
    coordinator.advance(600)
    assert "tick" not in coordinator.core.numbers
    coordinator.advance(600)
    assert "tick" in coordinator.core.numbers


class _History:
    """Random events of one partition and several coordinators, and the answers that clients received."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.partition = Partition()
        self.coordinators = [Coordinator(self.partition, 1, coordinator_id=1)]
        self.next_epoch = 2
        self.number = 0
        self.writes: list[tuple[int, Answer]] = []
        self.reads: list[tuple[int, Answer]] = []
        self.answers: list[Answer] = []

    def acknowledged(self) -> int:
        return max((number for number, answer in self.writes if answer.is_good), default=0)

    def step(self) -> None:
        coordinator = self.random.choice(self.coordinators)
        partition = self.partition
        action = self.random.random()
        if action < 0.35:
            coordinator.deliver_out()
        elif action < 0.65:
            coordinator.deliver_in()
        elif action < 0.75:
            self.number += 1
            answer = partition.request(coordinator.line, "g", self.number)
            self.writes.append((self.number, answer))
        elif action < 0.79:
            self.reads.append((self.acknowledged(), partition.request(coordinator.line, "g", 0, "read")))
        elif action < 0.82:
            steps = self.random.randint(0, 5)
            answer = partition.request(coordinator.line, "g", steps, "steps")
            self.reads.append((self.acknowledged(), answer))
            coordinator.work(self.random.randint(0, 2))
        elif action < 0.85:
            self.answers.append(partition.request(coordinator.line, "g", 0, "park"))
        elif action < 0.92:
            partition.commit(self.random.randint(partition.high_watermark, partition.log_end_offset))
        elif action < 0.96:
            coordinator.attach()
        elif action < 0.97:
            partition.change_leader()
        elif action < 0.975:
            partition.lose(ErrorCode.NOT_ENOUGH_REPLICAS)
        elif action < 0.98:
            coordinator.shard.release()
        elif action < 0.985 and len(self.coordinators) < 4:
            made = Coordinator(partition, self.next_epoch, coordinator_id=self.next_epoch)
            self.next_epoch += 1
            self.coordinators.append(made)
        self.check()

    def check(self) -> None:
        """Checks that acknowledged writes are replicated and that reads saw only replicated writes."""
        committed = 0
        for _, end, batch in self.partition.log:
            if end <= self.partition.high_watermark:
                for record in iterate_records(batch):
                    if record.key == b"g":
                        committed = int(record.value or b"0")
        assert self.acknowledged() <= committed
        for acknowledged_before, answer in self.reads:
            if answer.is_good and answer.message is not None:
                assert acknowledged_before <= answer.message.throttle_time_ms <= max(committed, 0)

    def finish(self) -> None:
        newest = self.coordinators[-1]
        if newest.shard.state is ShardState.CLOSED:
            newest = Coordinator(self.partition, self.next_epoch, coordinator_id=self.next_epoch)
            self.coordinators.append(newest)
        for _ in range(3):
            newest.attach()
            for coordinator in self.coordinators:
                coordinator.settle()
                coordinator.work(10)
                coordinator.settle()
        assert newest.shard.state is ShardState.SERVING
        assert newest.core.numbers == log_numbers(self.partition)
        newest.shard.release()
        for coordinator in self.coordinators:
            coordinator.settle()
        for answer in (*(a for _, a in self.writes), *(a for _, a in self.reads), *self.answers):
            assert answer.count == 1


@pytest.mark.parametrize("seed", range(150))
def test_no_acknowledged_write_is_lost_and_every_request_is_answered_once(seed: int) -> None:
    history = _History(seed)
    for _ in range(400):
        history.step()
    history.finish()


def test_the_name_of_the_shard() -> None:
    assert str(SHARD) == "group-7"


# -- the bounds of appends and answers


def records_of(count: int, size_bytes: int) -> list[CoordinatorRecord]:
    return [CoordinatorRecord(b"k%d" % number, b"0" * size_bytes) for number in range(count)]


def test_a_large_decision_is_sent_as_several_appends() -> None:
    coordinator = serving()
    partition = coordinator.partition
    coordinator.core.more_records = records_of(200, 100_000)
    asked = partition.request(coordinator.line, "g", 7)
    before = partition.append_count
    coordinator.deliver_in()
    appends = [item for item in coordinator.line.outbound if isinstance(item, AppendToShard)]
    assert len(appends) > 4
    assert max(len(item.batches) for item in appends) <= shard_log.MAX_APPEND_BYTES
    assert isinstance(coordinator.line.outbound[-1], AnswerRequest), "the answer follows all appends"
    coordinator.settle()
    assert asked.is_good
    assert partition.append_count == before + len(appends)
    assert sum(len(list(iterate_batches(batch))) for _, _, batch in partition.log) == 202, "with the claim"
    assert coordinator.shard.log.end_offset == partition.log_end_offset


@pytest.mark.parametrize("seed", range(20))
def test_appends_contain_all_batches_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(shard_log, "MAX_APPEND_BYTES", chance.choice((1, 1_000, MAX_BATCH_BYTES, 1_000_000)))
    writer, wanted = BatchWriter(), list[bytes]()
    for number in range(60):
        key = b"%d" % number
        wanted.append(key)
        record = CoordinatorRecord(key, b"v" * chance.randint(0, 60_000))
        producer = Producer(number, 0) if chance.random() < 0.2 else None
        writer.add([record], producer, WallMs(1))
    appends = writer.take()
    found = []
    for count, batches in appends:
        records = list(iterate_batches(batches))
        assert len(records) == count
        found += records
        assert len(batches) <= shard_log.MAX_APPEND_BYTES or len(list(iterate_headers(batches))) == 1
    assert found == wanted
    assert (writer.count, writer.size_bytes, writer.take()) == (0, 0, [])


def iterate_batches(batches: bytes) -> Iterator[bytes]:
    for position, header in iterate_headers(batches):
        for record in iterate_records(batches[position : position + header.size_bytes]):
            yield record.key or b""


def test_a_decision_that_is_too_large_is_refused_and_only_its_shard_is_loaded_again() -> None:
    coordinator = serving()
    partition = coordinator.partition
    kept = partition.request(coordinator.line, "g", 1)
    coordinator.settle()
    parked = partition.request(coordinator.line, "g", 0, "park")
    coordinator.settle()
    coordinator.core.more_records = records_of(34, 1_000_000)
    refused = partition.request(coordinator.line, "g", 2)
    coordinator.settle()
    assert (refused.count, refused.error) == (1, ErrorCode.INVALID_REQUEST)
    assert parked.count == 1
    assert kept.is_good
    assert coordinator.shard.state is ShardState.WAITING
    assert not coordinator.line.is_closed
    coordinator.attach()
    coordinator.settle()
    assert coordinator.core.numbers == {"g": 1}, "nothing of the decision is left"
    assert shards.MAX_DECISION_BYTES + shards.MAX_WAITING_BYTES < MAX_UNSENT_BYTES


def test_requests_get_a_retriable_error_while_a_session_has_many_unsent_bytes() -> None:
    coordinator = serving()
    coordinator.line.unsent_bytes = shards.MAX_WAITING_BYTES + 1
    refused = coordinator.partition.request(coordinator.line, "g", 7)
    elsewhere = Line(coordinator.partition)
    coordinator.settle()
    assert refused.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.core.numbers == {}
    coordinator.partition.request(elsewhere, "g", 7)
    coordinator.shard.request(elsewhere.inbound.popleft(), elsewhere)  # type: ignore[arg-type]
    assert coordinator.core.numbers == {}, "its append would go to the line with many unsent bytes"
    coordinator.line.unsent_bytes = 0
    again = coordinator.partition.request(coordinator.line, "g", 7)
    coordinator.settle()
    assert again.is_good


def test_an_answer_that_is_too_large_becomes_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = serving()
    monkeypatch.setattr(shards, "MAX_ANSWER_BYTES", 3)
    asked = coordinator.partition.request(coordinator.line, "g", 0, "read")
    coordinator.settle()
    assert asked.error is ErrorCode.INVALID_REQUEST
    assert coordinator.shard.state is ShardState.SERVING
