"""The environment of a shard in tests: its partition's leader, sessions, and a core that stores numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable
from typing import Any  # Any: generated messages have no common base

from tidelog.group_coordinator.shard_core import (
    AllocateProducerId,
    AskEndOffsets,
    AskShareStates,
    ClusterImage,
    CoordinatorRecord,
    Effect,
    EffectOutcome,
    EndTransaction,
    Producer,
    ReplayedRecord,
    Reply,
    ShardCore,
    ShardDecision,
    ShardRequest,
)
from tidelog.group_coordinator.shards.shard import Shard, ShardState
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.kernel.steps import Steps, all_at_once
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import assign_offset_and_epoch, iterate_headers
from tidelog.rpc.coordinator_session import (
    AnswerRequest,
    AppendToShard,
    AttachShard,
    DetachShard,
    ForwardedToShard,
    Item,
    ReadShard,
    ShardAttached,
    ShardCommitted,
    ShardLost,
    ShardRecords,
    TrimShard,
)
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import request_encoder, response_decoder
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

SHARD = ShardId(ShardKind.GROUP, 7)
IMAGE = ClusterImage(1, {}, {})
VERSION = 4


def completed(message: object) -> Any:
    """Returns the response of a reply, for which the core may have given the steps that make it."""
    return all_at_once(message) if isinstance(message, Generator) else message


class NumberCore:
    """A core that stores one number for each group.

    A Heartbeat sets the number of its group to its generation. The member "read" receives the number as the
    throttle time, the member "park" receives no answer, and the member "fail" makes the core raise an error.
    The member "steps" receives the number as at the end of as many steps as its generation, the last of which
    fails if its group is "fail".
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.parked: list[Hashable] = []
        self.more_records: list[CoordinatorRecord] = []
        """Records of each decision on a Heartbeat beside that of its group."""
        self.is_active = False
        self.effects_done: list[tuple[Effect, int | None]] = []
        self.next_decision: ShardDecision | None = None

    def replay(self, record: ReplayedRecord, offset: int) -> None:
        self.numbers[record.key.decode()] = int(record.value or b"0")

    def replay_marker(self, producer: Producer, is_commit: bool) -> None:
        self.numbers[f"marker-{producer.producer_id}"] = int(is_commit)

    def activate(self, image: ClusterImage, now_ms: WallMs) -> ShardDecision:
        self.is_active = True
        return ShardDecision()

    def handle(self, request: ShardRequest[HeartbeatRequest], now_ms: WallMs) -> ShardDecision:
        message = request.message
        if message.member_id == "fail":
            raise RuntimeError("a bug")
        if message.member_id == "park":
            self.parked.append(request.reply_to)
            return ShardDecision()
        if message.member_id == "read":
            number = self.numbers.get(message.group_id, 0)
            return ShardDecision(replies=[Reply(request.reply_to, HeartbeatResponse(number))])
        if message.member_id == "steps":
            return ShardDecision(replies=[Reply(request.reply_to, self._read_in_steps(message))])
        self.numbers[message.group_id] = message.generation_id
        record = CoordinatorRecord(message.group_id.encode(), b"%d" % message.generation_id)
        decision = ShardDecision(records=[record], replies=[Reply(request.reply_to, HeartbeatResponse())])
        decision.records += self.more_records
        if self.next_decision is not None:
            decision.timers = self.next_decision.timers
            decision.effects = self.next_decision.effects
            self.next_decision = None
        return decision

    def _read_in_steps(self, message: HeartbeatRequest) -> Steps[HeartbeatResponse]:
        for _ in range(message.generation_id):
            yield
        if message.group_id == "fail":
            raise RuntimeError("a bug")
        return HeartbeatResponse(self.numbers.get(message.group_id, 0))

    def timer_fired(self, key: Hashable, now_ms: WallMs) -> ShardDecision:
        name = str(key)
        self.numbers[name] = now_ms
        return ShardDecision(records=[CoordinatorRecord(name.encode(), b"%d" % now_ms)])

    def effect_done(self, effect: Effect, outcome: EffectOutcome, now_ms: WallMs) -> ShardDecision:
        self.effects_done.append((effect, outcome))
        return ShardDecision()

    def image_changed(self, image: ClusterImage, now_ms: WallMs) -> ShardDecision:
        return ShardDecision()

    def deactivate(self) -> list[Reply]:
        refused = HeartbeatResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [Reply(reply_to, refused) for reply_to in self.parked]


class Answer:
    """The response that a client receives, and the number of responses, which must be one."""

    def __init__(self) -> None:
        self.count = 0
        self.message: HeartbeatResponse | None = None
        self.error = ErrorCode.NONE

    @property
    def is_good(self) -> bool:
        return self.message is not None and not self.message.error_code


