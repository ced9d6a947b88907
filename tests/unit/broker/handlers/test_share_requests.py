"""ShareFetch and ShareAcknowledge of a broker whose share coordinator is in memory."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from uuid import UUID

import pytest

from brokerlab.in_memory_broker import InMemoryBroker, make_context
from brokerlab.share_states import InMemoryShareStates, StoredState
from tidelog.broker.handlers import share_fetch as share_fetch_handler
from tidelog.broker.handlers import share_requests
from tidelog.broker.handlers.share_fetch import ShareFetch
from tidelog.broker.handlers.share_requests import session_key
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.segment import FileRange
from tidelog.broker.requests.request import PARKED, EncodedBody, RequestContext
from tidelog.broker.security.charge import Charge, now_ms
from tidelog.broker.security.client_quotas import ClientQuotas, QuotaKind, Samples
from tidelog.broker.share import log_reader, share_partitions
from tidelog.broker.share.deliveries import OUTCOMES
from tidelog.broker.share.screening import FoundFacts, find_facts
from tidelog.broker.share.share_partition import SharePartition
from tidelog.broker.share.share_sessions import SessionKey, TopicIdPartition
from tidelog.kernel import slices
from tidelog.kernel.instants import MonotonicMs
from tidelog.metadata.entries import ClientQuotaEntry, QuotaEntity
from tidelog.model.acl import ANONYMOUS, AclOperation, ResourceType
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import MAX_NAME_BYTES, SharePartitionKey
from tidelog.records.batch import CorruptBatchError, EndTransactionMarker, iterate_headers
from tidelog.records.builder import Record
from tidelog.rpc.broker_commands import LeaderAndIsr, PartitionState
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import share_acknowledge, share_fetch
from tidelog.wire.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from tidelog.wire.messages.share_fetch import PartitionData, ShareFetchRequest, ShareFetchResponse

VERSION = 2
GROUP = "group"
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
LOCK_MS = 30_000
Batch = tuple[int, int, int]


class Member:
    """A member of the group with a connection of its own."""

    def __init__(self, lab: ShareLab, name: str) -> None:
        self.lab = lab
        self.name = name
        self.epoch = 0
        self.is_closed = False
        self.budget_key = "10.0.0.1"
        self.on_closed: Callable[[Any], None] | None = None
        self.answers: list[Any] = []
        self.contexts: list[Any] = []
        self.charge: Callable[[], Charge] | None = None

    def close(self) -> None:
        async def end() -> None:
            self.is_closed = True
            for context in self.contexts:
                if context.on_abandoned is not None:
                    context.on_abandoned()
            if self.on_closed is not None:
                self.on_closed(self)
            await _settle()

        self.lab.broker.runner.run(end())

    def context(self) -> RequestContext:
        def reply(answer: Any, body: EncodedBody | None = None) -> None:
            context.on_abandoned = None
            self.answers.append(answer)

        async def encode_in_slices(context: RequestContext, answer: Any) -> None:
            """Leaves the answer as it is."""

        context = make_context(
            VERSION,
            connection=self,
            charge=None if self.charge is None else self.charge(),
            route=SimpleNamespace(encode_in_slices=encode_in_slices),
            reply=reply,
        )
        self.contexts.append(context)
        return context

    def send_fetch(self, *acknowledged: Batch, epoch: int | None = None, **fields: Any) -> None:
        """Sends a ShareFetch of partition 0; the response is added to `answers`."""
        batches = [
            share_fetch.AcknowledgementBatch(first, last, [kind]) for first, last, kind in acknowledged
        ]
        topics = [share_fetch.FetchTopic(self.lab.topic_id, [share_fetch.FetchPartition(0, batches)])]
        fields = {
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_records": 100,
            "batch_size": 100,
            "topics": topics,
            **fields,
        }
        sent = self.epoch if epoch is None else epoch
        self.send(ApiKey.SHARE_FETCH, ShareFetchRequest(GROUP, self.name, sent, **fields))

    def fetch(self, *acknowledged: Batch, **fields: Any) -> ShareFetchResponse:
        self.send_fetch(*acknowledged, **fields)
        return cast(ShareFetchResponse, self.take())

    def acknowledge(self, *acknowledged: Batch, epoch: int | None = None, **fields: Any) -> PartitionOrError:
        answer = self.acknowledgement_answer(*acknowledged, epoch=epoch, **fields)
        return ErrorCode(answer.error_code or answer.responses[0].partitions[0].error_code)

    def acknowledgement_answer(
        self, *acknowledged: Batch, epoch: int | None = None, **fields: Any
    ) -> ShareAcknowledgeResponse:
        batches = [
            share_acknowledge.AcknowledgementBatch(first, last, [kind]) for first, last, kind in acknowledged
        ]
        topics = [
            share_acknowledge.AcknowledgeTopic(
                self.lab.topic_id, [share_acknowledge.AcknowledgePartition(0, batches)]
            )
        ]
        request = ShareAcknowledgeRequest(
            GROUP, self.name, self.epoch if epoch is None else epoch, topics=topics, **fields
        )
        self.send(ApiKey.SHARE_ACKNOWLEDGE, request)
        return cast(ShareAcknowledgeResponse, self.take())

    def send(self, api_key: ApiKey, request: Any) -> None:
        async def send() -> None:
            answer = self.lab.broker.handle(api_key, request, self.context())
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer is not PARKED:
                self.answers.append(answer)
            await _settle()

        before = len(self.answers)
        self.lab.broker.runner.run(send())
        if len(self.answers) == before or not self.answers[-1].error_code:
            self.epoch = self.epoch + 1 if request.share_session_epoch >= 0 else 0

    def take(self) -> Any:
        """Returns the response, and checks that it can be encoded."""
        assert self.answers, "the request still waits"
        answer = self.answers.pop(0)
        key = ApiKey.SHARE_FETCH if isinstance(answer, ShareFetchResponse) else ApiKey.SHARE_ACKNOWLEDGE
        for topic in answer.responses:
            for part in topic.partitions:
                if isinstance(getattr(part, "records", None), FileRange):
                    part.records = part.records.read()
        codec.response_encoder(key, VERSION)(answer)
        return answer


PartitionOrError = ErrorCode


async def _settle() -> None:
    for _ in range(20 * slices.TURNS_OF_OTHERS):
        await asyncio.sleep(0)


class ShareLab:
    """A broker with one topic, and a share coordinator in memory."""

    def __init__(self, broker: InMemoryBroker) -> None:
        self.broker = broker
        self.states = InMemoryShareStates()
        cast(Any, broker.broker.coordination)._share_state = self.states
        self.topic_id: UUID = broker.add_topic("t")
        self.now_ms = 0

    def member(self, name: str) -> Member:
        return Member(self, name)

    def settle(self) -> None:
        self.broker.runner.run(_settle())

    def append(self, count: int, **producer: Any) -> None:
        async def append() -> None:
            self.broker.append("t", count, **producer)
            await _settle()

        self.broker.runner.run(append())

    def append_records(self, *records: tuple[bytes | None, int]) -> None:
        """Appends one batch of records with a key and a time in the header tidelog-deliver-at. The time
        counts from now; 0 stands for no header.
        """
        now_ms = self.broker.clock.wall_ms()

        async def append() -> None:
            made = [
                Record(
                    number,
                    now_ms,
                    key,
                    b"value",
                    [("tidelog-deliver-at", b"%d" % (now_ms + after_ms))] if after_ms else [],
                )
                for number, (key, after_ms) in enumerate(records)
            ]
            self.broker.append_records("t", made)
            await _settle()

        self.broker.runner.run(append())
        self.await_looks()

    def await_looks(self) -> None:
        """Waits for the threads that look at records."""

        async def wait() -> None:
            while True:
                await _settle()
                if not any(found._is_looking for found in self.partitions._partitions.values()):
                    return
                await asyncio.sleep(0.001)

        self.broker.runner.run(wait())

    def pass_time(self, passed_ms: int) -> None:
        async def advance() -> None:
            self.now_ms += passed_ms
            self.broker.clock.advance(passed_ms)
            cast(Any, self.broker.broker.timer).advance(MonotonicMs(self.now_ms))
            await _settle()

        self.broker.runner.run(advance())

    def become(self, leader: int, epoch: int) -> None:
        state = PartitionState("t", self.topic_id, 0, leader, epoch, (1, 2), (1, 2), 7, partition_epoch=epoch)
        self.broker.runner.run(self.broker.commands.leader_and_isr(LeaderAndIsr(1, 7, (state,), {"t": {}})))
        self.settle()

    def set_group(self, **overrides: str) -> None:
        """Sets group settings; `share_order` is the setting `tidelog.share.order`."""
        self.override({f"tidelog.{name.replace('_', '.')}": value for name, value in overrides.items()})

    def override(self, names: dict[str, str]) -> None:
        view = self.broker.broker.group_settings
        cast(Any, view)._overrides_of = lambda group: names if group == GROUP else {}

    @property
    def partitions(self) -> Any:
        return self.broker.broker.share_partitions


@pytest.fixture
def share(make_broker: Callable[..., InMemoryBroker]) -> ShareLab:
    lab = ShareLab(make_broker())
    lab.broker.broker.current_settings.replace(lab.broker.broker.current_settings.broker)
    return lab


@pytest.fixture
def from_start(share: ShareLab) -> ShareLab:
    """A group that begins with the first record."""
    share.states.states[GROUP, share.topic_id, 0] = StoredState(start_offset=0)
    return share


def part_of(answer: ShareFetchResponse) -> PartitionData:
    ((part,),) = [topic.partitions for topic in answer.responses]
    return part


def acquired(answer: ShareFetchResponse) -> list[tuple[int, int, int]]:
    return [
        (found.first_offset, found.last_offset, found.delivery_count)
        for topic in answer.responses
        for part in topic.partitions
        for found in part.acquired_records
    ]


class Load(NamedTuple):
    """The load of the group, without its age."""

    unfinished: int = 0
    acquired: int = 0
    full_partitions: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    expired: int = 0
    abandoned: int = 0
    redelivered: int = 0


def load_of(share: ShareLab) -> Load:
    (load,) = share.partitions.loads()
    counts = load.counts
    return Load(
        load.unfinished,
        load.acquired,
        load.full_partitions,
        *(getattr(counts, outcome) for outcome in OUTCOMES),
        counts.redelivered,
    )


def age_ms_of(share: ShareLab) -> int:
    (load,) = share.partitions.loads()
    return cast(int, load.oldest_age_ms)


def batches(answer: ShareFetchResponse) -> list[tuple[int, int]]:
    records = bytes(cast(bytes, part_of(answer).records))
    return [(header.base_offset, header.last_offset) for _, header in iterate_headers(records)]


@pytest.mark.parametrize(
    ("group_id", "member_id", "code"),
    [
        ("x" * (MAX_NAME_BYTES + 1), "m", ErrorCode.INVALID_GROUP_ID),
        ("g", "x" * (MAX_NAME_BYTES + 1), ErrorCode.INVALID_REQUEST),
        ("", "m", ErrorCode.INVALID_REQUEST),
        ("g", None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_request_with_invalid_ids_is_refused(group_id: str, member_id: str | None, code: ErrorCode) -> None:
    """The requests that load the states of a share group's partitions repeat the group's id."""
    assert session_key("x" * MAX_NAME_BYTES, "m").member_id == "m"
    with pytest.raises(KafkaError) as raised:
        session_key(group_id, member_id)
    assert raised.value.code is code


def test_records_are_acquired_once_and_acknowledged(from_start: ShareLab) -> None:
    from_start.append(3)
    from_start.append(2)
    one, two = from_start.member("one"), from_start.member("two")
    answer = one.fetch()
    assert acquired(answer) == [(0, 4, 1)]
    assert batches(answer) == [(0, 2), (3, 4)]
    assert answer.acquisition_lock_timeout_ms == LOCK_MS
    two.send_fetch()
    assert not two.answers, "all records are locked"
    assert one.acknowledge((0, 4, ACCEPT)) == ErrorCode.NONE
    assert from_start.states.states[GROUP, from_start.topic_id, 0].start_offset == 5
    from_start.append(1)
    assert acquired(two.take()) == [(5, 5, 1)]


def test_a_new_group_begins_at_the_end_and_stores_that(share: ShareLab) -> None:
    share.append(3)
    member = share.member("one")
    member.send_fetch()
    assert not member.answers
    assert share.states.states[GROUP, share.topic_id, 0].start_offset == 3
    share.append(2)
    assert acquired(member.take()) == [(3, 4, 1)]


def test_released_records_wake_another_member(from_start: ShareLab) -> None:
    from_start.append(4)
    one, two = from_start.member("one"), from_start.member("two")
    one.fetch()
    two.send_fetch()
    assert one.acknowledge((0, 1, ACCEPT), (2, 2, RELEASE), (3, 3, REJECT)) == ErrorCode.NONE
    assert acquired(two.take()) == [(2, 2, 2)]


def test_a_fetch_that_waits_does_not_keep_what_it_asked_for(from_start: ShareLab) -> None:
    member = from_start.member("one")
    gc.collect()
    before = len(gc.get_objects())
    partitions = [share_fetch.FetchPartition(0) for _ in range(5_000)]
    topics = [share_fetch.FetchTopic(from_start.topic_id, partitions)]
    del partitions
    member.send_fetch(topics=topics)
    assert not member.answers
    del topics
    gc.collect()
    assert len(gc.get_objects()) - before < 2_000


def test_locks_end(from_start: ShareLab) -> None:
    from_start.append(2)
    one, two = from_start.member("one"), from_start.member("two")
    one.fetch()
    two.send_fetch(max_wait_ms=LOCK_MS * 2)
    from_start.pass_time(LOCK_MS - 1)
    assert not two.answers
    from_start.pass_time(1)
    assert acquired(two.take()) == [(0, 1, 2)]
    assert one.acknowledge((0, 1, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE


def test_a_renewed_lock_lasts_longer(from_start: ShareLab) -> None:
    from_start.append(2)
    one, two = from_start.member("one"), from_start.member("two")
    one.fetch()
    two.send_fetch(max_wait_ms=LOCK_MS * 2)
    from_start.pass_time(LOCK_MS - 1)
    assert one.acknowledge((0, 1, RENEW), is_renew_ack=True) == ErrorCode.NONE
    from_start.pass_time(LOCK_MS - 1)
    assert not two.answers
    assert one.acknowledge((0, 1, RENEW)) == ErrorCode.INVALID_REQUEST, "only if the request says so"
    from_start.pass_time(1)
    assert acquired(two.take()) == [(0, 1, 2)]


def test_a_released_record_wakes_a_waiting_fetch_after_its_backoff(from_start: ShareLab) -> None:
    from_start.set_group(share_retry_backoff_ms="500")
    from_start.append(2)
    one, two = from_start.member("one"), from_start.member("two")
    one.fetch()
    two.send_fetch(max_wait_ms=LOCK_MS)
    assert one.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE)) == ErrorCode.NONE
    from_start.pass_time(499)
    assert not two.answers, "the timer of the lock is moved to the earlier end of the wait, and not before"
    from_start.pass_time(1)
    assert acquired(two.take()) == [(1, 1, 2)]
    assert two.acknowledge((1, 1, RELEASE)) == ErrorCode.NONE
    two.send_fetch(max_wait_ms=LOCK_MS)
    from_start.pass_time(999)
    assert not two.answers, "the wait doubles"
    from_start.pass_time(1)
    assert acquired(two.take()) == [(1, 1, 3)]


def test_a_backoff_survives_a_change_of_the_leader(from_start: ShareLab) -> None:
    from_start.set_group(share_retry_backoff_ms="5000")
    from_start.append(1)
    member = from_start.member("one")
    member.fetch()
    assert member.acknowledge((0, 0, RELEASE)) == ErrorCode.NONE
    from_start.pass_time(2_000)
    from_start.become(2, epoch=4)
    from_start.become(1, epoch=5)
    other = from_start.member("other")
    other.send_fetch(max_wait_ms=LOCK_MS)
    from_start.pass_time(2_999)
    assert not other.answers
    from_start.pass_time(1)
    assert acquired(other.take()) == [(0, 0, 2)]


def test_records_wait_until_the_time_in_their_headers(from_start: ShareLab) -> None:
    from_start.set_group(share_deliver_at_enable="true")
    from_start.append_records((None, 0), (None, 5_000), (None, 2_000), (None, 0))
    one, two = from_start.member("one"), from_start.member("two")
    one.send_fetch(max_wait_ms=LOCK_MS)
    from_start.await_looks()
    assert acquired(one.take()) == [(0, 0, 1), (3, 3, 1)]
    assert one.acknowledge((0, 0, ACCEPT), (3, 3, ACCEPT)) == ErrorCode.NONE
    two.send_fetch(max_wait_ms=LOCK_MS)
    from_start.await_looks()
    from_start.pass_time(1_999)
    assert not two.answers
    from_start.pass_time(1)
    assert acquired(two.take()) == [(2, 2, 1)]
    from_start.append_records((None, 0))
    two.send_fetch(max_wait_ms=LOCK_MS)
    from_start.await_looks()
    assert acquired(two.take()) == [(4, 4, 1)], "records that wait hold back no others"
    from_start.pass_time(3_000)
    assert acquired(one.fetch()) == [(1, 1, 1)]


def test_a_delivery_time_survives_a_change_of_the_leader(from_start: ShareLab) -> None:
    from_start.set_group(share_deliver_at_enable="true", share_retry_backoff_ms="4000")
    from_start.append_records((None, 5_000), (None, 0), (None, 0))
    one, two = from_start.member("one"), from_start.member("two")
    one.send_fetch(max_wait_ms=LOCK_MS)
    from_start.await_looks()
    assert acquired(one.take()) == [(1, 2, 1)]
    assert one.acknowledge((1, 1, ACCEPT), (2, 2, RELEASE)) == ErrorCode.NONE
    from_start.pass_time(3_000)
    from_start.become(2, epoch=4)
    from_start.become(1, epoch=5)
    two.send_fetch(max_wait_ms=LOCK_MS)
    from_start.await_looks()
    assert not two.answers
    from_start.pass_time(999)
    assert not two.answers
    from_start.pass_time(1)
    assert acquired(two.take()) == [(2, 2, 2)]
    from_start.pass_time(1_000)
    assert acquired(two.fetch()) == [(0, 0, 1)]


def test_a_group_that_begins_to_honor_delivery_times_starts_from_its_state(from_start: ShareLab) -> None:
    from_start.append_records((None, 5_000), (None, 0))
    member = from_start.member("one")
    assert acquired(member.fetch()) == [(0, 1, 1)], "the header has no meaning for other groups"
    from_start.set_group(share_deliver_at_enable="true")
    member.send_fetch(max_wait_ms=LOCK_MS)
    from_start.await_looks()
    assert acquired(member.take()) == [(1, 1, 1)]
    from_start.pass_time(5_000)
    assert acquired(member.fetch()) == [(0, 0, 1)]


def test_a_record_that_enters_a_full_window_while_a_fetch_waits_is_delivered_at_its_time(
    from_start: ShareLab,
) -> None:
    from_start.set_group(share_deliver_at_enable="true")
    one, two = from_start.member("one"), from_start.member("two")
    one.fetch(max_wait_ms=0)
    count = from_start.partitions.find((GROUP, from_start.topic_id, 0)).limits.records_in_flight
    from_start.append_records(*[(None, 0)] * count, (None, 5_000))
    while load_of(from_start).acquired < count:
        one.send_fetch(max_wait_ms=LOCK_MS)
        from_start.await_looks()
        assert acquired(one.take())
    two.send_fetch(max_wait_ms=LOCK_MS)
    from_start.await_looks()
    assert one.acknowledge((0, count - 1, ACCEPT)) == ErrorCode.NONE
    from_start.pass_time(5_000)
    assert acquired(two.take()) == [(count, count, 1)]


def test_a_change_of_the_settings_begins_one_share_partition(
    from_start: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the former one wakes the fetch that waits for it, which begins the next one."""
    begun: list[SharePartition] = []
    start = SharePartition.start
    monkeypatch.setattr(SharePartition, "start", lambda self: (begun.append(self), start(self)))
    one, two = from_start.member("one"), from_start.member("two")
    one.fetch(max_wait_ms=0)
    two.send_fetch(max_wait_ms=LOCK_MS)
    from_start.set_group(share_order="key")
    one.send_fetch(max_wait_ms=LOCK_MS)
    assert len(begun) == 2
    assert from_start.partitions.find((GROUP, from_start.topic_id, 0)) is begun[-1]
    assert begun[-1].members == {"one", "two"}


