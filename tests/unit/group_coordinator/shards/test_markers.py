"""The markers of decided transactions reach every leader, and are repeated until they are written."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.group_coordinator.shard_core import EndTransaction, Producer
from tidelog.group_coordinator.shards.broker_calls import MARKERS_RETRY_MS, MARKERS_TIMEOUT_MS, MarkerSender
from tidelog.kernel.timer import VirtualTimer
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import Item, Marker, MarkersWritten, WriteMarkers

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Cluster:
    """The leaders of the partitions and the sessions with them."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int] = {A0: 1, A1: 2, B0: 1}
        self.sent: list[tuple[int, WriteMarkers]] = []
        self.timer = VirtualTimer()
        self.asked_topics: list[tuple[str, Callable[[bool | None], None]]] = []
        self.sender = MarkerSender(self._line_to_leader, self._is_topic_gone, self.timer)
        self.done: list[str] = []

    def end(self, name: str, *partitions: TopicPartition, owner: object = "core") -> None:
        effect = EndTransaction(name, Producer(len(name), 3), True, 8, 2, partitions)
        self.sender.begin(effect, owner, lambda: self.done.append(name))
        self.sender.flush()

    def answer(self, call: WriteMarkers, error: ErrorCode = ErrorCode.NONE) -> None:
        errors = tuple((error,) * len(marker.partitions) for marker in call.markers)
        self.sender.written(MarkersWritten(call.call_id, errors))
        self.sender.flush()

    def pass_time(self, elapsed_ms: int) -> None:
        self.timer.advance(self.timer.monotonic_ms() + elapsed_ms)
        self.sender.flush()

    def _line_to_leader(self, partition: TopicPartition) -> tuple[int, Line] | None:
        leader = self.leaders.get(partition)
        return None if leader is None else (leader, Line(self, leader))

    def _is_topic_gone(self, topic: str, answer: Callable[[bool | None], None]) -> None:
        self.asked_topics.append((topic, answer))


class Line:
    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self._cluster = cluster
        self._broker_id = broker_id

    def send(self, item: Item) -> None:
        assert isinstance(item, WriteMarkers)
        self._cluster.sent.append((self._broker_id, item))

    def close(self) -> None:
        raise AssertionError("the test closes no session")


def test_each_leader_gets_its_markers_and_the_last_answer_ends_the_transaction() -> None:
    cluster = Cluster()
    cluster.end("tx", A0, A1, B0)
    (first, to_first), (second, to_second) = cluster.sent
    assert (first, second) == (1, 2)
    assert to_first.markers == (Marker(2, 3, True, 8, 2, (A0, B0)),)
    assert to_second.markers == (Marker(2, 3, True, 8, 2, (A1,)),)
    cluster.answer(to_first)
    assert not cluster.done
    cluster.answer(to_second)
    assert cluster.done == ["tx"]
    assert cluster.sender.ending_count == 0


def test_the_markers_of_a_turn_are_one_call() -> None:
    cluster = Cluster()
    for name in ("x", "xx", "xxx"):
        effect = EndTransaction(name, Producer(len(name), 3), False, 8, 2, (A0,))
        cluster.sender.begin(effect, "core", lambda: None)
    cluster.sender.flush()
    ((_, call),) = cluster.sent
    assert [marker.producer_id for marker in call.markers] == [1, 2, 3]


def test_a_rejected_marker_is_sent_to_the_new_leader() -> None:
    cluster = Cluster()
    cluster.end("tx", A0)
    cluster.answer(cluster.sent[0][1], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(cluster.sent) == 1
    cluster.leaders[A0] = 2
    cluster.pass_time(MARKERS_RETRY_MS)
    assert cluster.sent[1][0] == 2
    cluster.answer(cluster.sent[1][1])
    assert cluster.done == ["tx"]


def test_the_end_of_a_session_repeats_the_call() -> None:
    cluster = Cluster()
    cluster.end("tx", A0, A1)
    cluster.answer(cluster.sent[1][1])
    cluster.sender.session_ended(1)
    cluster.pass_time(MARKERS_RETRY_MS)
    assert [broker for broker, _ in cluster.sent] == [1, 2, 1]
    cluster.answer(cluster.sent[0][1])  # a late answer to the first call
    assert not cluster.done
    cluster.answer(cluster.sent[2][1])
    assert cluster.done == ["tx"]


def test_a_call_without_an_answer_is_repeated() -> None:
    cluster = Cluster()
    cluster.end("tx", A0)
    cluster.pass_time(MARKERS_TIMEOUT_MS)
    cluster.pass_time(MARKERS_RETRY_MS)
    assert len(cluster.sent) == 2


def test_a_partition_without_a_leader_waits_unless_its_topic_is_gone() -> None:
    cluster = Cluster()
    del cluster.leaders[A0]
    cluster.end("tx", A0, B0)
    cluster.answer(cluster.sent[0][1])
    topic, answer = cluster.asked_topics.pop()
    assert topic == "a"
    answer(None)
    assert not cluster.done, "an unavailable store does not confirm that the topic is deleted"
    cluster.pass_time(MARKERS_RETRY_MS)
    _, answer = cluster.asked_topics.pop()
    answer(True)
    assert cluster.done == ["tx"]


def test_a_newer_owner_or_epoch_ends_the_transaction_without_an_outcome() -> None:
    for error in (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        cluster = Cluster()
        cluster.end("tx", A0)
        cluster.answer(cluster.sent[0][1], error)
        cluster.pass_time(MARKERS_TIMEOUT_MS)
        assert len(cluster.sent) == 1
        assert not cluster.done
        assert cluster.sender.ending_count == 0


def test_the_requests_of_a_lost_shard_are_dropped() -> None:
    cluster = Cluster()
    cluster.end("tx", A0)
    cluster.end("other", A0, owner="another core")
    cluster.sender.forget("core")
    cluster.answer(cluster.sent[0][1])
    cluster.answer(cluster.sent[1][1])
    assert cluster.done == ["other"]


def test_a_transaction_without_partitions_ends_at_once() -> None:
    cluster = Cluster()
    cluster.end("tx")
    assert cluster.done == ["tx"]
