"""The consumer's shell: which membership a commit or a transaction names."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from brokerlab.client_parts import ClientParts
from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.consuming.assignors import encode_assignment
from tidelog.client.core.consuming.classic_membership import (
    GroupHeartbeat,
    GroupHeartbeatAnswered,
    JoinAnswered,
    JoinGroup,
    SyncAnswered,
    SyncGroup,
)
from tidelog.client.core.consuming.consumed_partition import OffsetToCommit
from tidelog.client.core.consuming.consumer import FULL_POLL_EACH_MS, ConsumerCore
from tidelog.client.core.consuming.consumer_events import (
    AssignmentDone,
    CommitConsumed,
    Effect,
    FetchAnswered,
    FetchedPartition,
    RevocationDone,
    RevokePartitions,
    SendFetch,
)
from tidelog.client.core.consuming.membership import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Heartbeat,
    HeartbeatAnswered,
    MemberState,
)
from tidelog.client.errors import ConnectionLostError, StaleMemberError, UnknownTopicError
from tidelog.client.shell.consuming import consumer as consumer_shell
from tidelog.client.shell.consuming import driver
from tidelog.client.shell.consuming.consumer import Consumer
from tidelog.client.shell.consuming.share_consumer import ShareConsumer
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.wire.messages.find_coordinator import Coordinator as FoundCoordinator
from tidelog.wire.messages.find_coordinator import FindCoordinatorResponse
from tidelog.wire.messages.list_offsets import ListOffsetsResponse
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

TOPIC_ID = uuid.UUID(int=1)
PLACE = TopicPartition("t", 0)
BEAT = Heartbeat(0, 0, ("t",), None, frozenset())
ASSIGNED = HeartbeatAnswered(BEAT, 0, None, 1, 5_000, frozenset({(TOPIC_ID, 0)}))
REMOVED = HeartbeatAnswered(BEAT, ErrorCode.UNKNOWN_MEMBER_ID, None, 0, 0, None)
PROTOCOLS = ("consumer", "classic")


def member(protocol: str) -> tuple[Consumer[bytes, bytes], ConsumerCore]:
    """Returns a member at offset 5 of PLACE, and its core. The application processes its records."""
    settings = {"group.id": "g", "group.protocol": protocol, "default.api.timeout.ms": 2_000}
    consumer = Consumer[bytes, bytes]("127.0.0.1:1", settings)
    core: ConsumerCore = ClientParts(consumer).core
    core.subscribe(("t",), None, 0)
    core.begin_poll(0)
    topic = TopicView("t", TOPIC_ID, (PartitionLeader(1, 0),))
    core.step(MetadataReceived((Node(1, "h", 1),), (topic,)), 0)
    if protocol == "classic":
        core.step(JoinAnswered(JoinGroup(0, "", ()), 0, "m", 3, "range", "other", ()), 1)
        core.step(SyncAnswered(SyncGroup(0, "m", 3, "range", ()), 0, encode_assignment([PLACE])), 2)
    else:
        core.step(ASSIGNED, 2)
    core.step(AssignmentDone((PLACE,)), 3)
    core.partitions[PLACE].seek(5)
    core.end_poll(4)
    return consumer, core


def remove(core: ConsumerCore, protocol: str) -> None:
    """The coordinator says that it has removed the member."""
    core.poll(6_000)
    answer: Any = REMOVED
    if protocol == "classic":
        answer = GroupHeartbeatAnswered(GroupHeartbeat(0, "m", 3), ErrorCode.UNKNOWN_MEMBER_ID)
    core.step(answer, 6_001)
    assert core.membership is not None and core.membership.state is MemberState.LOSING


@pytest.mark.parametrize("kind", [Consumer, ShareConsumer])
@pytest.mark.parametrize("max_records", [0, -1])
def test_a_poll_of_less_than_one_record_is_refused(kind: Any, max_records: int) -> None:
    """0 once meant the default: an application that computed it got 500 records instead of none."""
    consumer = kind("127.0.0.1:1", {"group.id": "g"})
    with pytest.raises(ValueError, match=f"max_records={max_records}"):
        asyncio.run(consumer.poll(0, max_records=max_records))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_transaction_gets_no_offsets_of_a_consumer_that_was_too_slow(protocol: str) -> None:
    """Without a member, the coordinator accepts them, although another member has the partitions."""
    consumer, core = member(protocol)
    assert consumer.positions() == {PLACE: 5}
    assert consumer.group_metadata().member_epoch == (3 if protocol == "classic" else 1)
    core.poll(1_000_000)
    with pytest.raises(StaleMemberError, match=r"max\.poll\.interval\.ms"):
        consumer.positions()
    with pytest.raises(StaleMemberError, match=r"max\.poll\.interval\.ms"):
        consumer.group_metadata()


def test_a_transaction_gets_no_offsets_of_a_consumer_that_was_removed() -> None:
    """A member of KIP-848 keeps its id, so the coordinator refuses it."""
    consumer, core = member("classic")
    remove(core, "classic")
    with pytest.raises(StaleMemberError):
        consumer.group_metadata()
    consumer, core = member("consumer")
    remove(core, "consumer")
    assert consumer.group_metadata().member_id and consumer.group_metadata().member_epoch == 0


def test_a_consumer_that_assigns_itself_partitions_is_no_member() -> None:
    consumer = Consumer[bytes, bytes]("127.0.0.1:1", {"group.id": "g"})
    consumer.assign([PLACE])
    assert consumer.group_metadata().member_epoch == -1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_that_failed_commits_nothing(protocol: str) -> None:
    consumer, core = member(protocol)
    core.poll(6_000)
    answer: Any = HeartbeatAnswered(BEAT, ErrorCode.FENCED_INSTANCE_ID, None, 0, 0, None)
    if protocol == "classic":
        answer = GroupHeartbeatAnswered(GroupHeartbeat(0, "m", 3), ErrorCode.FENCED_INSTANCE_ID)
    core.step(answer, 6_001)
    with pytest.raises(StaleMemberError):
        asyncio.run(consumer.commit({PLACE: 5}))
    with pytest.raises(StaleMemberError):
        consumer.group_metadata()


def test_a_poll_soon_after_another_one_only_delivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core works every 50 ms, and when a fetch is used up, so that another one can follow."""
    consumer = Consumer[bytes, bytes]("127.0.0.1:1", {"max.poll.records": 100})
    shell = ClientParts(consumer)
    core: ConsumerCore = shell.core
    sent: list[SendFetch] = []
    worked: list[int] = []
    clock = itertools.count(1_000)
    work = core.poll

    async def fetch(effect: SendFetch) -> None:
        sent.append(effect)

    def poll(now_ms: int) -> list[Effect]:
        worked.append(now_ms)
        return work(now_ms)

    async def scenario() -> list[int]:
        shell.tasks.start()
        consumer.assign([PLACE])
        topic = TopicView("t", TOPIC_ID, (PartitionLeader(1, 0),))
        shell.step(MetadataReceived((Node(1, "h", 1),), (topic,)))
        consumer.seek(PLACE, 0)
        await asyncio.sleep(0)
        rows = [Record(number, 1, None, b"v") for number in range(250)]
        part = FetchedPartition(0, memoryview(build_batch(rows)), 250, 250, 0, [], -1, None)
        shell.step(FetchAnswered(sent[-1].request_id, 0, {PLACE: part}))
        found, works = [], []
        for _ in range(3):
            worked.clear()
            found += [record.offset for record in await consumer.poll(0)]
            works.append(len(worked))
        assert core.partitions[PLACE].consumed == 200
        assert works == [2, 0, 1]
        next(itertools.islice(clock, FULL_POLL_EACH_MS, None))
        worked.clear()
        await consumer.poll(0)
        assert worked and core.partitions[PLACE].consumed == 250
        await shell.tasks.stop()
        return found

    monkeypatch.setattr(core, "poll", poll)
    monkeypatch.setattr(shell.driver, "_fetch", fetch)
    for module in (consumer_shell, driver):
        monkeypatch.setattr(module, "now_ms", lambda: next(clock))
    assert asyncio.run(scenario()) == list(range(250))


