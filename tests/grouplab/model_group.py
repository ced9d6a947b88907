"""A model of a group of KIP-848 whose members are the cores of our consumer, in virtual time.

The coordinator gives a partition to a member only when its previous member no longer has it. Faults are lost
requests and responses, late answers, members that crash, leave, and join. The model checks each commit: every
record before a committed offset was dealt with by an application.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from brokerlab.model_brokers import VirtualTime
from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.consuming.consumed_partition import OffsetToCommit
from tidelog.client.core.consuming.consumer import ConsumerCore
from tidelog.client.core.consuming.consumer_events import (
    AssignmentDone,
    CommitConsumed,
    CommittedFound,
    Effect,
    Event,
    FetchAnswered,
    FetchedPartition,
    FetchFailed,
    GroupRequestFailed,
    LeaveGroup,
    LookUpCommitted,
    LookupFailed,
    LookUpOffsets,
    MetadataFailed,
    OffsetsFound,
    PartitionsAssigned,
    RecordsReady,
    RequestMetadata,
    RevocationDone,
    RevokePartitions,
    SendFetch,
    SendGroupRequest,
)
from tidelog.client.core.consuming.membership import Heartbeat, HeartbeatAnswered
from tidelog.client.core.settings import ConsumerSettings
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

TOPIC = "t"
TOPIC_ID = UUID(int=7)
SESSION_TIMEOUT_MS = 3_000
HEARTBEAT_INTERVAL_MS = 300
POLL_WAIT_MS = 200
COMMIT_ATTEMPTS = 10
RETRY_MS = 20
CHECK_MS = 40
"""The time between two looks at whether a core has something to do."""


@dataclass
class GroupFaults:
    lost: float = 0.0
    """The probability that a request or its response is lost."""
    late: float = 0.0
    member_changes: float = 0.0
    """The probability that a member crashes, leaves or joins, for each poll of a member."""


@dataclass
class CoordinatedMember:
    epoch: int
    previous_epoch: int = 0
    target: frozenset[int] = frozenset()
    last_seen_ms: int = 0


@dataclass
class Application:
    """One process: a consumer and a loop that polls and deals with records."""

    name: str
    core: ConsumerCore
    is_alive: bool = True
    delivered: list[tuple[int, int]] = field(default_factory=list)
    """The records of the last poll, which are dealt with when the next poll begins."""
    waits: bool = False


class ModelGroup(VirtualTime):
    """Members, a coordinator and the logs of a topic. Everything follows from the seed."""

    def __init__(
        self, settings: ConsumerSettings, seed: int, faults: GroupFaults, partition_count: int = 4
    ) -> None:
        super().__init__(seed)
        self.settings = settings
        self.faults = faults
        self.logs: list[list[bytes]] = [[] for _ in range(partition_count)]
        self.ends = [0] * partition_count
        self.dealt_with: set[tuple[int, int]] = set()
        self.deliveries: dict[tuple[int, int], int] = {}
        self.committed: dict[int, int] = {}
        self.applications: list[Application] = []
        self.members: dict[str, CoordinatedMember] = {}
        self.holders: dict[int, str] = {}
        self.group_epoch = 0
        self._names = 0

    def produce(self, partition: int, count: int) -> None:
        start = self.ends[partition]
        records = [Record(start + index, 1_000, None, b"v") for index in range(count)]
        self.logs[partition].append(bytes(build_batch(records, leader_epoch=0)))
        self.ends[partition] += count

    # -- applications

    def start_member(self) -> Application:
        self._names += 1
        core = ConsumerCore(self.settings, jitter=self.chance.random)
        application = Application(f"m{self._names}", core)
        self.applications.append(application)
        core.subscribe((TOPIC,), None, self.now_ms)
        self.at(0, lambda: self._poll(application))
        self.at(0, lambda: self._wake(application))
        return application

    def stop_member(self, application: Application, *, leaves: bool) -> None:
        application.is_alive = False
        self.applications.remove(application)
        if leaves and self._member_name(application) in self.members:
            self._remove(self._member_name(application))

    def _wake(self, application: Application) -> None:
        """Polls the core when its time comes. It checks often, which is simple and safe."""
        if application.is_alive:
            wake_ms = application.core.next_wake_ms(self.now_ms)
            if wake_ms is not None and wake_ms <= self.now_ms:
                self._perform(application, application.core.poll(self.now_ms))
            self.at(CHECK_MS, lambda: self._wake(application))

    def _poll(self, application: Application) -> None:
        if not application.is_alive:
            return
        application.waits = False
        for place in application.delivered:
            self.dealt_with.add(place)
        application.delivered.clear()
        self._perform(application, application.core.begin_poll(self.now_ms))
        for _ in range(self.chance.randint(1, 8)):
            record = application.core.take_decoded()
            found = application.core.take(1) if record is None else [record]
            if found is None:
                break
            place = (found[0].partition, found[0].offset)
            assert self._may_deliver(application, place[0]), f"{application.name} does not have {place[0]}"
            application.delivered.append(place)
            self.deliveries[place] = self.deliveries.get(place, 0) + 1
        if application.delivered:
            application.core.end_poll(self.now_ms)
            if self._happens(self.faults.member_changes):
                self._change_members(application)
            self.at(self.chance.choice((0, 1, 30, 400)), lambda: self._poll(application))
        else:
            application.waits = True
            self.at(POLL_WAIT_MS, lambda: self._end_wait(application))

    def _end_wait(self, application: Application) -> None:
        if application.waits:
            self._poll(application)

    def _may_deliver(self, application: Application, partition: int) -> bool:
        """A member that the coordinator has removed may not know it yet."""
        return application.name not in self.members or self.holders.get(partition) == application.name

    def _change_members(self, application: Application) -> None:
        match self.chance.randrange(3):
            case 0 if len(self.applications) < 4:
                self.start_member()
            case 1:
                self.stop_member(application, leaves=False)
                self.at(self.chance.randint(0, 500), self._start_replacement)
            case 2 if len(self.applications) > 1:
                self.stop_member(application, leaves=True)

    def _start_replacement(self) -> None:
        self.start_member()

    # -- effects

    def _perform(self, application: Application, effects: list[Effect]) -> None:
        for effect in effects:
            self._perform_one(application, effect)

    def _perform_one(self, application: Application, effect: Effect) -> None:
        match effect:
            case SendFetch():
                self._ask(application, lambda: self._fetch(effect), FetchFailed(effect.request_id))
            case RequestMetadata():
                view = TopicView(TOPIC, TOPIC_ID, (PartitionLeader(1, 0),) * len(self.logs))
                received = MetadataReceived((Node(1, "model", 9092),), (view,))
                self._ask(application, lambda: received, MetadataFailed())
            case LookUpCommitted():
                lost = LookupFailed(effect, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                self._ask(application, lambda: self._committed(effect), lost)
            case LookUpOffsets(timestamps=timestamps):
                lost = LookupFailed(effect, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
                self._ask(application, lambda: OffsetsFound(effect, dict.fromkeys(timestamps, 0)), lost)
            case SendGroupRequest(request, _):
                self._ask_group(application, request)
            case CommitConsumed(offsets):
                self.at(self._delay(), lambda: self._commit(application, dict(offsets)))
            case RevokePartitions():
                self._revoke(application, effect, COMMIT_ATTEMPTS)
            case LeaveGroup():
                self._leave(self._member_name(application))
            case RecordsReady():
                if application.waits:
                    application.waits = False
                    self.at(0, lambda: self._poll(application))
            case PartitionsAssigned(places):
                self.at(self._delay(), lambda: self._step(application, AssignmentDone(places)))

    def _delay(self) -> int:
        return self.chance.randint(0, 500) if self._happens(self.faults.late) else self.chance.randint(0, 10)

    def _ask(self, application: Application, answer: Callable[[], Event], lost: Event) -> None:
        """Sends a request: it is lost, or it takes effect and then its response may be lost."""

        def arrive() -> None:
            if not application.is_alive:
                return
            if self._happens(self.faults.lost):
                self.at(self._delay(), lambda: self._step(application, lost))
                return
            event = answer()
            if self._happens(self.faults.lost):
                event = lost
            self.at(self._delay(), lambda: self._step(application, event))

        self.at(self._delay(), arrive)

    def _step(self, application: Application, event: Event) -> None:
        if application.is_alive:
            self._perform(application, application.core.step(event, self.now_ms))

    def _leave(self, name: str) -> None:
        """Sends the goodbye once. It may be lost, or arrive after the member has joined again."""
        if not self._happens(self.faults.lost):
            self.at(self._delay(), lambda: self._remove(name))

    # -- brokers

    def _fetch(self, effect: SendFetch) -> FetchAnswered:
        partitions = {}
        for place, (offset, _) in effect.offsets.items():
            data = bytearray()
            for batch in self.logs[place.partition]:
                count = int.from_bytes(batch[57:61], "big")
                base = int.from_bytes(batch[:8], "big")
                if base + count > offset and len(data) < 300:
                    data += batch
            end = self.ends[place.partition]
            partitions[place] = FetchedPartition(0, memoryview(bytes(data)), end, end, 0, [], -1, None)
        return FetchAnswered(effect.request_id, 0, partitions)

    # -- the coordinator

    def _member_name(self, application: Application) -> str:
        return application.name

    def _ask_group(self, application: Application, request: Any) -> None:
        self._ask(application, lambda: self._heartbeat(application, request), GroupRequestFailed(request))

    def _committed(self, effect: LookUpCommitted) -> CommittedFound:
        places = effect.generations
        return CommittedFound(
            effect, {place: (self.committed.get(place.partition, -1), -1) for place in places}
        )

    def _revoke(self, application: Application, effect: RevokePartitions, attempts: int) -> None:
        """Commits, again if a heartbeat with a new epoch is under way, and then confirms the revocation."""
        membership = application.core.membership
        if not effect.is_lost:
            assert membership is not None
            if self._epoch_moves(application) and attempts:
                self.at(RETRY_MS, lambda: self._revoke(application, effect, attempts - 1))
                return
            self._commit(application, application.core.partitions.commitable(effect.partitions))
        self.at(self._delay(), lambda: self._step(application, RevocationDone(effect.step)))

    def _epoch_moves(self, application: Application) -> bool:
        """Whether a response with the member's new epoch is under way."""
        member = self.members.get(application.name)
        membership = application.core.membership
        return member is not None and membership is not None and member.epoch != membership.epoch

    def _may_commit(self, application: Application) -> bool:
        return application.name in self.members and not self._epoch_moves(application)

    def _commit(self, application: Application, offsets: dict[TopicPartition, OffsetToCommit]) -> None:
        if self._happens(self.faults.lost) or not application.is_alive or not self._may_commit(application):
            return
        for place, (offset, _, _) in offsets.items():
            for earlier in range(self.committed.get(place.partition, 0), offset):
                assert (place.partition, earlier) in self.dealt_with, (
                    f"{place} was committed up to {offset}, but nobody dealt with {earlier}"
                )
            self.committed[place.partition] = offset
        application.core.partitions.committed(offsets)

    def _heartbeat(self, application: Application, heartbeat: Heartbeat) -> HeartbeatAnswered:
        self._expire()
        name = application.name
        member = self.members.get(name)
        if heartbeat.member_epoch == 0:
            if member is not None:
                self._release(name)
            else:
                self.members[name] = CoordinatedMember(0)
                self._rebalance()
            member = self.members[name]
        elif member is None:
            return HeartbeatAnswered(heartbeat, ErrorCode.UNKNOWN_MEMBER_ID, None, 0, 0, None)
        elif self._is_fenced(name, member, heartbeat):
            return HeartbeatAnswered(heartbeat, ErrorCode.FENCED_MEMBER_EPOCH, None, 0, 0, None)
        member.last_seen_ms = self.now_ms
        if heartbeat.owned is not None and heartbeat.member_epoch > 0:
            owned = {index for _, index in heartbeat.owned}
            for partition, holder in list(self.holders.items()):
                if holder == name and partition not in owned and partition not in member.target:
                    del self.holders[partition]
        held = {partition for partition, holder in self.holders.items() if holder == name}
        if held <= member.target:
            if member.epoch != self.group_epoch:
                member.previous_epoch, member.epoch = member.epoch, self.group_epoch
            for partition in member.target:
                self.holders.setdefault(partition, name)
        assigned = frozenset(
            (TOPIC_ID, partition) for partition in member.target if self.holders.get(partition) == name
        )
        return HeartbeatAnswered(heartbeat, 0, None, member.epoch, HEARTBEAT_INTERVAL_MS, assigned)

    def _is_fenced(self, name: str, member: CoordinatedMember, heartbeat: Heartbeat) -> bool:
        """Returns whether the heartbeat has a wrong epoch, as the coordinator does. The response with the new
        epoch may have been lost, so the previous one is valid if the member says what it owns, and owns it.
        """
        if heartbeat.member_epoch == member.epoch:
            return False
        if heartbeat.member_epoch != member.previous_epoch or heartbeat.owned is None:
            return True
        return any(self.holders.get(partition) != name for _, partition in heartbeat.owned)

    def _expire(self) -> None:
        for name, member in list(self.members.items()):
            if self.now_ms - member.last_seen_ms > SESSION_TIMEOUT_MS and member.epoch:
                self._remove(name)

    def _remove(self, name: str) -> None:
        if self.members.pop(name, None) is not None:
            self._release(name)
            self._rebalance()

    def _release(self, name: str) -> None:
        for partition in [partition for partition, holder in self.holders.items() if holder == name]:
            del self.holders[partition]

    def _rebalance(self) -> None:
        self.group_epoch += 1
        names = sorted(self.members)
        self.chance.shuffle(names)
        for member in self.members.values():
            member.target = frozenset()
        for partition in range(len(self.logs) if names else 0):
            member = self.members[names[partition % len(names)]]
            member.target |= {partition}
