"""Elections of partition leaders: when brokers register or fail, for preferred leaders, and by ElectLeaders.

The sources are KIP-966 (eligible leader replicas, ELR), KIP-903 (brokers that registered again) and, for
ElectLeaders, KIP-183 and KIP-460. There are two differences from KIP-966. If all members of the ISR are dead,
the last ISR is kept, so the ISR is not empty as long as one of its logs can be trusted. And a member whose
disk has failed is elected if no other member can lead, because tidelog's brokers retry failed disks.

Leadership moves back to the preferred leaders (the first replicas) when too many partitions have another
leader. The rule is that of Kafka's controller before KRaft, which had
`leader.imbalance.per.broker.percentage`: for each broker, it counts the partitions whose preferred leader the
broker is.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import IntEnum
from typing import NamedTuple

from tidelog.controller.core.decision import Context, ControllerDecision, DecisionSteps, Record, Write
from tidelog.controller.core.state import ClusterState, written
from tidelog.metadata.entries import SettledSuspectEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import TopicPartition, effective_min_in_sync_replicas
from tidelog.rpc.broker_commands import PartitionState
from tidelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


class RollCall(NamedTuple):
    """The ids of a partition's brokers, by state.

    - `alive`: registered brokers that can serve the replica.
    - `steady`: the part of `alive` that registered before the partition's state was written. A broker that
      registered again later counts as one that failed and returned (KIP-903).
    - `stopping`: registered brokers in controlled shutdown. They are not elected.
    - `suspect`: registered brokers that may have lost the end of this log. They leave the ISR and the ELR.
    - `failed`: registered brokers that reported a disk error for the replica and retry by themselves.
    """

    alive: frozenset[int]
    steady: frozenset[int]
    stopping: frozenset[int]
    suspect: frozenset[int]
    failed: frozenset[int]

    def is_untouched(self, before: PartitionState) -> bool:
        """Whether nothing has happened to the brokers that requires another state."""
        return not before.elr and before.leader in self.steady and self.steady.issuperset(before.isr)


def call_roll(state: ClusterState, before: PartitionState) -> RollCall:
    partition = TopicPartition(before.topic, before.partition)
    alive, steady, stopping, suspect, failed = [], [], [], [], []
    for replica in {*before.replicas, *before.isr, *before.elr}:
        broker = state.brokers.get(replica)
        if broker is None:
            continue
        is_suspect = replica in state.unsettled_suspects and (
            broker.is_log_suspect or partition in broker.suspect_partitions
        )
        if is_suspect:  # a failed replica can be suspect, too, and may work again later
            suspect.append(replica)
        if replica in state.stopping:
            stopping.append(replica)
        if partition in state.failed_replicas.get(replica, ()):
            failed.append(replica)
            continue
        alive.append(replica)
        if not is_suspect and broker.broker_epoch < before.partition_epoch:
            steady.append(replica)
    return RollCall(
        frozenset(alive), frozenset(steady), frozenset(stopping), frozenset(suspect), frozenset(failed)
    )


def min_isr_without_elr(state: ClusterState, context: Context, topic: str, replica_count: int) -> int:
    """Returns the size of an ISR from which on the partition has no ELR: `min.insync.replicas`, at most the
    number of replicas. It is 0 if eligible leader replicas are turned off.
    """
    if not state.uses_elr:
        return 0
    least = context.rules.settings.min_in_sync_replicas(state.configs_of(topic))
    return effective_min_in_sync_replicas(least, replica_count)


def eligible_after(
    before: PartitionState, isr: tuple[int, ...], excluded: Container[int], min_isr: int
) -> tuple[int, ...]:
    """Returns the ELR that belongs to `isr`. While the ISR is below its minimum, the high watermark does not
    move, so every replica that leaves the ISR then has all acknowledged records.
    """
    if len(isr) >= min_isr:
        return ()
    members = {*before.isr, *before.elr} - set(isr)
    return tuple(sorted(member for member in members if member not in excluded))


def next_state(
    state: ClusterState,
    context: Context,
    before: PartitionState,
    *,
    unclean: bool | None = None,
    is_new_epoch: bool = False,
) -> PartitionState | None:
    """Returns the state that a partition must have now, or None if it has this state already. The caller may
    have given it other replicas.

    A leader that is steady and in the ISR stays the leader. `unclean` says whether a replica that may lack
    acknowledged records may lead if no other replica can; None stands for `unclean.leader.election.enable`.
    With `is_new_epoch`, the leader epoch grows in any case, because the replicas have changed.
    """
    replicas = before.replicas
    roll = call_roll(state, before)
    if not is_new_epoch and roll.is_untouched(before):
        return None
    members = set(replicas) - roll.suspect
    isr = tuple(replica for replica in before.isr if replica in members)
    elr = tuple(replica for replica in before.elr if replica in members) if state.uses_elr else ()
    last_known = _last_known_leader(before, isr)
    keeps = before.leader in isr and before.leader in roll.steady
    leader = before.leader if keeps else _elect(replicas, isr, elr, last_known, roll)
    if leader == NO_LEADER:
        if unclean is None:
            unclean = context.rules.settings.is_unclean_election_allowed(state.configs_of(before.topic))
        if unclean:
            leader = _first(replicas, roll.alive - roll.suspect - roll.stopping)
            leader = leader if leader != NO_LEADER else _first(replicas, roll.alive - roll.stopping)
    if leader == NO_LEADER and before.leader in roll.failed and before.leader in isr and not is_new_epoch:
        # No other replica can lead, so the leader stays and serves as soon as its disk works. Suspect
        # replicas leave ISR and ELR nevertheless.
        if (isr, elr) == (before.isr, before.elr):
            return None
        return before._replace(isr=isr, elr=elr, controller_epoch=context.controller_epoch)
    if leader == NO_LEADER and not is_new_epoch:
        leader = _elect_failed(replicas, isr, elr, roll)
    if leader != NO_LEADER:
        is_lossless = leader in isr or leader in elr
        isr = _isr_after(leader, isr, roll)
        last_known = ()
    else:
        is_lossless = True
    min_isr = min_isr_without_elr(state, context, before.topic, len(replicas))
    gone = {replica for replica in (*before.isr, *before.elr) if replica not in members}
    after = before._replace(
        leader=leader,
        isr=isr,
        elr=eligible_after(before, isr, gone, min_isr) if is_lossless else (),
        last_known_elr=last_known,
    )
    is_reborn = leader != NO_LEADER and not keeps
    if is_new_epoch or is_reborn or leader != before.leader:
        after = after._replace(leader_epoch=before.leader_epoch + 1)
    if after == before:
        return None
    return after._replace(controller_epoch=context.controller_epoch)


def is_cluster_returning(state: ClusterState) -> bool:
    """Returns whether the whole cluster is returning: every registered broker registered after the last
    partition state was written, and others are still missing. The cluster was off, or it was cut off from the
    metadata store.

    A short wait for the others saves each partition an ISR of one member and a second election.
    """
    if not state.brokers:
        return False
    first_epoch = min(broker.broker_epoch for broker in state.brokers.values())
    expected: set[int] = set()
    for partition in state.all_partitions():
        if partition.partition_epoch > first_epoch:
            return False
        expected.update(partition.isr)
    return not expected <= state.brokers.keys()


def settle_partitions(state: ClusterState, context: Context) -> DecisionSteps[None]:
    """Decides the states of all partitions after brokers registered or failed: elects leaders where
    necessary, removes dead brokers from the ISRs of partitions that have a leader, and removes suspect logs
    from ISR and ELR.

    A leader whose registration is newer than the partition's state has registered again since it was elected.
    Every write of a state compares the broker epoch of its leader, so no write can miss a new registration.

    If no broker is registered, nothing is written: no replica could lead, and a whole cluster that restarts
    saves one write for each partition.
    """
    if not state.brokers:
        return ControllerDecision((), None)
    records: list[Record] = []
    for partition in state.all_partitions():
        yield
        after = next_state(state, context, partition)
        if after is not None:
            records.append(written(after))
    # These records come last, when the suspect logs have left every ISR and ELR. From then on, their
    # replicas may catch up and join again.
    records += [
        Write(SettledSuspectEntry(broker_id, state.brokers[broker_id].broker_epoch))
        for broker_id in sorted(state.unsettled_suspects)
    ]
    return ControllerDecision(tuple(records), None)


def _elect(
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last_known: tuple[int, ...],
    roll: RollCall,
) -> int:
    """Returns the first electable replica in the order of the replicas: from the ISR, preferably one that
    never went away; else from the ELR; else, if both are empty, the last known leader.
    """
    for members, present in ((isr, roll.steady), (isr, roll.alive), (elr, roll.alive)):
        leader = _first(replicas, {m for m in members if m in present} - roll.stopping)
        if leader != NO_LEADER:
            return leader
    if not isr and not elr and last_known and last_known[0] in roll.alive - roll.stopping:
        return last_known[0] if last_known[0] in replicas else NO_LEADER
    return NO_LEADER


def _elect_failed(
    replicas: tuple[int, ...], isr: tuple[int, ...], elr: tuple[int, ...], roll: RollCall
) -> int:
    """Returns the first failed replica of the ISR, else of the ELR, or NO_LEADER.

    Its broker leads as soon as the disk works again. Brokers do not report that, so a replica that counts as
    failed may already work. The election is safe: a log that lost records is suspect, so its replica is in
    neither `isr` nor `elr`, and a failure belongs to one registration of the broker. Its next registration
    reports again whether the logs are whole.
    """
    for members in (isr, elr):
        leader = _first(replicas, (roll.failed & frozenset(members)) - roll.stopping)
        if leader != NO_LEADER:
            return leader
    return NO_LEADER


def _first(replicas: tuple[int, ...], candidates: Container[int]) -> int:
    return next((replica for replica in replicas if replica in candidates), NO_LEADER)


def _isr_after(leader: int, isr: tuple[int, ...], roll: RollCall) -> tuple[int, ...]:
    """Returns the members that were registered all along. If there is none, brokers that registered again
    count, too: the whole cluster was off. If the leader's replica has failed, every member stays and may
    take over: no record is committed without it until the leader, once it works, shrinks the ISR.
    """
    if leader not in isr:
        return (leader,)
    if leader in roll.failed:
        return isr
    present = roll.steady if leader in roll.steady else roll.alive
    return tuple(replica for replica in isr if replica in present)


def _last_known_leader(before: PartitionState, isr: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the broker to wait for, if there is one, if no replica can lead: the last leader or, if the ISR
    has become empty, one of its last members.
    """
    last = (before.leader,) if before.leader != NO_LEADER else before.last_known_elr
    if before.isr and not isr and not set(last) & set(before.isr):
        return before.isr[:1]
    return last