class Coordinator:
    """A coordinator that is unreachable until `returns`, and then stores every commit."""

    def __init__(self, returns: Callable[[], None]) -> None:
        self.returns: Callable[[], None] | None = returns
        self.commits: list[OffsetCommitRequest] = []

    async def connection(self) -> Coordinator:
        if self.returns is not None:
            returns, self.returns = self.returns, None
            returns()
            raise ConnectionLostError("lost")
        return self

    async def call(self, request: OffsetCommitRequest, timeout_s: float, **versions: int) -> Any:
        self.commits.append(request)
        row = OffsetCommitResponsePartition(PLACE.partition, 0)
        return OffsetCommitResponse(0, [OffsetCommitResponseTopic(PLACE.topic, partitions=[row])])

    def check(self, code: int, subject: str) -> None:
        assert not code, subject


def join_again(core: ConsumerCore, protocol: str) -> None:
    (loss,) = (effect for effect in core.begin_poll(6_002) if isinstance(effect, RevokePartitions))
    core.step(RevocationDone(loss.step), 6_003)
    if protocol == "classic":
        core.step(JoinAnswered(JoinGroup(0, "", ()), 0, "m2", 5, "range", "other", ()), 6_004)
        core.step(SyncAnswered(SyncGroup(0, "m2", 5, "range", ()), 0, encode_assignment([])), 6_005)
    else:
        core.step(HeartbeatAnswered(BEAT, 0, None, 9, 5_000, frozenset()), 6_004)
    assert core.membership is not None and core.membership.state is MemberState.STABLE


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_commit_is_not_repeated_with_the_epoch_of_a_later_membership(protocol: str) -> None:
    """Another member had the partition in the meantime and has committed more."""
    consumer, core = member(protocol)

    def passes() -> None:
        remove(core, protocol)
        join_again(core, protocol)

    coordinator = Coordinator(passes)
    ClientParts(consumer).calls.coordinator = coordinator
    with pytest.raises(StaleMemberError):
        asyncio.run(consumer.commit({PLACE: 5}))
    assert not coordinator.commits


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_commit_is_repeated_with_the_new_epoch_of_the_same_membership(protocol: str) -> None:
    consumer, core = member(protocol)

    def passes() -> None:
        if protocol == "consumer":
            core.poll(6_000)
            core.step(ASSIGNED._replace(member_epoch=2), 6_001)

    coordinator = Coordinator(passes)
    ClientParts(consumer).calls.coordinator = coordinator
    asyncio.run(consumer.commit({PLACE: 5}))
    (commit,) = coordinator.commits
    assert commit.generation_id_or_member_epoch == (3 if protocol == "classic" else 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_commit_of_an_earlier_membership_does_not_stand_for_one_of_this_one(protocol: str) -> None:
    """Another member may have committed more, so the position that was sought has to be stored."""
    consumer, core = member(protocol)

    class Late(Coordinator):
        async def call(self, request: OffsetCommitRequest, timeout_s: float, **versions: int) -> Any:
            answer = await super().call(request, timeout_s, **versions)
            remove(core, protocol)
            join_again(core, protocol)
            core.assign([PLACE])
            core.partitions[PLACE].seek(5)
            return answer

    coordinator = Late(lambda: None)
    ClientParts(consumer).calls.coordinator = coordinator
    asyncio.run(consumer.commit({PLACE: 5}))
    assert len(coordinator.commits) == 1
    assert core.partitions.commitable() == {PLACE: OffsetToCommit(5)}


class SlowCoordinator(Coordinator):
    def __init__(self, order: list[str]) -> None:
        super().__init__(lambda: None)
        self.returns = None
        self._order = order

    async def call(self, request: OffsetCommitRequest, timeout_s: float, **versions: int) -> Any:
        await asyncio.sleep(0.01)
        self._order.append("committed")
        return await super().call(request, timeout_s, **versions)


def perform_slowly(consumer: Consumer[bytes, bytes], *effects: Effect) -> list[str]:
    """Performs effects one after the other while commits are slow. Returns commits and events in order."""
    order: list[str] = []
    parts = ClientParts(consumer)
    parts.calls.coordinator = SlowCoordinator(order)
    parts.driver.step = lambda event: order.append(type(event).__name__)

    async def scenario() -> None:
        begun: list[asyncio.Future[None]] = []
        parts.tasks.spawn = lambda work: begun.append(asyncio.ensure_future(work))
        for effect in effects:
            parts.perform([effect])
            await asyncio.sleep(0)
        await asyncio.gather(*begun)

    asyncio.run(scenario())
    return order


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_partitions_are_given_up_after_the_commit_that_is_under_way(protocol: str) -> None:
    """A member may commit offsets of partitions that it owns no more. That would replace the next owner's."""
    consumer, core = member(protocol)
    core.partitions.committed({PLACE: OffsetToCommit(5)})  # nothing else is left to commit
    commit, revocation = CommitConsumed({PLACE: OffsetToCommit(5)}), RevokePartitions((PLACE,), False, 0)
    assert perform_slowly(consumer, commit, revocation) == ["committed", "RevocationDone"]


def test_no_automatic_commit_waits_for_another_one() -> None:
    """While a coordinator is away, each interval would add one, and all would follow when it is back."""
    consumer, _ = member("consumer")
    commit = CommitConsumed({PLACE: OffsetToCommit(5)})
    assert perform_slowly(consumer, *[commit] * 10) == ["committed"]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("is_created_again", [True, False])
def test_an_offset_of_a_deleted_topic_is_not_committed(is_created_again: bool, is_known: bool) -> None:
    """The next topic of the name would begin there. The offsets of other topics are committed."""
    consumer, core = member("consumer")
    shell = ClientParts(consumer)
    other, other_id = TopicPartition("u", 0), uuid.UUID(int=3)
    code = ErrorCode.NONE if is_created_again else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    after = TopicView("t", uuid.UUID(int=2), (PartitionLeader(1, 0),) * is_created_again, code)
    nodes = (Node(1, "h", 1),)
    asked: list[list[uuid.UUID]] = []

    class Informed(Coordinator):
        async def call(self, request: OffsetCommitRequest, timeout_s: float, **versions: int) -> Any:
            assert versions.get("at_most") is None, "it does not name ids"
            asked.append([topic.topic_id for topic in request.topics])
            topics = [
                OffsetCommitResponseTopic(topic_id=topic.topic_id, partitions=[row])
                for topic in request.topics
                for code in (ErrorCode.NONE if topic.topic_id == other_id else ErrorCode.UNKNOWN_TOPIC_ID,)
                for row in (OffsetCommitResponsePartition(0, code),)
            ]
            return OffsetCommitResponse(0, topics)

        def check(self, code: int, subject: str) -> None:
            if code:
                raise KafkaError(ErrorCode(code), subject)

    async def metadata(topics: object) -> MetadataReceived:
        return MetadataReceived(nodes, (after,))

    shell.calls.coordinator, shell.network.metadata = Informed(lambda: None), metadata
    core.view.update(MetadataReceived(nodes, (TopicView("u", other_id, (PartitionLeader(1, 0),)),)))
    if is_known:
        core.view.update(MetadataReceived(nodes, (after,)))
    offsets = {PLACE: OffsetToCommit(5, topic_id=TOPIC_ID), other: OffsetToCommit(6)}
    with pytest.raises(UnknownTopicError, match="t-0 was deleted"):
        asyncio.run(shell.commit(offsets))
    assert asked[-1] == [other_id]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_commit_is_not_repeated_without_a_member(protocol: str) -> None:
    consumer, core = member(protocol)

    def passes() -> None:
        core.poll(1_000_000)

    coordinator = Coordinator(passes)
    ClientParts(consumer).calls.coordinator = coordinator
    with pytest.raises(StaleMemberError):
        asyncio.run(consumer.commit({PLACE: 5}))
    assert not coordinator.commits


@pytest.mark.parametrize("has_news", [False, True])
def test_an_epoch_that_is_never_accepted_is_an_error_with_its_reason(has_news: bool) -> None:
    """The commit was repeated for default.api.timeout.ms, and the error did not say why. It is repeated until
    a heartbeat could have brought another epoch.
    """
    consumer, core = member("consumer")
    beats = itertools.count(6_000)

    class Refusing(Coordinator):
        async def call(self, request: OffsetCommitRequest, timeout_s: float, **versions: int) -> Any:
            self.commits.append(request)
            if len(self.commits) == 2:
                core.poll(100_000)
                epoch = 2 if has_news else 1
                core.step(ASSIGNED._replace(member_epoch=epoch), next(beats))
            refused = request.generation_id_or_member_epoch == 1
            code = ErrorCode.STALE_MEMBER_EPOCH if refused else ErrorCode.NONE
            row = OffsetCommitResponsePartition(PLACE.partition, code)
            return OffsetCommitResponse(0, [OffsetCommitResponseTopic(PLACE.topic, partitions=[row])])

    coordinator = Refusing(lambda: None)
    coordinator.returns = None
    ClientParts(consumer).calls.coordinator = coordinator
    if has_news:
        asyncio.run(consumer.commit({PLACE: 5}))
    else:
        with pytest.raises(
            StaleMemberError, match="does not accept the member epoch 1, although a heartbeat"
        ):
            asyncio.run(consumer.commit({PLACE: 5}))
    assert len(coordinator.commits) == 3


def test_health_names_a_missing_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_shell, "now_ms", lambda: 10)
    consumer, core = member("consumer")
    core.topics = ("t", "Nope")
    missing = TopicView("Nope", uuid.UUID(int=0), (), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    core.step(MetadataReceived((Node(1, "h", 1),), (missing,)), 10)
    health = consumer.health()
    assert (health.state, health.reason) == ("stuck", "Topic 'Nope': the topic or partition does not exist.")


class Silent:
    """A coordinator and leader whose answers leave out every partition."""

    node_id = 1
    requests = 0

    async def connection(self) -> Silent:
        return self

    async def broker(self, node_id: int, lane: int) -> Silent:
        return self

    async def call(self, request: object, timeout_s: float, **versions: int) -> Any:
        self.requests += 1
        if isinstance(request, OffsetFetchRequest):
            return OffsetFetchResponse(groups=[OffsetFetchResponseGroup("g", topics=[])])
        return ListOffsetsResponse(topics=[])

    async def metadata(self, topics: object) -> MetadataReceived:
        return MetadataReceived((Node(1, "h", 1),), (TopicView("t", TOPIC_ID, (PartitionLeader(1, 0),)),))

    timeout_s = 1.0

    def check(self, code: int, subject: str) -> None:
        assert not code, subject


@pytest.mark.parametrize("what", ["committed", "offsets"])
def test_an_answer_without_the_partition_is_asked_for_again_and_then_an_error(what: str) -> None:
    """The consumer's position would never be looked up again, or its task would end with a KeyError."""
    consumer, _ = member("consumer")
    calls, silent = ClientParts(consumer).calls, Silent()
    calls.coordinator = calls._network = silent
    looked_up = calls.committed([PLACE]) if what == "committed" else calls.offsets({PLACE: -1})
    with pytest.raises(KafkaError, match="no answer for t-0"):
        asyncio.run(looked_up)
    assert silent.requests > 1


def test_a_consumer_closes_in_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator never answers."""
    consumer, core = member("consumer")
    shell = ClientParts(consumer)

    async def connection() -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(shell.calls.coordinator, "connection", connection)
    monkeypatch.setattr(consumer_shell, "CLOSE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(driver, "INTERRUPTED_CLOSE_TIMEOUT_S", 0.01)
    core.partitions[PLACE].seek(9)
    asyncio.run(asyncio.wait_for(consumer.close(), 5))
    assert "could not give up its partitions" in caplog.text
    assert "could not leave its group" in caplog.text


class Line:
    """A connection to a coordinator that writes requests in their order."""

    is_closed = False

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.joined = asyncio.Event()

    async def renew_login(self, timeout_s: float) -> None: ...

    async def call(self, request: ConsumerGroupHeartbeatRequest, timeout_s: float, **versions: int) -> Any:
        self.epochs.append(request.member_epoch)
        if request.member_epoch == JOIN_EPOCH:
            self.joined.set()
        return ConsumerGroupHeartbeatResponse()


@pytest.mark.parametrize("is_coordinator_known", [True, False])
def test_a_member_that_leaves_and_joins_again_says_so_in_this_order(
    is_coordinator_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member keeps its id, so a goodbye that the next join overtakes would end the next membership.
    Requests to a coordinator share a connection, also while it is looked up and opened.
    """
    consumer, core = member("consumer")
    shell = ClientParts(consumer)
    line = Line()
    found = FindCoordinatorResponse(coordinators=[FoundCoordinator(key="g", node_id=1, host="h", port=1)])

    async def call_any(request: object, **versions: int) -> FindCoordinatorResponse:
        await asyncio.sleep(0)
        return found

    async def connect(address: object) -> Line:
        await asyncio.sleep(0)
        return line

    async def ignore(*asked: object) -> None: ...

    async def scenario() -> None:
        shell.tasks.start()
        if is_coordinator_known:
            await shell.calls.coordinator.connection()
        shell.perform(core.poll(1_000_000))
        (lost,) = (each for each in core.begin_poll(1_000_001) if isinstance(each, RevokePartitions))
        shell.perform(core.step(RevocationDone(lost.step), 1_000_002))
        async with asyncio.timeout(5):
            await line.joined.wait()
        await shell.tasks.stop()

    for name in ("_request_metadata", "_look_up_committed", "_fetch", "_check_positions"):
        monkeypatch.setattr(shell.driver, name, ignore)
    monkeypatch.setattr(shell.network, "call_any", call_any)
    monkeypatch.setattr(shell.network, "_connect", connect)
    asyncio.run(scenario())
    assert line.epochs[:2] == [LEAVE_EPOCH, JOIN_EPOCH]
