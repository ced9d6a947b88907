"""Who leads a partition: the first of its replicas, in their order, alive and in the ISR (SPEC D3)."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from tidelog.controller.core.context import Context
from tidelog.controller.core.records import Decision, Record, Write
from tidelog.controller.core.state import ClusterState, StoredPartition
from tidelog.metadata.entries import PartitionStateEntry
from tidelog.rpc.broker_commands import NO_LEADER


class Elected(NamedTuple):
    leader: int
    isr: tuple[int, ...]


def choose_leader(
    replicas: tuple[int, ...], isr: tuple[int, ...], alive: Container[int], *, unclean: bool = False
) -> Elected:
    """The leader and ISR that follow from who is alive.

    The last ISR stays when all of it is dead, for only one of them may lead without loss. Then the leader
    is NO_LEADER or, with `unclean`, any replica alive, alone in the ISR: what the others had acknowledged
    is lost.
    """
    alive_isr = tuple([replica for replica in isr if replica in alive])
    for replica in replicas:
        if replica in alive_isr:
            return Elected(replica, alive_isr)
    if unclean:
        for replica in replicas:
            if replica in alive:
                return Elected(replica, (replica,))
    return Elected(NO_LEADER, isr)


def elect_new_leader(
    state: ClusterState,
    context: Context,
    replicas: tuple[int, ...],
    stored: StoredPartition,
    *,
    unclean: bool | None = None,
) -> PartitionStateEntry | None:
    """The state after an election, at the next leader epoch; None if it leaves everything as it is.

    With `unclean` None the topic's `unclean.leader.election.enable` decides, where it matters.
    """
    before = stored.state
    elected = choose_leader(replicas, before.isr, state.brokers)
    if elected.leader == NO_LEADER:
        if unclean is None:
            configs = state.configs_of(before.topic)
            unclean = context.rules.settings.is_unclean_election_allowed(configs)
        elected = choose_leader(replicas, before.isr, state.brokers, unclean=unclean)
    if elected.leader == NO_LEADER and before.leader == NO_LEADER:
        return None
    return PartitionStateEntry(
        topic=before.topic,
        partition=before.partition,
        leader=elected.leader,
        leader_epoch=before.leader_epoch + 1,
        isr=elected.isr,
        controller_epoch=context.controller_epoch,
        elr=tuple([replica for replica in before.elr if replica not in elected.isr]),
        last_known_leader=before.leader if elected.leader == NO_LEADER else -1,
    )


def settle_partitions(state: ClusterState, context: Context) -> Decision[None]:
    """After brokers came or went: new leaders where they are needed, the dead out of ISRs that go on
    without them.

    A leader whose registration is newer than the partition's state was reborn since it was chosen: it gets
    a new leader epoch, for its log may have lost its end. (Every state names the broker epoch of its leader
    among its compares, so none can be written in ignorance of a rebirth.)

    With no broker alive nothing is written: nobody could lead and nobody could be told, and a whole cluster
    that restarts is spared a write for each partition.
    """
    if not state.brokers:
        return Decision((), None)
    records: list[Record] = []
    for topic, partition, stored in state.all_partitions():
        entry = _settle(state, context, topic.assignments[partition], stored)
        if entry is not None:
            records.append(Write(entry, stored.mod_revision))
    return Decision(tuple(records), None)


def _settle(
    state: ClusterState, context: Context, replicas: tuple[int, ...], stored: StoredPartition
) -> PartitionStateEntry | None:
    before = stored.state
    brokers = state.brokers
    leader = brokers.get(before.leader)
    if leader is None or leader.broker_epoch > stored.mod_revision:
        return elect_new_leader(state, context, replicas, stored)
    alive_isr = tuple(replica for replica in before.isr if replica in brokers)
    if len(alive_isr) == len(before.isr):
        return None
    return before._replace(isr=alive_isr, controller_epoch=context.controller_epoch)
