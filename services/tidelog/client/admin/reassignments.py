"""Reassignments of partitions, and the plans that balance replicas and leaders over brokers."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tidelog.client.cluster import Cluster
from tidelog.client.core.cluster_view import in_parts, partitions_by_topic
from tidelog.client.errors import UnknownTopicError, raise_on_error
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

Assignment = Mapping[TopicPartition, tuple[int, ...]]


class PlanError(Exception):
    """The goals can't be met. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that gets other replicas, or another order of replicas."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.before if broker not in self.after)


@dataclass(slots=True)
class _Board:
    """The assignment while it changes, and the number of replicas of each broker."""

    racks: Mapping[int, str | None]
    replicas: dict[TopicPartition, list[int]]
    total: Counter[int] = field(default_factory=Counter)
    of_topic: dict[str, Counter[int]] = field(default_factory=dict)

    def count(self, topic: str, broker: int, by: int) -> None:
        self.total[broker] += by
        self.of_topic.setdefault(topic, Counter())[broker] += by

    def exchange(self, key: TopicPartition, old: int, new: int) -> None:
        """Replaces `old` by `new` in the same position, so that the preferred leader remains if possible."""
        members = self.replicas[key]
        members[members.index(old)] = new
        self.count(key[0], old, -1)
        self.count(key[0], new, +1)

    def load(self, topic: str, broker: int) -> tuple[int, int, int]:
        return self.of_topic.setdefault(topic, Counter())[broker], self.total[broker], broker

    def rack_count(self, members: Iterable[int]) -> int:
        """Returns the number of racks of these brokers. A broker without a rack counts as one rack."""
        return len({self.racks.get(b) or f"\0{b}" for b in members})


def plan_moves(
    current: Assignment,
    racks: Mapping[int, str | None],
    leaving: Collection[int] = (),
    *,
    evens_out: bool = True,
) -> list[Move]:
    """Returns the moves.

    `racks` maps the live brokers to their racks. Replicas move to brokers that are not `leaving`. Without
    `evens_out`, only replicas on leaving brokers move. Raises PlanError if a partition has more replicas than
    remaining brokers, or has a replica on a dead broker that is not leaving.
    """
    staying = {broker: rack for broker, rack in sorted(racks.items()) if broker not in leaving}
    if not staying:
        raise PlanError("no broker would remain")
    held = {broker for replicas in current.values() for broker in replicas}
    dead = ",".join(map(str, sorted(held - racks.keys() - set(leaving))))
    if dead:
        raise PlanError(
            f"brokers {dead} hold replicas but are not alive; --without {dead} moves these replicas"
        )
    for (topic, partition), replicas in sorted(current.items()):
        if len(replicas) > len(staying):
            raise PlanError(
                f"{topic}-{partition} has {len(replicas)} replicas, "
                f"but only {len(staying)} brokers would remain"
            )
    board = _Board(staying, {key: list(replicas) for key, replicas in sorted(current.items())})
    for (topic, _), members in board.replicas.items():
        for broker in members:
            board.count(topic, broker, +1)
    _leave(board)
    if evens_out:
        _spread_over_racks(board)
        _even_out(board)
    _even_leaders(board)
    return [
        Move(*place, tuple(current[place]), tuple(members))
        for place, members in board.replicas.items()
        if tuple(members) != tuple(current[place])
    ]


def _leave(board: _Board) -> None:
    """Moves replicas off leaving brokers, to the brokers with the fewest replicas of the topic.

    Racks that the partition does not use yet are preferred.
    """
    for key, members in board.replicas.items():
        for broker in [broker for broker in members if broker not in board.racks]:
            others = [b for b in members if b != broker]
            board.exchange(key, broker, _best_place(board, key[0], others))


def _best_place(board: _Board, topic: str, others: Sequence[int]) -> int:
    free = [broker for broker in board.racks if broker not in others]
    return min(free, key=lambda b: (-board.rack_count([*others, b]), board.load(topic, b)))


