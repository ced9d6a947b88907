"""A replica whose log may lack its end is not elected while the leader's disk has failed."""

from __future__ import annotations

from clusterlab.controllers import Core
from tidelog.controller.core.state import ChangeSet
from tidelog.model.topics import TopicPartition

MakeCore = type[Core]
PARTITION = TopicPartition("t", 0)


def _fail(cluster: Core, broker_id: int) -> None:
    """The broker reports that the disk of its replica has failed."""
    broker = cluster.state.brokers[broker_id]
    cluster.state.note_replicas(broker_id, broker.broker_epoch, {PARTITION}, set(), ChangeSet())


def test_a_suspect_log_leaves_the_elr_while_the_leaders_disk_has_failed(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2, 3], min_insync_replicas="2")
    cluster.death(3)
    cluster.death(2)
    _fail(cluster, 1)
    cluster.birth(2, is_log_suspect=True)
    state = cluster.partition("t")
    assert (state.leader, set(state.isr), set(state.elr)) == (1, {1}, set())
    cluster.death(1)
    assert cluster.partition("t").leader == -1