def test_records_that_cannot_be_looked_at_are_reported_and_tried_again_after_a_pause(
    from_start: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_start.set_group(share_order="key")
    one, two = from_start.member("one"), from_start.member("two")
    one.send_fetch(max_wait_ms=LOCK_MS)
    two.send_fetch(max_wait_ms=LOCK_MS)
    looks = 0

    def fail(*_: object) -> FoundFacts:
        nonlocal looks
        looks += 1
        raise CorruptBatchError("the batch is damaged")

    with monkeypatch.context() as damage:
        damage.setattr(log_reader, "find_facts", fail)
        from_start.append(1)
        from_start.broker.runner.run(asyncio.sleep(0.05))
        for member in (one, two):
            assert part_of(member.take()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert part_of(member.fetch(max_wait_ms=LOCK_MS)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert looks == 1
        from_start.await_looks()
        one.fetch(max_wait_ms=0)
        from_start.await_looks()
        assert looks == 2
    one.fetch(max_wait_ms=0)
    from_start.await_looks()
    assert acquired(one.fetch()) == [(0, 0, 1)]


def test_a_large_batch_is_not_decoded_for_each_look(
    from_start: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_start.set_group(share_order="key")
    decoded = 0

    def find(*given: Any) -> FoundFacts:
        nonlocal decoded
        decoded += 1
        return find_facts(*given)

    monkeypatch.setattr(log_reader, "find_facts", find)
    member = from_start.member("one")
    from_start.append_records(*[(b"%d" % at, 0) for at in range(3_500)])
    seen: list[int] = []
    while len(seen) < 3_500:
        member.send_fetch(max_wait_ms=LOCK_MS, max_records=500)
        from_start.await_looks()
        taken = acquired(member.take())
        assert taken
        for first, last, _ in taken:
            seen.extend(range(first, last + 1))
            assert member.acknowledge((first, last, ACCEPT)) == ErrorCode.NONE
    assert seen == list(range(3_500))
    assert decoded == 1


def test_a_key_in_flight_holds_back_its_later_records(from_start: ShareLab) -> None:
    from_start.set_group(share_order="key")
    from_start.append_records((b"a", 0), (b"a", 0), (b"b", 0), (None, 0))
    from_start.append_records((b"b", 0), (None, 0))
    one, two = from_start.member("one"), from_start.member("two")
    one.send_fetch(max_wait_ms=LOCK_MS)
    from_start.await_looks()
    assert acquired(one.take()) == [(0, 0, 1), (2, 3, 1), (5, 5, 1)]
    two.send_fetch(max_wait_ms=LOCK_MS)
    assert one.acknowledge((2, 2, REJECT)) == ErrorCode.NONE
    assert acquired(two.take()) == [(4, 4, 1)], "a record that is given up frees its key"
    two.send_fetch(max_wait_ms=LOCK_MS)
    assert one.acknowledge((0, 0, RELEASE)) == ErrorCode.NONE
    assert acquired(two.take()) == [(0, 0, 2)], "a released record comes before the others of its key"
    assert two.acknowledge((0, 0, ACCEPT)) == ErrorCode.NONE
    from_start.become(2, epoch=4)
    from_start.become(1, epoch=5)
    other = from_start.member("other")
    other.send_fetch(max_wait_ms=LOCK_MS)
    from_start.await_looks()
    assert acquired(other.take()) == [(1, 1, 1), (3, 5, 1)]


def test_a_pause_survives_a_change_of_the_leader(from_start: ShareLab) -> None:
    from_start.set_group(
        share_breaker_failure_percentage="50", share_breaker_min_deliveries="3", share_breaker_pause_ms="5000"
    )
    from_start.append(10)
    one = from_start.member("one")
    one.fetch()
    assert one.acknowledge((0, 3, RELEASE)) == ErrorCode.NONE
    one.send_fetch(max_wait_ms=1_000)
    from_start.pass_time(2_000)
    assert not acquired(one.take())
    from_start.become(2, epoch=4)
    from_start.become(1, epoch=5)
    other = from_start.member("other")
    other.send_fetch(max_wait_ms=LOCK_MS)
    from_start.pass_time(2_999)
    assert not other.answers
    from_start.pass_time(1)
    assert acquired(other.take()) == [(0, 0, 2)], "one record is the probe"
    third = from_start.member("third")
    third.send_fetch(max_wait_ms=LOCK_MS)
    assert not third.answers
    assert other.acknowledge((0, 0, ACCEPT)) == ErrorCode.NONE
    assert acquired(third.take()) == [(1, 3, 2), (4, 9, 1)]


def test_an_acknowledgement_with_a_fetch_is_answered_with_it(from_start: ShareLab) -> None:
    from_start.append(2)
    member = from_start.member("one")
    member.fetch()
    from_start.append(2)
    answer = member.fetch((0, 1, ACCEPT))
    assert part_of(answer).acknowledge_error_code == 0
    assert acquired(answer) == [(2, 3, 1)]
    answer = member.fetch((0, 1, ACCEPT), max_wait_ms=0)
    assert part_of(answer).acknowledge_error_code == 0, "offsets below the start offset are ignored"


def test_the_state_survives_a_change_of_the_leader(from_start: ShareLab) -> None:
    from_start.append(4)
    member = from_start.member("one")
    member.fetch()
    assert member.acknowledge((0, 0, ACCEPT), (2, 2, ACCEPT)) == ErrorCode.NONE
    member.send_fetch()
    from_start.become(2, epoch=4)
    answer = member.take()
    assert part_of(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert part_of(answer).current_leader.leader_id == 2
    from_start.become(1, epoch=5)
    other = from_start.member("other")
    assert acquired(other.fetch()) == [(1, 1, 1), (3, 3, 1)]
    assert member.acknowledge((1, 1, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE


def test_no_leader_comes_with_other_errors(from_start: ShareLab) -> None:
    """A client that reads a leader there moves away from the right broker (franz-go 1.22 does)."""
    from_start.append(2)
    member = from_start.member("one")
    assert part_of(member.fetch()).current_leader.leader_id == -1
    from_start.pass_time(LOCK_MS + 1)
    late = member.fetch((0, 1, ACCEPT), max_wait_ms=0)
    assert part_of(late).acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
    assert part_of(late).current_leader.leader_id == -1
    from_start.pass_time(LOCK_MS + 1)
    part = member.acknowledgement_answer((0, 1, ACCEPT)).responses[0].partitions[0]
    assert part.error_code == ErrorCode.INVALID_RECORD_STATE
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (-1, -1)


def test_an_acknowledgement_that_is_being_stored_fails_with_the_leader(from_start: ShareLab) -> None:
    from_start.append(1)
    member = from_start.member("one")
    member.fetch()
    from_start.states.gate = asyncio.Event()
    member.send_fetch((0, 0, ACCEPT))
    assert not member.answers
    from_start.become(2, epoch=4)
    part = part_of(member.take())
    assert part.acknowledge_error_code == part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    from_start.states.gate.set()
    from_start.settle()


def test_a_write_whose_outcome_is_unknown_is_repeated(from_start: ShareLab) -> None:
    from_start.append(1)
    member = from_start.member("one")
    member.fetch()
    from_start.states.errors = [ErrorCode.REQUEST_TIMED_OUT]
    from_start.states.is_stored_nevertheless = True
    member.send_fetch((0, 0, ACCEPT), max_wait_ms=0)
    assert not member.answers
    from_start.broker.runner.run(asyncio.sleep(0.15))
    assert part_of(member.take()).acknowledge_error_code == ErrorCode.NONE
    assert len(from_start.states.writes) == 2


def test_a_refused_write_is_undone(from_start: ShareLab) -> None:
    from_start.append(1)
    member, other = from_start.member("one"), from_start.member("two")
    member.fetch()
    from_start.states.errors = [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert member.acknowledge((0, 0, ACCEPT)) == ErrorCode.UNKNOWN_SERVER_ERROR
    other.send_fetch(max_wait_ms=LOCK_MS * 2)
    from_start.pass_time(LOCK_MS)
    assert acquired(other.take()) == [(0, 0, 2)]


def test_a_changed_state_ends_the_deliveries(from_start: ShareLab) -> None:
    from_start.append(3)
    member = from_start.member("one")
    member.fetch()
    state = from_start.states.states[GROUP, from_start.topic_id, 0]
    state.state_epoch, state.start_offset = 1, 2
    assert member.acknowledge((0, 0, ACCEPT)) == ErrorCode.FENCED_STATE_EPOCH
    assert acquired(from_start.member("two").fetch()) == [(2, 2, 1)]


def test_a_coordinator_that_is_loading_is_asked_again(from_start: ShareLab) -> None:
    from_start.append(1)
    from_start.states.read_errors = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    member = from_start.member("one")
    member.send_fetch()
    assert not member.answers
    from_start.broker.runner.run(asyncio.sleep(0.15))
    assert acquired(member.take()) == [(0, 0, 1)]


def test_a_coordinator_that_refuses_is_reported(from_start: ShareLab) -> None:
    from_start.states.read_errors = [ErrorCode.UNKNOWN_SERVER_ERROR]
    member = from_start.member("one")
    assert part_of(member.fetch()).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_closed_session_returns_its_records(from_start: ShareLab) -> None:
    from_start.append(2)
    one, two = from_start.member("one"), from_start.member("two")
    one.fetch()
    two.send_fetch()
    one.fetch((0, 0, ACCEPT), epoch=-1)
    assert acquired(two.take()) == [(1, 1, 2)]
    assert one.fetch(epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_lost_connection_returns_its_records(from_start: ShareLab) -> None:
    from_start.append(2)
    one, two = from_start.member("one"), from_start.member("two")
    one.fetch()
    two.send_fetch()
    one.close()
    assert acquired(two.take()) == [(0, 1, 2)]
    two.close()
    assert len(from_start.partitions) == 0, "nothing is remembered without members"
    assert len(from_start.partitions.sessions) == 0


def test_a_lost_connection_with_many_sessions_does_not_hold_up_others(
    share: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with 600 groups and 24 partitions in each held the event loop for 0.6 s when it left."""
    monkeypatch.setattr(slices, "SLICE_MS", 1e-6)
    found, connection = share.partitions, object()
    replica = share.broker.broker.hosted.leader_replica("t", 0)
    keys = [SessionKey(f"g{number}", "member") for number in range(40)]

    def begin(key: SessionKey, opened_by: object) -> None:
        found.sessions.open(key, opened_by, "client", [TopicIdPartition(share.topic_id, 0)])
        found.use(SharePartitionKey(key.group_id, share.topic_id, 0), replica, key)

    async def lose() -> None:
        for key in keys:
            begin(key, connection)
        await _settle()
        assert len(found) == len(found.sessions) == 40
        found.connection_closed(connection)
        assert len(found.sessions) == 0
        assert len(found) == 40 - slices.STEPS_BETWEEN_READINGS
        begin(keys[38], object())  # the member comes back over another connection
        await _settle()

    share.broker.runner.run(lose())
    assert [session.key for session in found.sessions] == [keys[38]]
    assert len(found) == 1
    assert found._of_group == {"g38": 1}


class LongSession:
    """A member's session with so many share partitions that their release takes several slices."""

    COUNT = 40

    def __init__(self, share: ShareLab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.share = share
        self.topic_id = share.broker.add_topic("many", self.COUNT)
        for partition in range(self.COUNT):
            share.states.states[GROUP, self.topic_id, partition] = StoredState(start_offset=0)
        self.append()
        self.member = share.member("one")
        assert self.fetch_all(self.member) == [(0, 0, 1)] * self.COUNT
        monkeypatch.setattr(slices, "SLICE_MS", 1e-6)
        self.left: list[tuple[int, int]] = []
        """The turn in which each share partition was left."""
        self._turn = 0
        leave = SharePartition.leave

        def counted(found: SharePartition, member: str) -> None:
            self.left.append((found.key.partition, self._turn))
            leave(found, member)

        monkeypatch.setattr(SharePartition, "leave", counted)

    def append(self) -> None:
        async def append() -> None:
            for partition in range(self.COUNT):
                self.share.broker.append("many", 1, partition)
            await _settle()

        self.share.broker.runner.run(append())

    def topics(self) -> list[share_fetch.FetchTopic]:
        wanted = [share_fetch.FetchPartition(partition, []) for partition in range(self.COUNT)]
        return [share_fetch.FetchTopic(self.topic_id, wanted)]

    def fetch_all(self, member: Member) -> list[tuple[int, int, int]]:
        """Fetches twice, because the first fetch begins to read the states."""
        sizes: dict[str, Any] = {"max_records": 10_000, "max_bytes": 1 << 20, "max_wait_ms": 0}
        answers = [member.fetch(topics=self.topics(), **sizes) for _ in range(2)]
        return [found for answer in answers for found in acquired(answer)]

    def in_turns(self, end: Callable[[], object]) -> None:
        """Ends the session by `end`, and counts turns of the event loop."""

        async def run() -> None:
            end()
            for _ in range(20 * slices.TURNS_OF_OTHERS):
                self._turn += 1
                await asyncio.sleep(0)

        self.share.broker.runner.run(run())


def _end_by_fetch(member: Member) -> object:
    request = ShareFetchRequest(GROUP, member.name, -1, topics=[])
    return member.lab.broker.handle(ApiKey.SHARE_FETCH, request, member.context())


def _end_by_acknowledgement(member: Member) -> object:
    request = ShareAcknowledgeRequest(GROUP, member.name, -1, topics=[])
    return member.lab.broker.handle(ApiKey.SHARE_ACKNOWLEDGE, request, member.context())


def _begin_anew(member: Member) -> object:
    request = ShareFetchRequest(GROUP, member.name, 0, max_wait_ms=0, topics=[])
    return member.lab.broker.handle(ApiKey.SHARE_FETCH, request, member.context())


def _lose(member: Member) -> object:
    assert member.on_closed is not None
    member.is_closed = True
    member.on_closed(member)
    return None


@pytest.mark.parametrize("end", [_end_by_fetch, _end_by_acknowledgement, _begin_anew, _lose])
def test_the_end_of_a_session_with_many_partitions_does_not_hold_up_others(
    share: ShareLab, monkeypatch: pytest.MonkeyPatch, end: Callable[[Member], object]
) -> None:
    session = LongSession(share, monkeypatch)
    session.in_turns(lambda: end(session.member))
    assert sorted(partition for partition, _ in session.left) == list(range(session.COUNT))
    in_turn = Counter(turn for _, turn in session.left)
    assert max(in_turn.values()) == slices.STEPS_BETWEEN_READINGS
    assert len(share.partitions) == 0
    assert session.fetch_all(share.member("two")) == [(0, 0, 2)] * session.COUNT


def test_a_session_that_begins_anew_keeps_the_records_that_it_acquires(
    share: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = LongSession(share, monkeypatch)
    again = share.member("one")  # the same member over another connection

    def begin_anew() -> None:
        _lose(session.member)
        assert len(session.left) < session.COUNT
        request = ShareFetchRequest(
            GROUP,
            again.name,
            0,
            max_wait_ms=0,
            max_records=10_000,
            max_bytes=1 << 20,
            batch_size=1,
            topics=session.topics(),
        )
        answer = share.broker.handle(ApiKey.SHARE_FETCH, request, again.context())
        again.answers += [answer] if answer is not PARKED else []

    session.in_turns(begin_anew)
    again.epoch = 1
    found = acquired(again.take()) + session.fetch_all(again)
    assert found == [(0, 0, 2)] * session.COUNT, "each record is returned once"
    assert sorted(partition for partition, _ in session.left) == list(range(session.COUNT))
    assert load_of(share).acquired == session.COUNT, "the new session has them"
    again.close()
    assert len(share.partitions) == 0


class LongFetches:
    """A topic with so many partitions that a fetch looks at them in slices of 16."""

    COUNT = 40

    def __init__(self, share: ShareLab, monkeypatch: pytest.MonkeyPatch, append: int = 0) -> None:
        self.share = share
        self.topic_id = share.broker.add_topic("many", self.COUNT)
        for partition in range(self.COUNT):
            share.states.states[GROUP, self.topic_id, partition] = StoredState(start_offset=0)

        async def fill() -> None:
            for partition in range(self.COUNT):
                share.broker.append("many", append, partition)

        if append:
            share.broker.runner.run(fill())
        monkeypatch.setattr(share_fetch_handler, "PARTITIONS_AT_ONCE", 10)
        monkeypatch.setattr(slices, "SLICE_MS", 1e-6)
        self.turn = 0
        self.looks: Counter[int] = Counter()
        self.acquisitions: Counter[int] = Counter()
        self.keys: Counter[int] = Counter()
        """The looks at partitions, the acquisitions of their records, and the keys made, in each turn."""
        known, acquire, key_of = ShareFetch._known, ShareFetch._acquire, ShareFetch._key

        def key(fetch: ShareFetch, where: TopicIdPartition) -> SharePartitionKey:
            self.keys[self.turn] += 1
            return key_of(fetch, where)

        def look(fetch: ShareFetch, where: TopicIdPartition) -> SharePartition:
            self.looks[self.turn] += 1
            return known(fetch, where)

        def acquire_counted(fetch: ShareFetch, *args: Any, **fields: Any) -> Any:
            self.acquisitions[self.turn] += 1
            return acquire(fetch, *args, **fields)

        monkeypatch.setattr(ShareFetch, "_known", look)
        monkeypatch.setattr(ShareFetch, "_acquire", acquire_counted)
        monkeypatch.setattr(ShareFetch, "_key", key)

    async def turns(self, slices_at_most: int) -> None:
        """Lets so many slices run, and counts turns of the event loop."""
        for _ in range(slices_at_most * slices.TURNS_OF_OTHERS):
            await self._turn()

    async def until(self, begun: Counter[int]) -> None:
        """Calls for turns until some of this has happened."""
        while not begun:
            await self._turn()

    async def _turn(self) -> None:
        self.turn += 1
        await asyncio.sleep(0)

    def send(self, member: Member, epoch: int = 0, **fields: Any) -> None:
        """Sends a fetch of all partitions within the event loop."""
        wanted = [share_fetch.FetchPartition(partition, []) for partition in range(self.COUNT)]
        sizes = {"max_wait_ms": 500, "min_bytes": 1, "max_records": 10_000, "max_bytes": 1 << 20, **fields}
        topics = [share_fetch.FetchTopic(self.topic_id, [] if epoch else wanted)]
        request = ShareFetchRequest(GROUP, member.name, epoch, topics=topics, batch_size=1, **sizes)
        answer = self.share.broker.handle(ApiKey.SHARE_FETCH, request, member.context())
        member.answers += [answer] if answer is not PARKED else []

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.share.broker.runner.run(work)


def test_a_fetch_of_many_partitions_does_not_hold_up_others(
    share: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, member = LongFetches(share, monkeypatch), share.member("one")

    async def fetch() -> None:
        lab.send(member)
        await lab.turns(30)
        assert sum(lab.looks.values()) == lab.COUNT
        share.broker.append("many", 1, 30)
        await lab.turns(30)

    lab.run(fetch())
    assert acquired(member.take()) == [(0, 0, 1)]
    assert sum(lab.acquisitions.values()) == lab.COUNT
    assert max(lab.acquisitions.values()) <= slices.STEPS_BETWEEN_READINGS + 1
    assert max(lab.looks.values()) <= slices.STEPS_BETWEEN_READINGS
    assert max(lab.keys.values()) <= 2 * slices.STEPS_BETWEEN_READINGS


@pytest.mark.parametrize("min_bytes", [1, 100])
def test_a_change_during_a_look_is_not_missed(
    share: ShareLab, monkeypatch: pytest.MonkeyPatch, min_bytes: int
) -> None:
    lab, member = LongFetches(share, monkeypatch), share.member("one")

    async def fetch() -> None:
        lab.send(member, max_wait_ms=0)
        await lab.turns(30)
        lab.looks.clear()
        lab.send(member, 1, min_bytes=min_bytes)
        await lab.until(lab.looks)
        assert sum(lab.looks.values()) < lab.COUNT
        share.broker.append("many", 10, 0)  # the look is past this partition
        await lab.turns(60)

    lab.run(fetch())
    assert acquired(member.take()) == []
    assert acquired(member.take())[-1][1] == 9


def test_a_fetch_whose_session_grows_beyond_one_turn_is_answered(
    share: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, member = LongFetches(share, monkeypatch), share.member("one")

    async def fetch() -> None:
        wanted = [share_fetch.FetchTopic(lab.topic_id, [share_fetch.FetchPartition(0, [])])]
        request = ShareFetchRequest(GROUP, "one", 0, max_wait_ms=500, max_records=10, topics=wanted)
        assert share.broker.handle(ApiKey.SHARE_FETCH, request, member.context()) is PARKED
        await lab.turns(30)
        others = [share_fetch.FetchPartition(at, []) for at in range(1, lab.COUNT)]
        wanted = [share_fetch.FetchTopic(lab.topic_id, others)]
        request = ShareFetchRequest(GROUP, "one", 1, max_wait_ms=0, max_records=10, topics=wanted)
        assert share.broker.handle(ApiKey.SHARE_FETCH, request, member.context()) is PARKED
        await lab.turns(30)
        assert acquired(member.take()) == []
        share.broker.append("many", 1, 0)
        await lab.turns(60)

    lab.run(fetch())
    assert acquired(member.take()) == [(0, 0, 1)]


def test_the_end_of_the_session_ends_an_answer_in_slices(
    share: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, member = LongFetches(share, monkeypatch, append=1), share.member("one")

    async def fetch() -> None:
        lab.send(member, max_wait_ms=0)  # begins to read the states
        await lab.turns(30)
        member.answers.clear()
        lab.acquisitions.clear()
        lab.send(member, 1, max_wait_ms=0)
        await lab.until(lab.acquisitions)
        assert sum(lab.acquisitions.values()) < lab.COUNT
        share.partitions.end_sessions([SessionKey(GROUP, "one")])
        await lab.turns(60)

    lab.run(fetch())
    assert len(acquired(member.take())) == sum(lab.acquisitions.values()) < lab.COUNT
    assert len(share.partitions) == 0, "nothing is acquired for a session that has ended"


def test_a_fetch_of_a_lost_connection_does_not_begin_to_wait(
    share: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, member = LongFetches(share, monkeypatch), share.member("one")
    other = share.member("one")  # the same member over a connection that did not open the session

    async def fetch() -> None:
        lab.send(member, max_wait_ms=0)
        await lab.turns(30)
        lab.send(other, 1)
        other.is_closed = True
        await lab.turns(30)

    lab.run(fetch())
    assert len(share.broker.broker.waiting.fetch) == 0


def test_an_answer_to_a_lost_connection_releases_its_files(
    share: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, member = LongFetches(share, monkeypatch, append=1), share.member("one")
    released: list[object] = []
    monkeypatch.setattr(share_fetch_handler, "release_files", released.extend)

    async def fetch() -> None:
        lab.send(member, max_wait_ms=0)
        await lab.turns(30)
        lab.acquisitions.clear()
        lab.send(member, 1, max_wait_ms=0)
        (*_, context) = member.contexts
        context.route.encode_in_slices = encode
        await lab.until(lab.acquisitions)
        _lose(member)
        await lab.turns(60)

    async def encode(context: RequestContext, answer: Any) -> EncodedBody:
        return EncodedBody([b"body"])

    lab.run(fetch())
    assert released == [b"body"]


class LongAcknowledgement:
    """A member that has acquired a record of each of many partitions, and acknowledges them in slices."""

    def __init__(self, share: ShareLab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.share = share
        self.lab, self.member = LongFetches(share, monkeypatch, append=2), share.member("one")
        monkeypatch.setattr(share_requests, "PARTITIONS_AT_ONCE", 10)
        self.begun: Counter[int] = Counter()
        """The acknowledgements that began in each turn."""
        acknowledge = SharePartition.acknowledge

        def counted(found: SharePartition, *args: Any) -> Any:
            self.begun[self.lab.turn] += 1
            return acknowledge(found, *args)

        monkeypatch.setattr(SharePartition, "acknowledge", counted)

        async def fetch() -> None:
            for epoch in range(2):
                self.lab.send(self.member, epoch, max_wait_ms=0)
                await self.lab.turns(30)

        self.lab.run(fetch())
        assert acquired(self.member.take()) == []
        assert acquired(self.member.take()) == [(0, 1, 1)] * self.lab.COUNT

    async def send(self, api: Any, epoch: int) -> None:
        """Acknowledges the first record of each partition, and calls for turns meanwhile."""
        if api is share_fetch:
            parts: list[Any] = [
                share_fetch.FetchPartition(at, [share_fetch.AcknowledgementBatch(0, 0, [ACCEPT])])
                for at in range(self.lab.COUNT)
            ]
            topics: list[Any] = [share_fetch.FetchTopic(self.lab.topic_id, parts)]
            request: Any = ShareFetchRequest(GROUP, "one", epoch, max_wait_ms=0, topics=topics)
        else:
            parts = [
                share_acknowledge.AcknowledgePartition(
                    at, [share_acknowledge.AcknowledgementBatch(0, 0, [ACCEPT])]
                )
                for at in range(self.lab.COUNT)
            ]
            topics = [share_acknowledge.AcknowledgeTopic(self.lab.topic_id, parts)]
            request = ShareAcknowledgeRequest(GROUP, "one", epoch, topics=topics)
        answering = self.share.broker.handle(request.API_KEY, request, self.member.context())
        task = asyncio.ensure_future(answering)
        await self.lab.turns(40)
        answer = await task
        self.member.answers += [answer] if answer is not PARKED else []


@pytest.mark.parametrize("epoch", [2, -1])
@pytest.mark.parametrize("api", [share_fetch, share_acknowledge])
def test_acknowledgements_of_many_partitions_do_not_hold_up_others(
    share: ShareLab, monkeypatch: pytest.MonkeyPatch, api: Any, epoch: int
) -> None:
    long = LongAcknowledgement(share, monkeypatch)
    long.lab.run(long.send(api, epoch))
    assert sum(long.begun.values()) == long.lab.COUNT
    assert max(long.begun.values()) == slices.STEPS_BETWEEN_READINGS
    parts = [part for topic in long.member.take().responses for part in topic.partitions]
    error = "acknowledge_error_code" if api is share_fetch else "error_code"
    assert [getattr(part, error) for part in parts] == [ErrorCode.NONE] * long.lab.COUNT
    long.member.close()
    other = share.member("two")

    async def fetch() -> None:
        for number in range(2):
            long.lab.send(other, number, max_wait_ms=0)
            await long.lab.turns(40)

    long.lab.run(fetch())
    found = acquired(other.take()) + acquired(other.take())
    assert found == [(1, 1, 2)] * long.lab.COUNT, "what was not acknowledged came back once"


def test_a_session_that_another_one_replaced_is_not_closed_again(
    share: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, again = LongAcknowledgement(share, monkeypatch), share.member("one")

    async def close_and_begin_anew() -> None:
        closing = asyncio.ensure_future(long.send(share_acknowledge, -1))
        await long.lab.until(long.begun)
        assert sum(long.begun.values()) < long.lab.COUNT
        long.lab.send(again, max_wait_ms=0)
        await closing

    long.lab.run(close_and_begin_anew())
    assert [session.connection for session in share.partitions.sessions] == [again]


def test_a_partition_that_an_acknowledgement_repeats_is_answered_once(from_start: ShareLab) -> None:
    from_start.append(3)
    member = from_start.member("one")
    member.fetch()
    parts = [
        share_acknowledge.AcknowledgePartition(0, [share_acknowledge.AcknowledgementBatch(at, at, [ACCEPT])])
        for at in range(3)
    ]
    topics = [share_acknowledge.AcknowledgeTopic(from_start.topic_id, [part]) for part in parts]
    member.send(ApiKey.SHARE_ACKNOWLEDGE, ShareAcknowledgeRequest(GROUP, "one", 1, topics=topics))
    ((part,),) = [topic.partitions for topic in member.take().responses]
    assert part.error_code == ErrorCode.NONE
    assert load_of(from_start).accepted == 3
    assert len(from_start.states.writes) == 1


def test_the_ranges_of_a_share_partition_count_as_steps_of_its_release(
    from_start: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_start.append(2)
    member = from_start.member("one")
    member.fetch()
    monkeypatch.setattr(share_partitions, "RANGES_OF_A_STEP", 1)
    (key,) = from_start.partitions._partitions
    from_start.partitions._unreleased[SessionKey(GROUP, "one")] = {key}
    assert from_start.partitions._partitions[key].range_count == 1

    async def release() -> int:
        return len(list(from_start.partitions._release_all()))

    assert from_start.broker.runner.run(release()) == 2


def test_a_fetch_that_outlives_its_session_acquires_nothing(from_start: ShareLab) -> None:
    one, two = from_start.member("one"), from_start.member("two")
    one.fetch(max_wait_ms=0)
    one.send_fetch()
    one.fetch(epoch=-1)
    from_start.append(2)
    assert acquired(two.fetch()) == [(0, 1, 1)]
    two.close()
    one.close()
    assert len(from_start.partitions) == 0, "nothing is remembered without members"


def test_a_client_above_its_quota_acquires_nothing_over_another_connection(from_start: ShareLab) -> None:
    entry = ClientQuotaEntry(QuotaEntity((("client-id", "test"),)), {QuotaKind.FETCH: 2.0})
    quotas = ClientQuotas(Samples(11, 1_000), Samples(11, 1_000))
    quotas.update({entry.key: entry})

    def charge() -> Charge:
        return Charge(quotas, quotas.of_client(ANONYMOUS, "test", now_ms()), 0)

    from_start.append(3)
    from_start.append(3)
    first, second = from_start.member("first"), from_start.member("second")
    first.charge = second.charge = charge
    assert acquired(first.fetch(max_records=1)) == [(0, 2, 1)]
    answer = second.fetch()
    assert answer.responses == []
    second.charge = None  # the quota is the reason
    assert acquired(second.fetch()) == [(3, 5, 1)]


def test_epochs(from_start: ShareLab) -> None:
    member = from_start.member("one")
    assert member.fetch(epoch=3).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=0) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    member.fetch(max_wait_ms=0)
    assert member.fetch(epoch=5).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch((0, 0, ACCEPT), epoch=0).error_code == ErrorCode.INVALID_REQUEST


def test_the_number_of_sessions_is_bounded(make_broker: Callable[..., InMemoryBroker]) -> None:
    lab = ShareLab(make_broker({"group.share.max.share.sessions": "1"}))
    lab.member("one").fetch(max_wait_ms=0)
    assert lab.member("two").fetch(max_wait_ms=0).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED


def test_the_records_of_an_evicted_session_go_to_others(make_broker: Callable[..., InMemoryBroker]) -> None:
    lab = ShareLab(make_broker({"group.share.max.share.sessions": "3"}))
    lab.states.states[GROUP, lab.topic_id, 0] = StoredState(start_offset=0)
    lab.append(1)
    one, two, other, last = (lab.member(name) for name in ("one", "two", "other", "last"))
    other.budget_key, last.budget_key = "10.0.0.2", "10.0.0.3"
    assert acquired(one.fetch()) == [(0, 0, 1)]
    for member in (two, other):
        assert member.fetch(max_wait_ms=0).error_code == ErrorCode.NONE
    assert acquired(last.fetch()) == [(0, 0, 2)]
    assert one.fetch().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert len(lab.partitions.sessions) == 3


@pytest.mark.parametrize(
    "batches",
    [
        [(1, 0, [1])],
        [(0, 0, [])],
        [(0, 2, [1, 1])],
        [(0, 0, [5])],
        [(0, 0, [-1])],
        [(0, 1, [1]), (1, 1, [1])],
    ],
)
def test_malformed_acknowledgements_are_refused(
    from_start: ShareLab, batches: list[tuple[int, int, list[int]]]
) -> None:
    from_start.append(4)
    member = from_start.member("one")
    member.fetch()
    wire = [share_fetch.AcknowledgementBatch(*batch) for batch in batches]
    topics = [share_fetch.FetchTopic(from_start.topic_id, [share_fetch.FetchPartition(0, wire)])]
    answer = member.fetch(topics=topics, max_wait_ms=0)
    assert part_of(answer).acknowledge_error_code == ErrorCode.INVALID_REQUEST


def test_an_unknown_topic(from_start: ShareLab) -> None:
    topics = [share_fetch.FetchTopic(UUID(int=5), [share_fetch.FetchPartition(0)])]
    answer = from_start.member("one").fetch(topics=topics)
    assert part_of(answer).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_read_committed_groups_skip_aborted_records(from_start: ShareLab) -> None:
    from_start.override({"share.isolation.level": "read_committed"})
    producer = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    from_start.append(2, **producer)
    member = from_start.member("one")
    member.send_fetch()
    assert not member.answers, "the transaction is open"
    replica = from_start.broker.broker.hosted.leader_replica("t", 0)

    async def abort() -> None:
        replica.append_marker(9, 0, EndTransactionMarker(False, 0), 1, from_start.broker.clock.wall_ms())
        await _settle()

    from_start.broker.runner.run(abort())
    from_start.append(1)
    if not acquired(answer := member.take()):
        answer = member.fetch()
    assert acquired(answer) == [(3, 3, 1)]


def test_the_load_of_a_group_is_shown(from_start: ShareLab) -> None:
    from_start.append(4)
    one, two = from_start.member("one"), from_start.member("two")
    one.fetch()
    assert load_of(from_start) == Load(unfinished=4, acquired=4)
    one.acknowledge((0, 0, ACCEPT), (1, 2, RELEASE))
    from_start.append(1)
    two.fetch()
    assert load_of(from_start) == Load(unfinished=4, acquired=4, accepted=1, released=2, redelivered=2)
    two.acknowledge((1, 1, REJECT))
    one.close()
    from_start.pass_time(LOCK_MS)
    assert load_of(from_start) == Load(
        unfinished=3, accepted=1, released=2, rejected=1, abandoned=1, expired=2, redelivered=2
    )


def test_an_acknowledgement_that_was_not_stored_is_not_counted(from_start: ShareLab) -> None:
    from_start.append(2)
    member = from_start.member("one")
    member.fetch()
    from_start.states.errors = [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert member.acknowledge((0, 1, ACCEPT)) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert load_of(from_start).accepted == 0


def test_the_age_is_that_of_the_oldest_batch_with_an_unfinished_record(from_start: ShareLab) -> None:
    clock = cast(Any, from_start.broker.clock)
    from_start.append(2)
    clock.advance(5_000)
    from_start.append(2)
    clock.advance(4_000)
    member = from_start.member("one")
    member.fetch()
    assert age_ms_of(from_start) == 9_000
    member.acknowledge((0, 0, ACCEPT))
    assert age_ms_of(from_start) == 9_000
    member.acknowledge((1, 1, ACCEPT))
    assert age_ms_of(from_start) == 4_000
    member.acknowledge((2, 3, ACCEPT))
    assert age_ms_of(from_start) == 0


def test_a_full_partition_is_shown(from_start: ShareLab) -> None:
    from_start.append(200)
    member = from_start.member("one")
    member.fetch(max_records=200)
    assert load_of(from_start).full_partitions == 0
    limits = from_start.partitions.find((GROUP, from_start.topic_id, 0)).limits
    from_start.append(limits.records_in_flight)
    member.fetch(max_records=limits.records_in_flight)
    assert load_of(from_start).full_partitions == 1


def test_waiting_records_and_pauses_are_shown(from_start: ShareLab) -> None:
    from_start.set_group(
        share_retry_backoff_ms="4000",
        share_breaker_failure_percentage="50",
        share_breaker_min_deliveries="1",
        share_breaker_pause_ms="9000",
    )
    from_start.append(2)
    member = from_start.member("one")
    member.fetch()
    (load,) = from_start.partitions.loads()
    assert (load.waiting, load.paused_partitions) == (0, 0)
    assert member.acknowledge((0, 1, RELEASE)) == ErrorCode.NONE
    (load,) = from_start.partitions.loads()
    assert (load.waiting, load.paused_partitions) == (2, 1)


def test_one_fetch_looks_at_a_limited_number_of_batches(
    from_start: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "MAX_BATCHES", 2)
    for _ in range(3):
        from_start.append(1)
    member = from_start.member("one")
    assert acquired(member.fetch()) == [(0, 1, 1)]
    assert acquired(member.fetch()) == [(2, 2, 1)]


def test_a_fetch_gets_whole_batches_within_its_bytes(from_start: ShareLab) -> None:
    for _ in range(4):
        from_start.append(10)
    member = from_start.member("one")
    first = member.fetch(max_bytes=1)
    assert acquired(first) == [(0, 9, 1)], "at least one batch"
    batch_bytes = len(cast(bytes, part_of(first).records))
    assert acquired(member.fetch(max_bytes=2 * batch_bytes + 1)) == [(10, 29, 1)]
    assert acquired(member.fetch()) == [(30, 39, 1)]


def test_records_that_came_back_are_read_from_their_place(from_start: ShareLab) -> None:
    for _ in range(3):
        from_start.append(2)
    one, two = from_start.member("one"), from_start.member("two")
    assert acquired(one.fetch(max_records=2)) == [(0, 1, 1)]
    assert acquired(two.fetch(max_records=2)) == [(2, 3, 1)]
    one.acknowledge((0, 1, RELEASE))
    answer = two.fetch(max_records=2)
    assert acquired(answer) == [(0, 1, 2)]
    assert batches(answer) == [(0, 1)]
    answer = two.fetch()
    assert acquired(answer) == [(4, 5, 1)]
    assert batches(answer) == [(4, 5)]


def test_of_many_waiting_fetches_those_with_records_are_answered(from_start: ShareLab) -> None:
    members = [from_start.member(f"m{number}") for number in range(4)]
    for member in members:
        member.send_fetch(max_records=1, share_acquire_mode=1)
    from_start.append(2)
    assert [len(member.answers) for member in members] == [1, 1, 0, 0]
    members[0].fetch((0, 0, ACCEPT), max_wait_ms=0)
    assert [len(member.answers) for member in members] == [1, 1, 0, 0]
    members[1].close()
    assert [len(member.answers) for member in members] == [1, 1, 1, 0]
    assert acquired(members[2].take()) == [(1, 1, 2)]


def test_an_append_asks_only_the_fetches_that_it_can_answer(
    from_start: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [from_start.member(f"m{number}") for number in range(4)]
    for member in members:
        member.send_fetch()
    asked: list[ShareFetch] = []
    is_complete = ShareFetch.is_complete_after

    def counted(fetch: ShareFetch, changed: Hashable) -> bool:
        asked.append(fetch)
        return is_complete(fetch, changed)

    monkeypatch.setattr(ShareFetch, "is_complete_after", counted)
    from_start.append(1)
    assert [len(member.answers) for member in members] == [1, 0, 0, 0]
    assert len(asked) == 1


MANY = 20


@pytest.mark.parametrize("min_bytes", [1, 700])  # a batch of one record has 69 bytes
def test_a_change_of_one_of_many_partitions_does_not_look_at_the_others(
    from_start: ShareLab, monkeypatch: pytest.MonkeyPatch, min_bytes: int
) -> None:
    topic_id = from_start.broker.add_topic("many", MANY)
    member = from_start.member("m")
    wanted = [share_fetch.FetchPartition(partition, []) for partition in range(MANY)]
    topics = [share_fetch.FetchTopic(topic_id, wanted)]
    member.send_fetch(topics=topics, min_bytes=min_bytes)
    looked_at: list[int] = []
    known = ShareFetch._known

    def counted(fetch: ShareFetch, where: TopicIdPartition) -> SharePartition:
        looked_at.append(where.partition)
        return known(fetch, where)

    monkeypatch.setattr(ShareFetch, "_known", counted)

    async def change(partition: int) -> None:
        if min_bytes > 1:
            from_start.broker.append("many", 1, partition)
        else:
            key = SharePartitionKey(GROUP, topic_id, partition)
            from_start.broker.broker.waiting.fetch.changed(key)
        await _settle()

    for partition in range(10):
        from_start.broker.runner.run(change(partition))
    assert looked_at == list(range(10))
    assert not member.answers
    from_start.broker.runner.run(change(10))
    assert len(member.answers) == (min_bytes > 1)


def test_records_that_another_member_took_do_not_end_the_wait_for_bytes(from_start: ShareLab) -> None:
    topic_id = from_start.broker.add_topic("many", 2)

    def fetch(member: Member, *partitions: int, **fields: Any) -> None:
        wanted = [share_fetch.FetchPartition(partition, []) for partition in partitions]
        member.send_fetch(topics=[share_fetch.FetchTopic(topic_id, wanted)], **fields)

    async def append(partition: int, count: int) -> None:
        from_start.broker.append("many", count, partition)
        await _settle()

    waits, takes = from_start.member("waits"), from_start.member("takes")
    fetch(waits, 0, 1, min_bytes=400)
    from_start.broker.runner.run(append(0, 30))
    assert not waits.answers
    fetch(takes, 0)
    assert len(takes.take().responses) == 1
    from_start.broker.runner.run(append(1, 30))
    assert not waits.answers
    from_start.broker.runner.run(append(0, 30))
    assert len(waits.answers) == 1


def test_waiting_fetches_are_answered_when_another_broker_leads(from_start: ShareLab) -> None:
    members = [from_start.member(f"m{number}") for number in range(2)]
    for member in members:
        member.fetch(max_wait_ms=0)
        member.send_fetch()
    from_start.become(2, 9)
    errors = [part_of(member.take()).error_code for member in members]
    assert errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


def test_the_record_limit_cuts_a_batch(from_start: ShareLab) -> None:
    from_start.append(5)
    one, two = from_start.member("one"), from_start.member("two")
    answer = one.fetch(max_records=2, share_acquire_mode=1)
    assert acquired(answer) == [(0, 1, 1)]
    assert batches(answer) == [(0, 4)], "the batch is sent whole"
    assert acquired(two.fetch(max_records=2)) == [(2, 4, 1)], "batch-optimized"
    assert one.fetch(share_acquire_mode=2).error_code == ErrorCode.INVALID_REQUEST


def test_deleted_records_are_not_delivered(from_start: ShareLab) -> None:
    from_start.append(2)
    from_start.append(2)
    member = from_start.member("one")
    assert acquired(member.fetch(max_records=1)) == [(0, 1, 1)]

    async def delete() -> None:
        from_start.broker.broker.hosted.leader_replica("t", 0).delete_records(3)
        await _settle()

    from_start.broker.runner.run(delete())
    assert acquired(member.fetch()) == [(3, 3, 1)]
    assert member.acknowledge((0, 1, ACCEPT)) == ErrorCode.NONE, "they have left the log"


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (set[ResourceType](), (ErrorCode.GROUP_AUTHORIZATION_FAILED, None)),
        ({ResourceType.GROUP}, (ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)),
        ({ResourceType.GROUP, ResourceType.TOPIC}, (ErrorCode.NONE, ErrorCode.NONE)),
    ],
)
def test_a_member_may_read_the_group_and_the_topic(
    make_broker: Callable[..., InMemoryBroker],
    monkeypatch: pytest.MonkeyPatch,
    allowed: set[ResourceType],
    expected: tuple[ErrorCode, ErrorCode | None],
) -> None:
    lab = ShareLab(make_broker({"authorizer.class.name": STANDARD_AUTHORIZER}))
    lab.states.states[GROUP, lab.topic_id, 0] = StoredState(start_offset=0)
    lab.append(1)
    asked: list[tuple[AclOperation, ResourceType, str]] = []

    def may(context: object, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        asked.append((operation, kind, name))
        return kind in allowed

    monkeypatch.setattr(lab.broker.broker.authorizer, "may", lambda *args, **_: may(*args))
    answer = lab.member("one").fetch()
    parts = [part.error_code for topic in answer.responses for part in topic.partitions]
    assert (answer.error_code, parts[0] if parts else None) == expected
    assert set(asked) <= {
        (AclOperation.READ, ResourceType.GROUP, GROUP),
        (AclOperation.READ, ResourceType.TOPIC, "t"),
    }


def test_a_disk_that_fails_is_reported_without_paths(
    from_start: ShareLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **options: object) -> None:
        raise LogStorageError("/var/lib/secret/00.log: input/output error")

    from_start.append(1)
    monkeypatch.setattr(log_reader, "acquire", fails)
    found = part_of(from_start.member("one").fetch())
    assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "secret" not in found.error_message