def _spread_over_racks(board: _Board) -> None:
    """Moves replicas, one by one, to racks that their partitions do not use yet."""
    rack_total = board.rack_count(board.racks)
    for key, members in board.replicas.items():
        possible = min(len(members), rack_total)
        while board.rack_count(members) < possible:
            doubled = [
                broker
                for broker in members
                if board.rack_count([b for b in members if b != broker]) == board.rack_count(members)
            ]
            # Followers move before leaders, and from brokers with many replicas first.
            old = max(doubled, key=lambda b: (members.index(b) > 0, board.load(key[0], b)))
            board.exchange(key, old, _best_place(board, key[0], [b for b in members if b != old]))


def _even_out(board: _Board) -> None:
    """Moves replicas, one by one, from brokers with more replicas of the topic, or with more replicas in all.

    The loop ends, because each exchange lowers the sum of the squares of the topic's counts, or keeps it and
    lowers that of all counts.
    """
    by_topic: dict[str, list[TopicPartition]] = {}
    for key in board.replicas:
        by_topic.setdefault(key[0], []).append(key)
    is_changed = True
    while is_changed:
        is_changed = False
        for topic, keys in by_topic.items():
            while _exchange_one(board, topic, keys):
                is_changed = True


def _exchange_one(board: _Board, topic: str, keys: Sequence[TopicPartition]) -> bool:
    order = sorted(board.racks, key=lambda b: board.load(topic, b))
    for new in order:
        for old in reversed(order):
            if not _is_better(board, topic, old, new):
                continue
            key = _movable(board, keys, old, new)
            if key is not None:
                board.exchange(key, old, new)
                return True
    return False


def _is_better(board: _Board, topic: str, old: int, new: int) -> bool:
    more_of_topic = board.of_topic[topic][old] - board.of_topic[topic][new]
    return more_of_topic >= 2 or (more_of_topic == 1 and board.total[old] - board.total[new] >= 2)


def _movable(board: _Board, keys: Sequence[TopicPartition], old: int, new: int) -> TopicPartition | None:
    """Returns a partition that can replace `old` by `new` without losing a rack. Followers are preferred."""
    found: TopicPartition | None = None
    for key in keys:
        members = board.replicas[key]
        if old not in members or new in members:
            continue
        if board.rack_count([new if b == old else b for b in members]) < board.rack_count(members):
            continue
        if members[0] != old:
            return key
        found = found or key
    return found


def _even_leaders(board: _Board) -> None:
    """Moves preferred leaders along chains of partitions.

    The result is optimal when no chain connects two brokers whose numbers of leaders differ by two or more.
    """
    while True:
        leads = Counter(dict.fromkeys(board.racks, 0))
        leads.update(members[0] for members in board.replicas.values())
        for start in sorted(leads, key=lambda b: (-leads[b], b)):
            chain = _chain(board, start, leads)
            if chain:
                for key, leader in chain:
                    members = board.replicas[key]
                    members.remove(leader)
                    members.insert(0, leader)
                break
        else:
            return


def _chain(board: _Board, start: int, leads: Counter[int]) -> list[tuple[TopicPartition, int]]:
    """Returns the shortest chain of partitions and new leaders that moves one leader away from `start`.

    The chain ends at a broker with at least two leaders fewer.
    """
    led: dict[int, list[TopicPartition]] = {}
    for key, members in board.replicas.items():
        led.setdefault(members[0], []).append(key)
    came_by: dict[int, tuple[TopicPartition, int]] = {}
    waiting = deque([start])
    while waiting:
        leader = waiting.popleft()
        for key in led.get(leader, ()):
            for follower in board.replicas[key][1:]:
                if follower == start or follower in came_by:
                    continue
                came_by[follower] = (key, leader)
                if leads[follower] <= leads[start] - 2:
                    return _walked_back(came_by, start, follower)
                waiting.append(follower)
    return []


def _walked_back(
    came_by: Mapping[int, tuple[TopicPartition, int]], start: int, end: int
) -> list[tuple[TopicPartition, int]]:
    chain = []
    while end != start:
        key, leader = came_by[end]
        chain.append((key, end))
        end = leader
    return chain