def led_by_preferred(state: ClusterState, context: Context, before: PartitionState) -> PartitionState | None:
    """Returns the state with the first replica as leader, at the next leader epoch. Returns None if the first
    replica leads already or cannot lead: it is dead, has registered again, is stopping, or is not in the ISR.
    """
    preferred = before.replicas[0]
    roll = call_roll(state, before)
    if before.leader == preferred or preferred not in before.isr:
        return None
    if preferred not in roll.steady or preferred in roll.stopping:
        return None
    return before._replace(
        leader=preferred,
        leader_epoch=before.leader_epoch + 1,
        controller_epoch=context.controller_epoch,
        last_known_elr=(),
    )


def balance_leaders(state: ClusterState, context: Context) -> DecisionSteps[int]:
    """Moves leadership back to preferred leaders. The reply is the number of partitions that get another
    leader. Partitions under reassignment do not change.
    """
    if not context.rules.auto_leader_rebalance_enable:
        return ControllerDecision((), 0)
    preferred_count: dict[int, int] = {}
    strayed: dict[int, list[PartitionState]] = {}
    for partition in state.all_partitions():
        yield
        preferred = partition.replicas[0]
        preferred_count[preferred] = preferred_count.get(preferred, 0) + 1
        is_moving = partition.adding_replicas or partition.removing_replicas
        if partition.leader != preferred and not is_moving:
            strayed.setdefault(preferred, []).append(partition)
    records: list[Record] = []
    for broker_id in sorted(strayed):
        share = len(strayed[broker_id]) * 100 / preferred_count[broker_id]
        if share <= context.rules.leader_imbalance_per_broker_percentage:
            continue
        for partition in strayed[broker_id]:
            yield
            after = led_by_preferred(state, context, partition)
            if after is not None:
                records.append(written(after))
    return ControllerDecision(tuple(records), len(records))


