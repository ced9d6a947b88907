"""Invariants of classic groups under random joins, syncs, leaves, crashes, failovers and delays."""

from __future__ import annotations

import random
from typing import Any  # Any: keyword arguments, and generated messages without a common base

import pytest

from grouplab.shard_lab import ShardLab, subscription
from tidelog.group_coordinator.groups.classic.classic_group import (
    TIMER_OWNER,
    ClassicGroup,
    ClassicState,
    decode_group_id,
    session_key,
)
from tidelog.group_coordinator.groups.classic.rebalance import JOIN_TIMER, SYNC_TIMER
from tidelog.group_coordinator.groups.shared import TimerKey
from tidelog.group_coordinator.shard_core import ShardDecision
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest

SEEDS = 60
EVENTS = 150
GROUPS = ("one", "two")
SESSIONS_MS = (6_000, 10_000, 30_000)
REBALANCES_MS = (5_000, 20_000, 60_000)


class Client:
    """A model client. Each `turn` makes it do one step."""

    def __init__(self, lab: ShardLab, chance: random.Random, group: str, instance: str | None) -> None:
        self.lab = lab
        self.chance = chance
        self.group = group
        self.instance = instance
        self.how: dict[str, Any] = {
            "group": group,
            "instance": instance,
            "version": chance.choice((3, 5, 9)),
            "session_ms": chance.choice(SESSIONS_MS),
            "rebalance_ms": chance.choice(REBALANCES_MS),
        }
        self.know_own_protocols()
        self.member_id = ""
        self.generation = -1
        self.joined: Any = None
        self.assignment: bytes | None = None
        self.waits_for: int | None = None
        self.is_syncing = False
        self.is_shut_out = False
        """Whether the group supports none of its protocols. Loaded members have only the selected one."""

    def know_own_protocols(self) -> None:
        data = subscription(*self.chance.sample(("a", "b", "c"), 2))
        names = self.chance.sample(("range", "sticky"), self.chance.choice((1, 2, 2)))
        self.how["protocols"] = tuple((name, data) for name in (*names, "common"))

    def turn(self) -> None:
        if self.waits_for is not None:
            self._look()
        elif self.joined is None:
            self.waits_for, self.is_syncing = self.lab.join(self.member_id, **self.how), False
        elif self.assignment is None:
            given = {
                member.member_id: f"{self.generation}/{member.member_id}/{self.chance.random()}".encode()
                for member in self.joined.members
            }
            self.waits_for, self.is_syncing = (
                self.lab.sync(
                    self.member_id, self.generation, given, group=self.group, instance=self.instance
                ),
                True,
            )
        else:
            error = self.lab.heartbeat(
                self.member_id, self.generation, group=self.group, instance=self.instance
            )
            if error is not ErrorCode.NONE:
                self._refused(error)

    def _look(self) -> None:
        answer = self.lab.answers.get(self.waits_for)
        if answer is None:
            return
        self.waits_for = None
        error = ErrorCode(answer.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif error is not ErrorCode.NONE:
            self._refused(error)
        elif self.is_syncing:
            self.assignment = bytes(answer.assignment)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.joined = answer

    def _refused(self, error: ErrorCode) -> None:
        self.joined = self.assignment = None
        self.is_shut_out = error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.GROUP_MAX_SIZE_REACHED,
        ):
            self.member_id = ""
        elif error is ErrorCode.ILLEGAL_GENERATION:
            self.generation = -1

    @property
    def is_settled(self) -> bool:
        return self.assignment is not None


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.lab = ShardLab()
        self.lab.on_decision = self.note_recorded
        self.clients: list[Client] = []
        self.instances = 0
        self.records_seen = 0
        self.recorded: dict[str, Any] = {}
        self.answers_seen = 0
        self.told: dict[tuple[int, str, int], tuple[Any, ...]] = {}
        self.leaders: dict[tuple[int, str, int], str] = {}
        """The members of each generation, as its leader received them."""
        self.given: dict[tuple[int, str, int], dict[str, bytes]] = {}
        self.lives: dict[str, int] = {}
        """The number of times that a group was loaded or created. Generations may start again each time."""
        self.known: dict[str, tuple[ClassicGroup, int]] = {}
        """The last seen object and generation of each group."""

    def event(self) -> None:
        chance = self.chance
        roll = chance.random()
        client = chance.choice(self.clients) if self.clients else None
        if client is None or (roll < 0.06 and len(self.clients) < 8):
            self.clients.append(self.new_client())
        elif roll < 0.70:
            client.turn()
        elif roll < 0.85:
            self.lab.pass_time(chance.choice((10, 500, 3_000, 8_000)))
        elif roll < 0.88:
            self.clients.remove(client)  # the client crashes
        elif roll < 0.91:
            self.leave(client)
        elif roll < 0.93:
            client.know_own_protocols()
            client.joined = client.assignment = None
        elif roll < 0.95:
            client.waits_for = None  # the client gives up and repeats its request
        elif roll < 0.97:
            self.strange_request(client)
        elif roll < 0.98:
            self.lab.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([client.group]))
        else:
            self.lab.fail_over()

    def new_client(self) -> Client:
        chance, instance = self.chance, None
        if chance.random() < 0.3:
            instance = f"instance-{chance.randrange(3)}"
        return Client(self.lab, chance, chance.choice(GROUPS), instance)

    def leave(self, client: Client) -> None:
        if client.member_id and client.group in self.lab.core.groups.by_id:
            self.lab.leave((client.member_id, client.instance), group=client.group)
        self.clients.remove(client)

    def strange_request(self, client: Client) -> None:
        generation = self.chance.randrange(-1, 5)
        if self.chance.random() < 0.5:
            self.lab.sync(client.member_id, generation, {"x": b"y"}, group=client.group)
        else:
            self.lab.heartbeat("strange", generation, group=client.group)

    # -- invariants

    def note_recorded(self, decision: ShardDecision) -> None:
        for key, value in decision.records:
            group_id = decode_group_id(key)
            self.recorded[group_id] = None if value is None else hard_state(self.lab.group(group_id))

    def check(self) -> None:
        groups = self.lab.core.groups.by_id
        self.check_answers()
        owed = set()
        for group in groups.values():
            assert isinstance(group, ClassicGroup)
            owed |= self.check_group(group)
        assert owed == set(self.lab.owed), "exactly the unanswered requests wait"
        self.check_records()

    def check_group(self, group: ClassicGroup) -> set[Any]:
        members, timers = group.members, self.lab.timers
        joins = {member.join.reply_to for member in members.values() if member.join is not None}
        syncs = {member.sync for member in members.values() if member.sync is not None}
        assert all(member_id == member.member_id for member_id, member in members.items())
        assert (group.leader in members) if members else group.leader is None
        assert group.metadata_bytes == sum(member.metadata_bytes() for member in members.values())
        static = {m.group_instance_id: m.member_id for m in members.values() if m.group_instance_id}
        assert group.static_members == static
        assert group.pending_sync <= set(members)
        known = [{name for name, _ in member.protocols} for member in members.values()]
        assert group.candidates() == (set.intersection(*known) if known else set())
        assert not set(group.pending_members) & set(members)
        last_seen, generation = self.known.get(group.group_id, (None, 0))
        if last_seen is not group:
            self.lives[group.group_id] = life = self.lives.get(group.group_id, 0) + 1
            loaded = {member.member_id: bytes(member.assignment) for member in members.values()}
            self.given[life, group.group_id, group.generation] = loaded
        else:
            assert group.generation >= generation
        self.known[group.group_id] = group, group.generation
        if group.state is ClassicState.EMPTY:
            assert not members
        elif group.state is ClassicState.PREPARING_REBALANCE:
            assert TimerKey(TIMER_OWNER, JOIN_TIMER, group.group_id) in timers
            assert not syncs
        else:
            assert members
            assert not joins
            assert group.protocol in group.candidates()
        if group.state is ClassicState.COMPLETING_REBALANCE:
            assert group.leader in group.pending_sync
            key = (self.lives.get(group.group_id, 0), group.group_id, group.generation)
            assert key in self.leaders or last_seen is not group, "the leader can assign partitions"
        if group.state is ClassicState.STABLE:
            assert not syncs
        if group.state is ClassicState.STABLE or (group.state is ClassicState.EMPTY and group.generation):
            assert self.recorded[group.group_id] == hard_state(group)
        if group.pending_sync:
            assert TimerKey(TIMER_OWNER, SYNC_TIMER, group.group_id) in timers
        for member in members.values():
            waits = member.join is not None or member.sync is not None
            assert session_key(group.group_id, member.member_id) in timers or waits or member.is_static
        return joins | syncs

    def check_records(self) -> None:
        """A loaded group equals the group at the time of its last record."""
        if len(self.lab.log) > self.records_seen:
            self.records_seen = len(self.lab.log)
            loaded = self.lab.reloaded().groups.by_id
            assert {name for name, state in self.recorded.items() if state} == set(loaded)
            for group_id, group in loaded.items():
                assert isinstance(group, ClassicGroup)
                assert hard_state(group) == self.recorded[group_id]

    def check_answers(self) -> None:
        """All members of a generation receive the same protocol and their part of the leader's assignment."""
        new, self.answers_seen = self.lab.answered[self.answers_seen :], len(self.lab.answered)
        for request, answer in new:
            if request.api_key not in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP) or answer.error_code:
                continue
            message = request.message
            life = self.lives.get(message.group_id, 0)
            if request.api_key == ApiKey.JOIN_GROUP:
                told = (answer.protocol_name, answer.protocol_type)
                key = (life, message.group_id, answer.generation_id)
                assert self.told.setdefault(key, told) == told
                if answer.members:
                    assert answer.member_id == answer.leader
                    self.leaders[key] = answer.leader
                continue
            key = (life, message.group_id, message.generation_id)
            if key not in self.given and message.member_id == self.leaders.get(key):
                self.given[key] = {one.member_id: bytes(one.assignment) for one in message.assignments}
        for request, answer in new:
            if request.api_key == ApiKey.SYNC_GROUP and not answer.error_code:
                message = request.message
                key = (self.lives.get(message.group_id, 0), message.group_id, message.generation_id)
                if key in self.given and message.group_instance_id is None:
                    assert bytes(answer.assignment) == self.given[key].get(message.member_id, b"")