def replica_counts(assignment: Assignment, brokers: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Returns the number of replicas and of preferred leaders of each broker."""
    counts = {broker: [0, 0] for broker in brokers}
    for replicas in assignment.values():
        for place, broker in enumerate(replicas):
            entry = counts.setdefault(broker, [0, 0])
            entry[0] += 1
            entry[1] += place == 0
    return {broker: (entry[0], entry[1]) for broker, entry in sorted(counts.items())}


def after_moves(current: Assignment, moves: Iterable[Move]) -> dict[TopicPartition, tuple[int, ...]]:
    return {**current, **{move.place: move.after for move in moves}}


def plan_json(moves: Sequence[Move]) -> str:
    """Encodes the plan in the format of Kafka's tool."""
    return assignment_json({move.place: move.after for move in moves})


def assignment_json(assignment: Assignment) -> str:
    """Encodes replicas in the format of Kafka's tool, one partition in each line."""
    rows = (
        json.dumps({"topic": topic, "partition": partition, "replicas": list(replicas)})
        for (topic, partition), replicas in assignment.items()
    )
    return '{"version": 1, "partitions": [\n' + ",\n".join(rows) + "\n]}\n"


PREFERRED: Final = 0
UNCLEAN: Final = 1
"""The types of elections in ElectLeaders."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A running move. `replicas` are those of the target, followed by those that will be removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """The current state of the cluster."""

    assignment: Assignment
    racks: Mapping[int, str | None]
    under_way: Mapping[TopicPartition, Reassignment]


def list_reassignments(cluster: Cluster) -> dict[TopicPartition, Reassignment]:
    """Returns all running moves. Raises KafkaError, ClientError."""
    request = ListPartitionReassignmentsRequest(cluster.timeout_ms, None)
    answer = cluster.controller().call(
        request, ListPartitionReassignmentsResponse, wait_ms=cluster.timeout_ms
    )
    raise_on_error(answer.error_code, "reassignments", answer.error_message)
    return {
        TopicPartition(topic.name, row.partition_index): Reassignment(
            tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
        )
        for topic in answer.topics
        for row in topic.partitions
    }


def standing_of(cluster: Cluster, topics: Collection[str] = ()) -> Standing:
    """Returns the state of all topics, or of the named ones. Running moves count as finished.

    Raises KafkaError, ClientError.
    """
    view = cluster.describe()
    # Moves are read before the replicas. The target of a move that ends in between is then known. In the
    # other order, its old replicas would count as the final ones.
    under_way = list_reassignments(cluster)
    found = cluster.topics(topics or None)
    for name in topics:
        if name not in found:
            raise UnknownTopicError(f"topic '{name}' does not exist")
    assignment: dict[TopicPartition, tuple[int, ...]] = {}
    for topic in found.values():
        for partition in topic.partitions:
            key = TopicPartition(topic.name, partition.index)
            move = under_way.get(key)
            removing = move.removing if move else ()
            assignment[key] = tuple(
                r for r in (move.replicas if move else partition.replicas) if r not in removing
            )
    return Standing(assignment, {broker.broker_id: broker.rack for broker in view.brokers}, under_way)


def alter_reassignments(cluster: Cluster, wanted: Mapping[TopicPartition, tuple[int, ...] | None]) -> None:
    """Starts moves to these replicas, the preferred leader first. None cancels the running move.

    Partitions are independent. Raises the KafkaError of the first rejected partition, ClientError.
    """
    for part in in_parts(wanted.items()):
        _alter_reassignments(cluster, part)


def _alter_reassignments(
    cluster: Cluster, wanted: list[tuple[TopicPartition, tuple[int, ...] | None]]
) -> None:
    topics: dict[str, list[ReassignablePartition]] = {}
    for (topic, partition), replicas in wanted:
        row = ReassignablePartition(partition, None if replicas is None else list(replicas))
        topics.setdefault(topic, []).append(row)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=cluster.timeout_ms, topics=[ReassignableTopic(name, rows) for name, rows in topics.items()]
    )
    answer = cluster.controller().call(
        request, AlterPartitionReassignmentsResponse, wait_ms=cluster.timeout_ms
    )
    raise_on_error(answer.error_code, "reassignments", answer.error_message)
    for topic_answer in answer.responses:
        for result in topic_answer.partitions:
            if result.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                continue  # the move finished before it could be cancelled
            subject = f"topic '{topic_answer.name}' partition {result.partition_index}"
            raise_on_error(result.error_code, subject, result.error_message)


@dataclass(frozen=True, slots=True)
class Election:
    """The result of an election. `message` is the broker's, if there is one."""

    code: ErrorCode
    message: str | None


def elect_leaders(
    cluster: Cluster, election_type: int, places: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Election]:
    """Elects the leaders of partitions; `places` None means all partitions.

    With PREFERRED, the first replica becomes the leader if it is in sync. With UNCLEAN, a partition without a
    leader gets any live replica, which may lose records. A partition that needs no election has the code
    ELECTION_NOT_NEEDED or no result. Raises KafkaError, ClientError.
    """
    if places is None:
        return _elect_leaders(cluster, election_type, None)
    found: dict[TopicPartition, Election] = {}
    for part in in_parts(sorted(places)):
        found |= _elect_leaders(cluster, election_type, partitions_by_topic(part))
    return found


def _elect_leaders(
    cluster: Cluster, election_type: int, wanted: Mapping[str, list[int]] | None
) -> dict[TopicPartition, Election]:
    rows = None if wanted is None else [TopicPartitions(name, indexes) for name, indexes in wanted.items()]
    request = ElectLeadersRequest(election_type, rows, cluster.timeout_ms)
    answer = cluster.controller().call(request, ElectLeadersResponse, at_least=1, wait_ms=cluster.timeout_ms)
    raise_on_error(answer.error_code, "election of leaders")
    return {
        TopicPartition(topic.topic, row.partition_id): Election(ErrorCode(row.error_code), row.error_message)
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }


def elect_preferred_leaders(cluster: Cluster) -> int:
    """Makes the first replica of every partition the leader if it is in sync. Returns how many changed.

    Raises KafkaError, ClientError.
    """
    results = elect_leaders(cluster, PREFERRED)
    return sum(1 for election in results.values() if election.code is ErrorCode.NONE)


class Progress(Enum):
    """The state of a requested move."""

    FINISHED = "finished"
    MOVING = "moving"
    DIFFERENT = "different"
    """No move is running, and the replicas are not the requested ones."""
    MISSING = "missing"
    """The partition does not exist."""


def requested_moves(current: Assignment, wanted: Assignment, brokers: Collection[int]) -> list[Move]:
    """Returns the moves to the wanted replicas, also for partitions that have them already.

    `brokers` are the live ones. Raises PlanError if a partition or broker does not exist, or if replicas are
    missing or repeated.
    """
    moves: list[Move] = []
    for place, replicas in sorted(wanted.items()):
        if place not in current:
            raise PlanError(f"partition {place} does not exist")
        if not replicas:
            raise PlanError(f"{place} has no replicas")
        if len(set(replicas)) < len(replicas):
            raise PlanError(f"{place} has two replicas on the same broker")
        unknown = sorted(set(replicas) - set(brokers))
        if unknown:
            raise PlanError(f"{place} has a replica on broker {unknown[0]}, which is not alive")
        moves.append(Move(*place, tuple(current[place]), tuple(replicas)))
    return moves


def running_moves(under_way: Mapping[TopicPartition, Reassignment]) -> list[Move]:
    """Returns the running moves from the replicas before to those of the target."""
    return [
        Move(
            *place,
            tuple(broker for broker in move.replicas if broker not in move.adding),
            tuple(broker for broker in move.replicas if broker not in move.removing),
        )
        for place, move in sorted(under_way.items())
    ]


def progress_of(
    wanted: Assignment, current: Assignment, under_way: Collection[TopicPartition]
) -> dict[TopicPartition, Progress]:
    """Returns the state of each requested move."""
    found: dict[TopicPartition, Progress] = {}
    for key, replicas in sorted(wanted.items()):
        if key not in current:
            found[key] = Progress.MISSING
        elif key in under_way:
            found[key] = Progress.MOVING
        elif tuple(current[key]) == tuple(replicas):
            found[key] = Progress.FINISHED
        else:
            found[key] = Progress.DIFFERENT
    return found