class ElectionType(IntEnum):
    """Kafka's `ElectionType`; version 0 of the request means PREFERRED."""

    PREFERRED = 0
    UNCLEAN = 1


def elect_leaders(
    state: ClusterState, context: Context, request: ElectLeadersRequest, api_version: int
) -> DecisionSteps[ElectLeadersResponse]:
    """Elects leaders on request. If `topic_partitions` is null, the request is for all partitions, and the
    response omits those that need no election, but no topic.
    """
    if request.election_type not in ElectionType.__members__.values():
        code, message = ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}."
        refused = [
            ReplicaElectionResult(
                name, [PartitionResult(partition, code, message) for partition in partitions]
            )
            for name, partitions in _wanted(state, request)
            if request.topic_partitions is not None
        ]
        return ControllerDecision((), ElectLeadersResponse(error_code=code, replica_election_results=refused))
    unclean = request.election_type == ElectionType.UNCLEAN
    records: list[Record] = []
    results: list[ReplicaElectionResult] = []
    for name, partitions in _wanted(state, request):
        partition_results = []
        for partition in partitions:
            yield
            try:
                records.append(_elect_requested(state, context, name, partition, unclean=unclean))
                partition_results.append(PartitionResult(partition, ErrorCode.NONE, None))
            except KafkaError as error:
                if request.topic_partitions is None and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                partition_results.append(PartitionResult(partition, error.code, error.message))
        if partition_results or request.topic_partitions is None:
            results.append(ReplicaElectionResult(name, partition_results))
    return ControllerDecision(tuple(records), ElectLeadersResponse(replica_election_results=results))


def _wanted(state: ClusterState, request: ElectLeadersRequest) -> Iterable[tuple[str, Iterable[int]]]:
    if request.topic_partitions is None:
        return [(name, range(len(topic.assignments))) for name, topic in state.topics.items()]
    return [(topic.topic, dict.fromkeys(topic.partitions)) for topic in request.topic_partitions]


def _elect_requested(
    state: ClusterState, context: Context, name: str, index: int, *, unclean: bool
) -> Record:
    partition = state.partition(name, index)
    if partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {index} of topic '{name}'."
        )
    elect = _elect_any if unclean else _elect_preferred
    return written(elect(state, context, partition))


def _elect_any(state: ClusterState, context: Context, partition: PartitionState) -> PartitionState:
    if partition.leader != NO_LEADER:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "The partition has a leader.")
    after = next_state(state, context, partition, unclean=True)
    if after is None or after.leader == NO_LEADER:
        raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica of the partition is alive.")
    return after


def _elect_preferred(state: ClusterState, context: Context, partition: PartitionState) -> PartitionState:
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "The preferred leader already leads the partition.")
    after = led_by_preferred(state, context, partition)
    if after is None:
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader {preferred} is not alive or not in the ISR.",
        )
    return after