class Partition:
    """The shard's partition at its leader, and the leader's end of every session.

    It follows the protocol of coordinators' sessions. Only `commit` moves the high watermark.
    """

    def __init__(self) -> None:
        self.log: list[tuple[int, int, bytes]] = []
        self.log_end_offset = 0
        self.high_watermark = 0
        self.leader_epoch = 3
        self.highest_shard_epoch = -1
        self.attached: tuple[int, Line] | None = None
        self.held: list[tuple[int, Answer, bytes]] = []
        self.asked: dict[int, Answer] = {}
        self.next_request_id = 0
        self.refuses_appends = False
        self.append_count = 0

    def request(self, line: Line, group: str, number: int, member: str = "m") -> Answer:
        """Forwards a Heartbeat over the line. `deliver_in` delivers it."""
        body = b"".join(
            request_encoder(ApiKey.HEARTBEAT, VERSION)(HeartbeatRequest(group, number, member, None))
        )
        self.next_request_id += 1
        answer = self.asked[self.next_request_id] = Answer()
        line.inbound.append(
            ForwardedToShard(
                self.next_request_id, SHARD, ApiKey.HEARTBEAT, VERSION, body, "User:ANONYMOUS", "c", "h"
            )
        )
        return answer

    def take(self, line: Line, item: Item) -> None:
        match item:
            case AttachShard():
                self._attach(line, item)
            case ReadShard() if self._is_attached(line, item.attachment):
                self._read(line, item)
            case AppendToShard() if self._is_attached(line, item.attachment):
                self._append(line, item)
            case TrimShard() if self._is_attached(line, item.attachment):
                assert item.offset <= self.high_watermark
                self.log = [batch for batch in self.log if batch[1] > item.offset]
            case DetachShard() if self._is_attached(line, item.attachment):
                self._end()
            case AnswerRequest():
                self._answer(line, item)

    def commit(self, high_watermark: int) -> None:
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log_end_offset))
        if self.attached is not None:
            number, line = self.attached
            line.inbound.append(ShardCommitted(number, self.high_watermark))
        due = [held for held in self.held if held[0] <= self.high_watermark]
        self.held = [held for held in self.held if held[0] > self.high_watermark]
        for _, answer, body in due:
            _respond(answer, body)

    def change_leader(self) -> None:
        """Elects a leader that has only the records below the high watermark."""
        self.lose(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.leader_epoch += 1
        self.log = [batch for batch in self.log if batch[1] <= self.high_watermark]
        self.log_end_offset = self.log[-1][1] if self.log else 0
        assert self.log_end_offset == self.high_watermark

    def lose(self, error: ErrorCode) -> None:
        if self.attached is not None:
            number, line = self.attached
            self._end()
            line.inbound.append(ShardLost(number, error))

    def _is_attached(self, line: Line, attachment: int) -> bool:
        return self.attached == (attachment, line)

    def _attach(self, line: Line, item: AttachShard) -> None:
        if item.shard_epoch < self.highest_shard_epoch:
            line.inbound.append(ShardLost(item.attachment, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        self.lose(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.highest_shard_epoch = item.shard_epoch
        self.attached = (item.attachment, line)
        line.inbound.append(
            ShardAttached(item.attachment, self.leader_epoch, 0, self.log_end_offset, self.high_watermark)
        )

    def _read(self, line: Line, item: ReadShard) -> None:
        found = next((batch for batch in self.log if batch[1] > item.from_offset), None)
        records, next_offset = (b"", self.log_end_offset) if found is None else (found[2], found[1])
        line.inbound.append(
            ShardRecords(item.attachment, item.from_offset, next_offset, self.log_end_offset, records)
        )

    def _append(self, line: Line, item: AppendToShard) -> None:
        if (
            self.refuses_appends
            or item.leader_epoch != self.leader_epoch
            or item.expected_offset != self.log_end_offset
        ):
            self.lose(ErrorCode.NOT_ENOUGH_REPLICAS)
            return
        self.append_count += 1
        batches = bytearray(item.batches)
        for position, header in iterate_headers(bytes(batches)):
            base = self.log_end_offset
            assign_offset_and_epoch(batches, position, base, self.leader_epoch)
            self.log_end_offset += header.last_offset_delta + 1
            batch = bytes(batches[position : position + header.size_bytes])
            self.log.append((base, self.log_end_offset, batch))

    def _answer(self, line: Line, item: AnswerRequest) -> None:
        answer = self.asked.pop(item.request_id, None)
        if answer is None:
            return
        if item.body is None:
            answer.count += 1
            answer.error = item.error
        elif item.hold is not None and not self._is_attached(line, item.hold.attachment):
            answer.count += 1  # the records below the offset may be those of another owner
            answer.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        elif item.hold is None or item.hold.offset <= self.high_watermark:
            _respond(answer, item.body)
        else:
            self.held.append((item.hold.offset, answer, item.body))

    def _end(self) -> None:
        self.attached = None
        for _, answer, _ in self.held:
            answer.count += 1
            answer.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self.held.clear()


def _respond(answer: Answer, body: bytes) -> None:
    answer.count += 1
    answer.message = response_decoder(ApiKey.HEARTBEAT, VERSION)(body, 0)[0]


class Line:
    """One session, whose items arrive when the test delivers them."""

    def __init__(self, partition: Partition) -> None:
        self.unsent_bytes = 0
        self.partition = partition
        self.outbound: deque[Item] = deque()
        self.inbound: deque[Item] = deque()
        self.is_closed = False

    def send(self, item: Item) -> None:
        if not self.is_closed:
            self.outbound.append(item)

    def close(self) -> None:
        self.is_closed = True


class _Timer:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> bool:
        self.is_cancelled = True
        return True


class Coordinator:
    """One shard of a coordinator. It implements ShardOutlets and records their calls."""

    def __init__(self, partition: Partition, shard_epoch: int, coordinator_id: int = 1) -> None:
        self.partition = partition
        self.line = Line(partition)
        self.now = 1_000_000
        self.wall_skew_ms = 0
        self.cores: list[NumberCore] = []
        self.shard = Shard(SHARD, shard_epoch, coordinator_id, self._make_core, self)
        self.attachments = coordinator_id * 1000
        self.events: list[str] = []
        self.load_times_ms: list[int] = []
        self.ended: list[EndTransaction] = []
        self.asked_for_ids: list[AllocateProducerId] = []
        self.asked_about_states: list[AskShareStates | AskEndOffsets] = []
        self.timers: list[tuple[int, Callable[[], None], _Timer]] = []
        self.pending = False
        self.works: list[Steps[None]] = []
        """The answers that are being made, of which `work` takes steps."""

    def _make_core(self, shard: ShardId, shard_epoch: int) -> ShardCore:
        self.cores.append(NumberCore())
        return self.cores[-1]

    @property
    def core(self) -> NumberCore:
        return self.cores[-1]

    def attach(self) -> None:
        if self.shard.state is ShardState.WAITING:
            self.attachments += 1
            self.shard.attach(self.line, self.attachments)

    def deliver_out(self) -> bool:
        """Delivers one item to the broker. Returns False if there is none."""
        if self.line.outbound:
            self.partition.take(self.line, self.line.outbound.popleft())
            return True
        return False

    def deliver_in(self) -> bool:
        """Delivers one item to the shard and ends the turn. Returns False if there is none."""
        if not self.line.inbound:
            return False
        shard, item = self.shard, self.line.inbound.popleft()
        match item:
            case ForwardedToShard():
                shard.request(item, self.line)
            case ShardAttached() if item.attachment == shard.log.attachment:
                shard.attached(item)
            case ShardRecords() if item.attachment == shard.log.attachment:
                for _ in shard.records_read(item):
                    pass
            case ShardCommitted() if item.attachment == shard.log.attachment:
                shard.committed(item.high_watermark)
            case ShardLost() if item.attachment == shard.log.attachment:
                shard.lose(item.error.name, broker_knows=True)
        self.end_turn()
        return True

    def end_turn(self) -> None:
        if self.pending:
            self.pending = False
            self.shard.flush()

    def settle(self, *, commits: bool = True) -> None:
        """Delivers items until there are none, and commits all appends unless `commits` is False."""
        while self.deliver_out() or self.deliver_in():
            if commits and self.partition.high_watermark < self.partition.log_end_offset:
                self.partition.commit(self.partition.log_end_offset)

    # -- ShardOutlets

    def started_serving(self, shard: Shard, load_ms: int) -> None:
        self.events.append("serving")
        self.load_times_ms.append(load_ms)

    def detached(self, attachment: int, core: ShardCore | None) -> None:
        pass

    def lost(self, shard: Shard, *, was_attached: bool) -> None:
        self.events.append("lost")

    def deposed(self, shard: Shard, newer_epoch: int) -> None:
        self.events.append(f"deposed by {newer_epoch}")

    def drained(self, shard: Shard) -> None:
        self.events.append("drained")

    def has_pending(self, shard: Shard) -> None:
        self.pending = True

    def call_after(self, callback: Callable[[], None], delay_ms: int) -> _Timer:
        timer = _Timer()
        self.timers.append((self.now + delay_ms, callback, timer))
        return timer

    def advance(self, elapsed_ms: int) -> None:
        self.now += elapsed_ms
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, callback, timer in due:
            if not timer.is_cancelled:
                callback()
        self.end_turn()

    def work_on(self, steps: Steps[None]) -> None:
        self.works.append(steps)
        self.work(1)

    def work(self, step_count: int) -> None:
        """Takes so many steps of each answer that is being made, and ends the turn."""
        for steps in list(self.works):
            for _ in range(step_count):
                if next(steps, self) is self:
                    self.works.remove(steps)
                    break
        self.end_turn()

    def begin_effect(
        self, shard: Shard, effect: EndTransaction | AllocateProducerId | AskShareStates | AskEndOffsets
    ) -> None:
        if isinstance(effect, EndTransaction):
            self.ended.append(effect)
        elif isinstance(effect, AllocateProducerId):
            self.asked_for_ids.append(effect)
        else:
            self.asked_about_states.append(effect)

    def now_ms(self) -> WallMs:
        return WallMs(self.now + self.wall_skew_ms)

    def monotonic_ms(self) -> MonotonicMs:
        return MonotonicMs(self.now)

    def image(self) -> ClusterImage:
        return IMAGE
