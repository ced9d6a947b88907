"""Who leads a partition, who is in sync and who is eligible, once brokers have come and gone.

SPEC D3, C10, C13; KIP-966 for eligible leader replicas, with one difference: the last ISR stays when all of
it is dead, so there is no empty ISR as long as one of its logs can be trusted.
"""

from __future__ import annotations

from collections.abc import Container

from tidelog.controller.core.context import Context
from tidelog.controller.core.records import Decision, Record, Write
from tidelog.controller.core.roll_call import RollCall, call_roll
from tidelog.controller.core.state import ClusterState, StoredPartition
from tidelog.metadata.entries import PartitionStateEntry, SettledSuspectEntry
from tidelog.rpc.broker_commands import NO_LEADER


def effective_min_isr(state: ClusterState, context: Context, topic: str, replica_count: int) -> int:
    """No more than there are replicas."""
    return min(context.rules.settings.min_in_sync_replicas(state.configs_of(topic)), replica_count)


def eligible_after(
    before: PartitionStateEntry, isr: tuple[int, ...], excluded: Container[int], min_isr: int
) -> tuple[int, ...]:
    """The ELR that goes with `isr`: while it is below its minimum the high watermark stands, so whoever
    leaves then still has all that was acknowledged.
    """
    if len(isr) >= min_isr:
        return ()
    members = {*before.isr, *before.elr} - set(isr)
    return tuple(sorted(member for member in members if member not in excluded))


def next_state(
    state: ClusterState,
    context: Context,
    replicas: tuple[int, ...],
    stored: StoredPartition,
    *,
    unclean: bool | None = None,
    is_new_epoch: bool = False,
) -> PartitionStateEntry | None:
    """What a partition's state has to be by now; None if it is that already.

    A leader that is alive, in its life and in the ISR stays. `unclean`: whether a replica that may lack
    acknowledged records may lead for want of another; None leaves it to `unclean.leader.election.enable`.
    `is_new_epoch`: the leader epoch grows in any case, for the replicas changed.
    """
    before = stored.state
    roll = call_roll(state, replicas, stored)
    if not is_new_epoch and roll.is_untouched(before):
        return None
    members = set(replicas) - roll.suspect
    isr = tuple(replica for replica in before.isr if replica in members)
    elr = tuple(replica for replica in before.elr if replica in members)
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
        # Nobody does better; it leads as soon as its disk lets it. Logs in doubt go all the same.
        if (isr, elr) == (before.isr, before.elr):
            return None
        return before._replace(isr=isr, elr=elr, controller_epoch=context.controller_epoch)
    if leader != NO_LEADER:
        is_lossless = leader in isr or leader in elr
        isr = _isr_after(leader, isr, roll)
        last_known = NO_LEADER
    else:
        is_lossless = True
    min_isr = effective_min_isr(state, context, before.topic, len(replicas))
    gone = {replica for replica in (*before.isr, *before.elr) if replica not in members}
    after = before._replace(
        leader=leader,
        isr=isr,
        elr=eligible_after(before, isr, gone, min_isr) if is_lossless else (),
        last_known_leader=last_known,
    )
    is_reborn = leader != NO_LEADER and not keeps
    if is_new_epoch or is_reborn or leader != before.leader:
        after = after._replace(leader_epoch=before.leader_epoch + 1)
    if after == before:
        return None
    return after._replace(controller_epoch=context.controller_epoch)


def is_cluster_returning(state: ClusterState) -> bool:
    """Every broker that is there registered after the last partition state was written, and others are still
    missing: the whole cluster was off, or cut off from the metadata store, and comes back one by one.

    Waiting for the others a moment spares each partition an ISR of one and a second election.
    """
    if not state.brokers:
        return False
    first_epoch = min(broker.broker_epoch for broker in state.brokers.values())
    expected: set[int] = set()
    for _, _, stored in state.all_partitions():
        if stored.mod_revision > first_epoch:
            return False
        expected.update(stored.state.isr)
    return not expected <= state.brokers.keys()


def settle_partitions(state: ClusterState, context: Context) -> Decision[None]:
    """After brokers came or went: new leaders where they are needed, the dead out of ISRs that go on
    without them, logs in doubt out of ISR and ELR.

    A leader whose registration is newer than the partition's state was reborn since it was chosen. (Every
    state names the broker epoch of its leader among its compares, so none can be written in ignorance of a
    rebirth.)

    With no broker alive nothing is written: nobody could lead and nobody could be told, and a whole cluster
    that restarts is spared a write for each partition.
    """
    if not state.brokers:
        return Decision((), None)
    records: list[Record] = []
    for topic, partition, stored in state.all_partitions():
        entry = next_state(state, context, topic.assignments[partition], stored)
        if entry is not None:
            records.append(Write(entry, stored.mod_revision))
    # Last, when their logs count nowhere any more: from then on they may earn their way back.
    records += [
        Write(SettledSuspectEntry(broker_id, state.brokers[broker_id].broker_epoch))
        for broker_id in sorted(state.unsettled_suspects)
    ]
    return Decision(tuple(records), None)


def _elect(
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last_known: int,
    roll: RollCall,
) -> int:
    """The first in the replicas' order: of the ISR, rather one that never went away; then of the ELR; when
    both are empty the last one known to have led.
    """
    for members, present in ((isr, roll.steady), (isr, roll.alive), (elr, roll.alive)):
        leader = _first(replicas, {m for m in members if m in present} - roll.stopping)
        if leader != NO_LEADER:
            return leader
    if not isr and not elr and last_known in replicas and last_known in roll.alive - roll.stopping:
        return last_known
    return NO_LEADER


def _first(replicas: tuple[int, ...], candidates: Container[int]) -> int:
    return next((replica for replica in replicas if replica in candidates), NO_LEADER)


def _isr_after(leader: int, isr: tuple[int, ...], roll: RollCall) -> tuple[int, ...]:
    """Those who were there all along; the reborn too, when there is nobody else (a cluster that was off)."""
    if leader not in isr:
        return (leader,)
    present = roll.steady if leader in roll.steady else roll.alive
    return tuple(replica for replica in isr if replica in present)


def _last_known_leader(before: PartitionStateEntry, isr: tuple[int, ...]) -> int:
    """Who is to be waited for if nobody may lead: who led last or, should the ISR have come to nothing, one
    of those who were in it to the end.
    """
    last = before.leader if before.leader != NO_LEADER else before.last_known_leader
    if before.isr and not isr and last not in before.isr:
        return before.isr[0]
    return last
