"""A load around a fault, and the conditions that must hold after it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from chaoslab import checker
from chaoslab.history import History, poll_of, send_of
from clusterlab.history import judge
from clusterlab.kafka_cluster import KafkaCluster
from clusterlab.load import Load, LoadPlan, read_all
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import await_view, disagreements

FIRST_ACKNOWLEDGEMENT_S = 30.0
IN_SYNC_S = 60.0
AGREE_S = 15.0


@contextlib.contextmanager
def loaded(
    cluster: TidelogCluster | KafkaCluster, plan: LoadPlan, *, keep_history_in: Path | None = None
) -> Iterator[Load]:
    """Runs a load during the block. Afterwards every replica must be in sync, the history correct and every
    record acknowledged, no client may have got a fatal error, and the replicas' files must be equal.
    """
    partitions = range(plan.partitions)
    with Load(cluster.bootstrap, plan) as load:
        load.await_acknowledged(partitions, FIRST_ACKNOWLEDGEMENT_S)
        yield load
    await_view(
        cluster.addresses.values(),
        plan.topic,
        lambda view: all(p.leader >= 0 and set(p.isr) == set(p.replicas) for p in view.values()),
        IN_SYNC_S,
    )
    load.history.final = read_all(cluster.bootstrap, plan.topic, plan.partitions)
    found = judge(load.history)
    if keep_history_in is not None:
        load.history.save(keep_history_in)
    assert found.is_sound, str(found)
    by_jepsen = checker.judge(chaos_history(plan, load))
    assert by_jepsen.is_sound, str(by_jepsen)
    assert load.complaints == []
    assert load.errors() == {}, "the client gave up on records"
    assert found.acknowledged == found.sent > 0
    print(found)
    _assert_replicas_agree(cluster, plan)


def chaos_history(plan: LoadPlan, load: Load) -> History:
    """Returns the load's history for the checker of chaos runs, which also finds skipped records and places
    that held several records. The reader that follows may stop before the end, so it is no audience.
    """
    return History(
        sends=[send_of(plan.topic, sent) for sent in load.history.sent],
        polls=[poll_of(read, "tail", plan.topic) for read in load.history.tailed],
        final=[poll_of(read, "final", plan.topic) for read in load.history.final],
    )


def _assert_replicas_agree(cluster: TidelogCluster | KafkaCluster, plan: LoadPlan) -> None:
    view = await_view(cluster.live_addresses()[:1], plan.topic, lambda view: True, AGREE_S)
    replicas = {partition: state.replicas for partition, state in view.items()}
    log_dirs = {b: cluster.log_dir(b) for b in {b for ids in replicas.values() for b in ids}}
    deadline_s = time.monotonic() + AGREE_S
    while found := disagreements(log_dirs, plan.topic, replicas):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.2)
