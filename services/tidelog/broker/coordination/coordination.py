"""The coordinators' sessions at this broker, and the way of requests to them.

A client's request goes to the coordinator that is attached, at this broker, to the partition of the request's
shard, and that serves the shard. The answer of an owner is therefore from the time when it owned the shard:
an owner that has lost the shard has also lost its attachment at the leader (docs/adr/0014). The broker reads
only the group id or the transactional id of a request, from which the shard follows, and decodes neither the
rest of the request nor the answer. `batched.py` handles requests that name several groups or transactions.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import structlog

from tidelog.broker.cluster.controller_connection import ControllerConnection
from tidelog.broker.cluster.view import BrokerIdentity, CurrentSettings, MetadataView
from tidelog.broker.coordination.attachment import Attachment, ShardCall, ShardReads, size_bytes
from tidelog.broker.coordination.internal_topics import InternalTopics
from tidelog.broker.coordination.questions import MarkerWriter, OffsetPositions
from tidelog.broker.coordination.verification import Verification
from tidelog.broker.hosting.hosted_partitions import HostedPartitions
from tidelog.broker.requests.error_responses import refusal
from tidelog.broker.requests.request import PARKED, Answer, EncodedBody, RequestContext, RequestSource
from tidelog.broker.requests.waiting import WaitingRequests
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.slices import TaskSet, finish, in_slices
from tidelog.kernel.steps import Steps
from tidelog.kernel.timer import Timer
from tidelog.model.coordinator_shards import ShardId, ShardKind, ShareShards, shard_for
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.fair_budget import BudgetUse, FairBudget, Holding, client_key
from tidelog.model.topics import (
    MAX_REMEMBERED_NAME_CHARS,
    UNTOLD_TOPICS,
    DescribableTopics,
    TopicPartition,
)
from tidelog.rpc.coordinator_session import (
    TOPICS_NEEDED,
    AnswerRequest,
    AppendToShard,
    AskOffsets,
    AskProducerIds,
    AskShareStates,
    AttachShard,
    DetachShard,
    FromBroker,
    Hello,
    Item,
    MarkersWritten,
    OffsetsTold,
    ProducerIdsTold,
    ReadShard,
    ServeShards,
    SessionLine,
    ShardLost,
    ShareStatesTold,
    TrimShard,
    Welcome,
    WriteMarkers,
)
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey, api_spec
from tidelog.wire.malformed import MalformedMessageError
from tidelog.wire.primitives import read_uvarint
from tidelog.wire.schema import Buffer

if TYPE_CHECKING:
    from tidelog.broker.coordination.share_state import ShareStateClient

MAX_SESSIONS: Final = 100
MAX_CALL_BYTES: Final = 64 * 1024 * 1024
"""The size of the requests that one coordinator has not answered, including parked JoinGroups, which clients
share fairly. An eighth is for requests of this broker. Requests without room are refused with a retriable
error. They are kept because a refusal repeats parts of its request. The coordinator's queue has no limit of
its own and relies on this one.
"""
MAX_TOLD_NAMES: Final = 100_000
"""The topic names that go with these requests, because a regular expression matches only topics that the
member may describe. They take up to 25 MB of the session's MAX_UNSENT_BYTES, and clients share them fairly.
One request may always have its names. Further ones are refused with a retriable error; requests without
names are not affected.
"""
ABANDONED_MS: Final = 1_000
"""The time for which a request counts after its client has gone: the coordinator has then taken it."""
MAX_QUESTIONS: Final = 1_000
"""The requests of one coordinator (markers, producer ids, offsets) that this broker works on at a time."""

HELD_CHECKS_PER_TIMEOUT: Final = 10
"""A held answer is refused at most a tenth of `offsets.commit.timeout.ms` late."""

AFTER_START_MS: Final = 10_000
"""The time after a start in which OffsetFetch is not refused with NOT_COORDINATOR (docs/adr/0080). It is the
longest pause of librdkafka between two attempts to connect (`reconnect.backoff.max.ms`).
"""

_INT16: Final = struct.Struct(">h")

_log = structlog.get_logger(__name__)
_shard_for = lru_cache(maxsize=16_384)(shard_for)
_share_shards = lru_cache(maxsize=64)(ShareShards)


class _ProtocolError(Exception):
    """The coordinator broke the protocol of the session, which ends."""


class CoordinatorSession:
    """The broker's end of one coordinator's session. It is a `SessionEnd`."""

    def __init__(self, coordination: Coordination, line: SessionLine) -> None:
        self._coordination = coordination
        self.line = line
        self.coordinator_id: int | None = None
        """None until the coordinator has sent Hello."""
        self.serving: dict[ShardId, int] = {}
        """The shards that this coordinator serves, with their shard epochs."""
        self.attachments: dict[int, Attachment] = {}
        self.calls: dict[int, ShardCall] = {}
        self.is_closed = False
        self.call_budget = FairBudget(MAX_CALL_BYTES, MAX_CALL_BYTES // 8)
        self.names_budget = FairBudget(MAX_TOLD_NAMES)
        self._next_request_id = 0
        self._reads = ShardReads(self)
        self._questions: TaskSet[None] = TaskSet()
        self._marker_writes = 0

    def received(self, items: Sequence[Item]) -> None:
        for item in items:
            if self.is_closed:
                return
            try:
                self._take(item)
            except _ProtocolError as error:
                _log.error(
                    "a coordinator broke the session's protocol; the session is closed",
                    coordinator_id=self.coordinator_id,
                    reason=str(error),
                )
                self.end()
            except Exception:  # noqa: BLE001 - a bug: this session ends, the broker continues
                _log.exception(
                    "an item of a coordinator's session failed; the session is closed",
                    coordinator_id=self.coordinator_id,
                    item=type(item).__name__,
                )
                self.end()

    def closed(self) -> None:
        if not self.is_closed:
            self._shut()

    def pass_on(self, shard: ShardId, call: ShardCall, attachment: Attachment | None) -> ErrorCode:
        """Sends the call's request to the coordinator. Returns NONE, or why the request was not sent."""
        request_id = self._next_request_id
        frame = call.frame(request_id, shard)
        holding = Holding(lambda: self.finish(request_id, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        now_s = self._coordination.monotonic_s()
        key = client_key(frame.principal, frame.host)
        told_names = min(call.told_names, MAX_TOLD_NAMES)
        if told_names:
            call.names_holding = Holding(holding.evict)
            if not self.names_budget.resize(call.names_holding, key, told_names, now_s):
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if not self.call_budget.resize(holding, key, size_bytes(frame), now_s):
            if call.names_holding is not None:
                self.names_budget.forget(call.names_holding, now_s)
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._next_request_id += 1
        self.calls[request_id] = call
        call.holding = holding
        call.on_abandoned = lambda: self._coordination.finish_later(self, request_id)
        if attachment is not None:
            call.attachment = attachment
            attachment.calls[request_id] = call
        self.line.send(frame)
        return ErrorCode.NONE

    def finish(self, request_id: int, body: bytes | None, error: ErrorCode) -> None:
        """Ends the call with its answer. Does nothing if the call has ended before."""
        call = self.calls.pop(request_id, None)
        if call is None:
            return
        now_s = self._coordination.monotonic_s()
        if call.holding is not None:
            self.call_budget.forget(call.holding, now_s)
        if call.names_holding is not None:
            self.names_budget.forget(call.names_holding, now_s)
        if call.attachment is not None:
            call.attachment.calls.pop(request_id, None)
        call.answered(body, error)

    def lose(self, attachment: Attachment, error: ErrorCode, message: str = "") -> None:
        """Ends the attachment and tells the coordinator why. Does nothing if it has ended before."""
        if attachment.is_ended:
            return
        self.line.send(ShardLost(attachment.number, error, message))
        self._end_attachment(attachment)

    def end(self) -> None:
        """Closes the session and refuses its calls."""
        if not self.is_closed:
            self._shut()
            self.line.close()

    def _take(self, item: Item) -> None:
        if self.coordinator_id is None:
            if type(item) is not Hello:
                raise _ProtocolError(f"{type(item).__name__} before Hello")
            self.coordinator_id = item.coordinator_id
            self._coordination.greeted(self)
            identity = self._coordination.identity
            self.line.send(Welcome(identity.broker_id, identity.broker_epoch))
            return
        match item:
            case AnswerRequest():
                self._take_answer(item)
            case AppendToShard():
                self._take_append(item)
            case ReadShard():
                self._take_read(item)
            case AttachShard():
                self._take_attach(item)
            case DetachShard():
                self._take_detach(item)
            case TrimShard():
                self._take_trim(item)
            case ServeShards():
                self.serving = {served.shard: served.shard_epoch for served in item.shards}
                self._coordination.serving_changed()
            case WriteMarkers():
                self._take_markers(item)
            case AskProducerIds():
                self._work_on(self._send_producer_ids(item.call_id))
            case AskOffsets():
                self._work_on(self._send_offsets(item))
            case AskShareStates():
                self._work_on(self._send_share_states(item))
            case _:
                raise _ProtocolError(
                    f"{type(item).__name__} is not an item for a broker, or the session has begun"
                )

    def _take_answer(self, item: AnswerRequest) -> None:
        call = self.calls.get(item.request_id)
        if call is None:
            return  # It was refused meanwhile.
        if item.body is None:
            self.finish(item.request_id, None, item.error or ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        elif item.hold is None:
            self.finish(item.request_id, item.body, ErrorCode.NONE)
        else:
            attachment = self.attachments.get(item.hold.attachment)
            if attachment is None:
                self.finish(item.request_id, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            else:
                self._coordination.hold(attachment, item.request_id, call, item.body, item.hold.offset)

    def _take_append(self, item: AppendToShard) -> None:
        attachment = self.attachments.get(item.attachment)
        if attachment is None:
            return  # The attachment has ended, and its owner does not know yet.
        if attachment.untaken_bytes:
            self._reads.taken(attachment)
        try:
            attachment.append(item, self._coordination.clock.wall_ms())
        except KafkaError as error:
            _log.warning(
                "an append of a coordinator is refused; its attachment ends",
                shard=str(attachment.shard),
                reason=str(error),
            )
            self.lose(attachment, error.code, str(error))

    def _take_trim(self, item: TrimShard) -> None:
        attachment = self.attachments.get(item.attachment)
        if attachment is not None:
            try:
                attachment.trim(item.offset)
            except KafkaError as error:
                self.lose(attachment, error.code, str(error))

    def _take_read(self, item: ReadShard) -> None:
        attachment = self.attachments.get(item.attachment)
        if attachment is not None:
            try:
                self._reads.ask(attachment, item)
            except KafkaError as error:
                self.lose(attachment, error.code, str(error))

    def _take_attach(self, item: AttachShard) -> None:
        if item.attachment in self.attachments:
            raise _ProtocolError(f"attachment {item.attachment} exists already")
        try:
            attachment = self._coordination.attach(self, item)
        except KafkaError as error:
            self.line.send(ShardLost(item.attachment, error.code, str(error)))
            return
        self.attachments[item.attachment] = attachment
        attachment.begin()

    def _take_detach(self, item: DetachShard) -> None:
        attachment = self.attachments.get(item.attachment)
        if attachment is not None:
            self._end_attachment(attachment)

    def _take_markers(self, item: WriteMarkers) -> None:
        if self._marker_writes >= MAX_QUESTIONS:
            busy = tuple((ErrorCode.NOT_ENOUGH_REPLICAS,) * len(m.partitions) for m in item.markers)
            self.line.send(MarkersWritten(item.call_id, busy))
            return
        self._marker_writes += 1

        def on_written(errors: tuple[tuple[ErrorCode, ...], ...]) -> None:
            self._marker_writes -= 1
            self._send(MarkersWritten(item.call_id, errors))

        self._coordination.markers.write(item.markers, on_written)

    async def _send_producer_ids(self, call_id: int) -> None:
        first, count = 0, 0
        try:
            block = await self._coordination.controller.allocate_producer_ids()
            first, count = block.first, block.count
        except (KafkaError, ConnectionError) as error:
            _log.warning("the controller gave no producer ids for a coordinator", reason=str(error))
        self._send(ProducerIdsTold(call_id, first, count))

    async def _send_offsets(self, item: AskOffsets) -> None:
        self._send(OffsetsTold(item.call_id, await self._coordination.offsets.positions(item.positions)))

    async def _send_share_states(self, item: AskShareStates) -> None:
        body = await self._coordination.share_state.pass_on(item.api_key, item.api_version, item.body)
        self._send(ShareStatesTold(item.call_id, body))

    def _work_on(self, question: Coroutine[object, None, None]) -> None:
        if len(self._questions) >= MAX_QUESTIONS:
            question.close()
            raise _ProtocolError(f"more than {MAX_QUESTIONS} questions at a time")
        self._questions.start(question).add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug: the coordinator would wait for an answer forever
            _log.error(
                "answering a coordinator failed; its session is closed",
                coordinator_id=self.coordinator_id,
                exc_info=error,
            )
            self.end()

    def _send(self, item: FromBroker) -> None:
        if not self.is_closed:
            self.line.send(item)

    def _end_attachment(self, attachment: Attachment) -> None:
        del self.attachments[attachment.number]
        self._coordination.detached(attachment)
        attachment.end(self._coordination.refusal(attachment.shard))
        self._reads.taken(attachment)

    def _shut(self) -> None:
        self.is_closed = True
        self.serving = {}
        self._coordination.forget(self)
        for attachment in tuple(self.attachments.values()):
            self._end_attachment(attachment)
        for request_id in tuple(self.calls):
            self.finish(request_id, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self._questions.cancel()


class Coordination:
    """Accepts coordinators' sessions and passes requests on to the coordinators: a `SessionAcceptor`."""

    def __init__(
        self,
        identity: BrokerIdentity,
        settings: CurrentSettings,
        metadata: MetadataView,
        hosted: HostedPartitions,
        controller: ControllerConnection,
        waiting: WaitingRequests,
        clock: Clock,
        timer: Timer,
    ) -> None:
        self.identity = identity
        self.controller = controller
        self.clock = clock
        timeout_ms = settings.broker.request_timeout_ms
        self.markers = MarkerWriter(hosted, waiting.produce, clock, timer, self.pass_on, timeout_ms)
        self.offsets = OffsetPositions(hosted)
        self.topics = InternalTopics(settings, metadata, controller.api)
        self.verification = Verification(self.ask_transaction_owner, timer, timeout_ms)
        self._share_state: ShareStateClient | None = None
        self._metadata = metadata
        self._hosted = hosted
        self._waiting = waiting
        self._sessions: dict[CoordinatorSession, None] = {}
        self._evicted_calls = 0  # of sessions that have ended
        self._evicted_names = 0
        self._attached: dict[ShardId, Attachment] = {}
        self._highest_epochs: dict[ShardId, int] = {}
        self._serving: dict[ShardId, CoordinatorSession] = {}
        self._searches: TaskSet[None] = TaskSet()
        self._is_stopped = False
        self._serving_changed = asyncio.Event()
        self._timer = timer
        self._commit_timeout_ms = settings.broker.offsets_commit_timeout_ms
        self._checks_held = False
        self._started_ms: MonotonicMs | None = None

    def monotonic_s(self) -> float:
        """Returns the time of the budgets."""
        return self._timer.monotonic_ms() / 1000

    def finish_later(self, session: CoordinatorSession, request_id: int) -> None:
        """Ends a call whose client has gone, once the coordinator has taken it."""
        self._timer.add_after(
            lambda: session.finish(request_id, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ABANDONED_MS
        )

    def started(self) -> None:
        """Call this when the broker begins to listen for clients."""
        self._started_ms = self._timer.monotonic_ms()

    @property
    def share_state(self) -> ShareStateClient:
        """The states of share partitions."""
        if self._share_state is None:
            # The import is here because it loads the messages of five APIs, which a start does not need.
            from tidelog.broker.coordination.share_state import ShareStateClient

            self._share_state = ShareStateClient(self, self._timer)
        return self._share_state

    def accept(self, line: SessionLine) -> CoordinatorSession:
        session = CoordinatorSession(self, line)
        if self._is_stopped or len(self._sessions) >= MAX_SESSIONS:
            _log.warning("a coordinator's session is refused: too many are open, or the broker stops")
            session.end()
        else:
            self._sessions[session] = None
        return session

    def greeted(self, session: CoordinatorSession) -> None:
        """Ends the sessions that the same coordinator had before: their connections are dead."""
        for other in tuple(self._sessions):
            if other is not session and other.coordinator_id == session.coordinator_id:
                other.end()

    def forget(self, session: CoordinatorSession) -> None:
        """Removes a session that has ended."""
        if session in self._sessions:
            del self._sessions[session]
            self._evicted_calls += session.call_budget.evicted_total
            self._evicted_names += session.names_budget.evicted_total
        self.serving_changed()

    def serving_changed(self) -> None:
        """Finds the coordinator that serves each shard: the one with the highest shard epoch, and of equal
        ones the one with the latest session.
        """
        serving: dict[ShardId, tuple[int, CoordinatorSession]] = {}
        for session in self._sessions:
            for shard, epoch in session.serving.items():
                known = serving.get(shard)
                if known is None or epoch >= known[0]:
                    serving[shard] = epoch, session
        self._serving = {shard: session for shard, (_, session) in serving.items()}
        self._serving_changed.set()
        self._serving_changed = asyncio.Event()

    def hold(
        self, attachment: Attachment, request_id: int, call: ShardCall, body: bytes, offset: int
    ) -> None:
        """Keeps an answer until its records are replicated; one of a group at most for
        `offsets.commit.timeout.ms`, as in Kafka.
        """
        attachment.hold(request_id, call, body, offset, self._timer.monotonic_ms())
        if attachment.held_count and attachment.shard.kind is ShardKind.GROUP and not self._checks_held:
            self._checks_held = True
            self._check_held_later()

    def _check_held_later(self) -> None:
        interval_ms = max(1, self._commit_timeout_ms // HELD_CHECKS_PER_TIMEOUT)
        self._timer.add_after(self._check_held, interval_ms)

    def _check_held(self) -> None:
        expired_ms = MonotonicMs(self._timer.monotonic_ms() - self._commit_timeout_ms)
        groups = [held for held in self._attached.values() if held.shard.kind is ShardKind.GROUP]
        for attachment in groups:
            attachment.refuse_held(expired_ms)
        self._checks_held = any(attachment.held_count for attachment in groups)
        if self._checks_held:
            self._check_held_later()

    async def until_served(self, shards: Collection[ShardId], timeout_ms: int) -> None:
        """Returns when coordinators serve all of `shards`, wherever these are led, or after `timeout_ms`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not all(shard in self._serving for shard in shards):
                    await self._serving_changed.wait()
        except TimeoutError:
            return

    def attachment_counts(self) -> dict[str, tuple[int, int]]:
        """Returns, by kind of shard, how many attachments there are and how many answers wait until their
        records are replicated. Any thread may call it.
        """
        attached = tuple(self._attached.values())
        return {
            kind.value: (
                sum(attachment.shard.kind is kind for attachment in attached),
                sum(attachment.held_count for attachment in attached if attachment.shard.kind is kind),
            )
            for kind in ShardKind
        }

    def budget_uses(self) -> dict[str, BudgetUse]:
        """Returns the use of the budgets of all sessions together, by name. Any thread may call it."""
        sessions = tuple(self._sessions)
        return {
            "coordinator_calls": _sum([session.call_budget.use for session in sessions], self._evicted_calls),
            "coordinator_call_names": _sum(
                [session.names_budget.use for session in sessions], self._evicted_names
            ),
        }

    def stop(self) -> None:
        """Ends all sessions and refuses their calls. No further session is accepted. The calls of shards that
        another broker leads by now were refused when it took over.
        """
        self._is_stopped = True
        for session in tuple(self._sessions):
            session.end()

    def attach(self, session: CoordinatorSession, item: AttachShard) -> Attachment:
        """Returns a new attachment. Raises KafkaError if this broker does not lead the partition or the shard
        has a newer owner.
        """
        shard = item.shard
        topic_partition = shard.topic_partition
        replica = self._hosted.leader_replica(*topic_partition)
        highest = self._highest_epochs.get(shard, -1)
        if item.shard_epoch < highest:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{shard} has an owner with shard epoch {highest}; {item.shard_epoch} is older",
            )
        before = self._attached.get(shard)
        if before is not None:
            before.session.lose(
                before, ErrorCode.COORDINATOR_NOT_AVAILABLE, "another coordinator has attached to the shard"
            )
        self._highest_epochs[shard] = item.shard_epoch
        attachment = Attachment(self._hosted, session, item.attachment, shard, item.shard_epoch, replica)
        self._attached[shard] = attachment
        self._waiting.observe(topic_partition, attachment)
        return attachment

    def detached(self, attachment: Attachment) -> None:
        """Removes an attachment that has ended."""
        if self._attached.get(attachment.shard) is attachment:
            del self._attached[attachment.shard]
            self._waiting.stop_observing(attachment.shard.topic_partition)

    def shard_of(self, kind: ShardKind, name: str) -> ShardId | None:
        """Returns the shard of a group or transactional id, or None if the internal topic does not exist."""
        topic = self._metadata.topics.get(kind.topic)
        if topic is None or not topic.partitions:
            return None
        find = _shard_for if len(name) <= MAX_REMEMBERED_NAME_CHARS else shard_for
        return find(kind, name, len(topic.partitions))

    def share_shard(self, group_id: str, topic_id: UUID, partition: int) -> ShardId | None:
        """Returns the shard of a share partition's state, or None if the internal topic does not exist."""
        topic = self._metadata.topics.get(ShardKind.SHARE.topic)
        if topic is None or not topic.partitions:
            return None
        return _share_shards(group_id).shard_for(topic_id, partition, len(topic.partitions))

    def led_shards(self, kind: ShardKind) -> list[ShardId]:
        """Returns the shards whose partitions this broker leads or may lead in a moment."""
        topic = self._metadata.topics.get(kind.topic)
        if topic is None:
            return []
        shards = [ShardId(kind, state.partition) for state in topic.partitions]
        return [shard for shard in shards if self._may_lead(shard.topic_partition)]

    def pass_on(self, shard: ShardId | None, call: ShardCall) -> ErrorCode:
        """Passes a client's request on to the owner of the shard. Returns NONE, or why there is no owner."""
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        attachment = self._attached.get(shard)
        if attachment is None or not attachment.is_serving:
            refused = self.refusal(shard)
            if refused is ErrorCode.NOT_COORDINATOR and self._is_told_to_wait(call.api_key):
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return refused
        return attachment.session.pass_on(shard, call, attachment)

    def _is_told_to_wait(self, api_key: int) -> bool:
        """Returns whether a client that comes to the wrong broker is told to try again. Clients were sent
        here by what was true before this broker restarted, and wait until it listens again. NOT_COORDINATOR
        for the offsets of a group ends a process with an AdminClient of librdkafka.
        """
        return (
            api_key == ApiKey.OFFSET_FETCH
            and self._started_ms is not None
            and self._timer.monotonic_ms() - self._started_ms < AFTER_START_MS
        )

    def find_topics(
        self,
        steps: Steps[DescribableTopics],
        tell: Callable[[DescribableTopics], None],
        connection: RequestSource,
    ) -> None:
        """Calls `tell` with the topics that a client may describe: at once if they are found soon."""
        # A coordinator may ask about many clients at once, so only the first of them gets a slice now.
        found = finish(steps) if self._searches else in_slices(steps)
        if isinstance(found, DescribableTopics):
            tell(found)
            return
        task = asyncio.get_running_loop().create_task(_tell_later(found, tell, connection))
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    def ask_transaction_owner(self, transactional_id: str, call: ShardCall) -> ErrorCode:
        """Passes a request of this broker on to the coordinator of a transaction. See ask_shard_owner."""
        return self.ask_shard_owner(self.shard_of(ShardKind.TRANSACTION, transactional_id), call)

    def ask_shard_owner(self, shard: ShardId | None, call: ShardCall) -> ErrorCode:
        """Passes a request of this broker on to the owner of the shard, wherever the partition is led.
        Returns NONE, or why there is no owner.
        """
        session = None if shard is None else self._serving.get(shard)
        if shard is None or session is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return session.pass_on(shard, call, None)

    def refusal(self, shard: ShardId) -> ErrorCode:
        """Returns the error for a shard that no owner serves. NOT_COORDINATOR means that another live broker
        leads the partition, as far as this broker knows. Otherwise the client is to try again: this broker
        leads the partition or is about to, or does not know who leads it now.
        """
        topic_partition = shard.topic_partition
        leader = self._hosted.leader_of(*topic_partition)
        if leader is None or leader[0] not in self._metadata.brokers or self._may_lead(topic_partition):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NOT_COORDINATOR

    def _may_lead(self, topic_partition: TopicPartition) -> bool:
        """Returns whether this broker leads the partition or knows in a moment whether it does."""
        leader = self._hosted.leader_of(*topic_partition)
        is_here = leader is not None and leader[0] == self.identity.broker_id
        return is_here or self._hosted.awaits_role(topic_partition)


def _sum(uses: Sequence[BudgetUse], evicted_before: int) -> BudgetUse:
    """Returns the use of several budgets together. `evicted_before` counts the evictions of earlier ones."""
    return BudgetUse(
        sum(use.held for use in uses),
        sum(use.total for use in uses),
        evicted_before + sum(use.evicted_total for use in uses),
    )


class NamedRequest(NamedTuple):
    """A request of which only the group id or the transactional id is decoded."""

    name: str
    body: bytes
    describable: Callable[[], Steps[DescribableTopics]] | None = None
    """Finds the topics that the client may describe. None if it may describe all topics, or if the
    coordinator need not know them.
    """


def named_decoder(api_key: int, version: int) -> codec.Decoder:
    """Returns a decoder that reads the first string of the body: the group id or transactional id."""
    is_flexible = version >= api_spec(api_key).flexible_from

    def decode(buffer: Buffer, position: int) -> tuple[NamedRequest, int]:
        body = bytes(buffer[position:])
        try:
            start, end = _string(body, 0, is_flexible)
            name = body[start:end].decode()
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise MalformedMessageError(f"{api_spec(api_key).name} v{version}: {error}") from error
        return NamedRequest(name, body), len(buffer)

    return decode


def _string(body: bytes, position: int, is_flexible: bool) -> tuple[int, int]:
    if is_flexible:
        length, start = read_uvarint(body, position)
        length -= 1
    else:
        (length,), start = _INT16.unpack_from(body, position), position + 2
    if length < 0 or start + length > len(body):
        raise MalformedMessageError("the name is null or longer than the request")
    return start, start + length


def forward_named(
    coordination: Coordination, kind: ShardKind, request: NamedRequest, context: RequestContext
) -> Answer:
    """Passes the request on. Returns a handler's result: PARKED, or the refusal."""
    if request.describable is None:
        return forward_body(coordination, kind, request.name, request.body, context)
    return _forward_restricted(coordination, kind, request, request.describable, context)


async def _tell_later(
    search: Coroutine[object, None, DescribableTopics],
    tell: Callable[[DescribableTopics], None],
    connection: RequestSource,
) -> None:
    try:
        tell(await search)
    except Exception as error:  # noqa: BLE001 - a bug: the client would wait for an answer forever
        _log.error("the search for the topics of a client failed", exc_info=error)
        connection.close()


def _forward_restricted(
    coordination: Coordination,
    kind: ShardKind,
    request: NamedRequest,
    describable: Callable[[], Steps[DescribableTopics]],
    context: RequestContext,
) -> Answer:
    """Passes on a request of a client that may not describe all topics. If the coordinator asks for them, the
    request is passed on again, with those that the client may describe.
    """
    shard, body = coordination.shard_of(kind, request.name), request.body
    api_key, version = int(context.route.api_key), context.api_version
    to_client = client_call(body, context)

    def tell(topics: DescribableTopics) -> None:
        told = ShardCall(api_key, version, body, to_client.answered, context, topics)
        error = coordination.pass_on(shard, told)
        if error:
            to_client.answered(None, error)

    def on_answered(answer: bytes | None, error: ErrorCode) -> None:
        if answer is None and error is TOPICS_NEEDED:
            coordination.find_topics(describable(), tell, context.connection)
        else:
            to_client.answered(answer, error)

    asked = ShardCall(api_key, version, body, on_answered, context, UNTOLD_TOPICS)
    refused = coordination.pass_on(shard, asked)
    if refused:
        return refusal(api_key, version, body, refused)
    context.park(on_abandoned=to_client.abandon)
    return PARKED


def forward_body(
    coordination: Coordination, kind: ShardKind, name: str, body: bytes, context: RequestContext
) -> Answer:
    """Passes on a request whose group id or transactional id the caller knows. Returns a handler's result."""
    call = client_call(body, context)
    refused = coordination.pass_on(coordination.shard_of(kind, name), call)
    if refused:
        return refusal(int(context.route.api_key), context.api_version, body, refused)
    context.park(on_abandoned=call.abandon)
    return PARKED


def client_call(body: bytes, context: RequestContext) -> ShardCall:
    """Returns a call whose answer goes to the client."""
    route = context.route
    api_key, version = int(route.api_key), context.api_version

    def on_answered(answer: bytes | None, error: ErrorCode) -> None:
        if answer is not None:
            context.reply(EncodedBody((answer,)))
            return
        try:
            context.reply(refusal(api_key, version, body, error))
        except MalformedMessageError as malformed:
            context.connection.refuse(str(malformed))

    return ShardCall(api_key, version, body, on_answered, context)