def hard_state(group: ClassicGroup) -> tuple[Any, ...]:
    members = tuple(
        (
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            member.metadata(group.protocol),
            bytes(member.assignment),
        )
        for member in group.members.values()
    )
    since_ms = group.state_since_ms if not members else None
    return group.generation, group.protocol_type, group.protocol, group.leader, since_ms, members


def settle(world: World) -> None:
    """Lets the running clients finish, and the sessions of crashed ones end."""
    for _ in range(400):
        for client in world.clients:
            client.turn()
        world.clients = [client for client in world.clients if not client.is_shut_out]
        world.lab.pass_time(1_000)
        world.check()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_invariants_hold_in_a_random_history(seed: int) -> None:
    print(f"seed {seed}")
    world = World(seed)
    for _ in range(EVENTS):
        world.event()
        world.check()
    keep_one_of_each_instance(world)
    settle(world)
    assert not world.lab.owed
    for name in GROUPS:
        group = world.lab.core.groups.by_id.get(name)
        clients = [client for client in world.clients if client.group == name]
        assert all(client.is_settled for client in clients)
        if group is None:
            assert not clients
            continue
        assert isinstance(group, ClassicGroup)
        assert set(group.members) == {client.member_id for client in clients}
        assert {client.generation for client in clients} <= {group.generation}
        for client in clients:
            assert client.assignment == bytes(group.members[client.member_id].assignment)
        assert group.state is (ClassicState.STABLE if clients else ClassicState.EMPTY)


def keep_one_of_each_instance(world: World) -> None:
    """Stops duplicates, because two clients with one instance id fence each other forever."""
    kept: dict[tuple[str, str], Client] = {}
    for client in world.clients:
        if client.instance is not None:
            kept[client.group, client.instance] = client
    world.clients = [
        client
        for client in world.clients
        if client.instance is None or kept[client.group, client.instance] is client
    ]
