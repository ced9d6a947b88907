"""The metrics of a controller: whether it is the active one and, if it is, the cluster in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidelog.model.protocol_values import NO_LEADER

if TYPE_CHECKING:
    from tidelog.controller.core.state import ClusterState
    from tidelog.metrics.families import Families


class ControllerCounts:
    """The counters of a controller. `is_active` is true while it is the cluster's controller."""

    __slots__ = ("is_active", "leader_elections", "unclean_leader_elections")

    def __init__(self) -> None:
        self.is_active = False
        self.leader_elections = 0
        self.unclean_leader_elections = 0


class BrokerInfo(NamedTuple):
    """A live broker. `address` is its first endpoint, as "host:port"."""

    broker_id: int
    address: str
    rack: str


class Overview(NamedTuple):
    """The cluster as the active controller knows it, at one moment.

    `partition_counts` is by topic. `preferred_replica_imbalance_count` counts the partitions whose leader is
    not their first replica. `queued_commands` counts the commands that wait to be sent, by broker;
    `failed_replicas` counts the replicas that a broker cannot open or write; `absent_brokers` have replicas
    and are not registered.
    """

    brokers: Sequence[BrokerInfo] = ()
    partition_counts: Mapping[str, int] = {}
    offline_partition_count: int = 0
    preferred_replica_imbalance_count: int = 0
    reassigning_partition_count: int = 0
    failed_replicas: Mapping[int, int] = {}
    queued_items: int = 0
    queued_commands: Mapping[int, int] = {}
    controller_epoch: int = 0
    absent_brokers: Sequence[int] = ()


def overview_of(
    state: ClusterState, queued_items: int, queued_commands: Mapping[int, int], controller_epoch: int
) -> Overview:
    """Counts over all partitions. Any thread may call it, because it reads copies."""
    brokers = dict(state.brokers)
    offline = imbalanced = reassigning = 0
    counts: dict[str, int] = {}
    assigned: set[int] = set()
    for topic in list(state.topics.values()):
        counts[topic.name] = len(topic.assignments)
        reassigning += len(topic.adding.keys() | topic.removing.keys())
        stored = dict(state.partitions.get(topic.name, {}))
        for index, replicas in enumerate(topic.assignments):
            assigned.update(replicas)
            if index not in stored:
                continue
            leader = stored[index].leader
            if leader == NO_LEADER or leader not in brokers:
                offline += 1
            if leader != replicas[0]:
                imbalanced += 1
    return Overview(
        [
            BrokerInfo(id_, broker.endpoints[0].address if broker.endpoints else "", broker.rack or "")
            for id_, broker in sorted(brokers.items())
        ],
        counts,
        offline,
        imbalanced,
        reassigning,
        {broker_id: len(failed) for broker_id, failed in dict(state.failed_replicas).items()},
        queued_items,
        queued_commands,
        controller_epoch,
        tuple(sorted(assigned - brokers.keys())),
    )


class ControllerView(Protocol):
    """The part of a controller that its metrics show."""

    @property
    def counts(self) -> ControllerCounts: ...

    def overview(self) -> Overview:
        """Returns the cluster's numbers. Any thread may call it."""
        ...


class ControllerMetrics:
    """The collector of a controller's metrics.

    Every process has one: a process without a controller, or before `observe`, shows that it is not the
    active controller.
    """

    def __init__(self) -> None:
        self._controller: ControllerView | None = None

    def observe(self, controller: ControllerView) -> None:
        """Shows this controller from now on."""
        self._controller = controller

    def collect(self, families: Families) -> None:
        """Adds the current samples."""
        controller = self._controller
        is_active = controller is not None and controller.counts.is_active
        name = "kafka_controller_kafkacontroller_activecontrollercount"
        families.gauge(name, "1 if this process is the active controller", int(is_active))
        if controller is not None and is_active:
            _add_cluster(families, controller.counts, controller.overview())


def _add_cluster(families: Families, counts: ControllerCounts, seen: Overview) -> None:
    prefix = "kafka_controller_kafkacontroller"
    partition_count = sum(seen.partition_counts.values())
    families.gauge(f"{prefix}_globaltopiccount", "Topics of the cluster", len(seen.partition_counts))
    families.gauge(f"{prefix}_globalpartitioncount", "Partitions of the cluster", partition_count)
    offline = seen.offline_partition_count
    families.gauge(f"{prefix}_offlinepartitionscount", "Partitions without a leader", offline)
    doc, imbalanced = "Partitions not led by their first replica", seen.preferred_replica_imbalance_count
    families.gauge(f"{prefix}_preferredreplicaimbalancecount", doc, imbalanced)
    families.gauge(f"{prefix}_activebrokercount", "Live brokers", len(seen.brokers))
    prefix = "kafka_controller_controllerstats"
    doc, unclean = "Leaders elected from outside the ISR", counts.unclean_leader_elections
    families.counter(f"{prefix}_leaderelections", "Leaders elected", counts.leader_elections)
    families.counter(f"{prefix}_uncleanleaderelections", doc, unclean)
    _add_work(families, seen)
    families.gauge("kafka_brokers", "Live brokers", len(seen.brokers))
    for broker in seen.brokers:
        labels = {"id": str(broker.broker_id), "address": broker.address, "rack": broker.rack}
        families.gauge("kafka_broker_info", "A live broker and its first address", 1, **labels)
    doc = "1 if a broker is registered, 0 if it has replicas and is not registered"
    registered = {broker.broker_id: 1 for broker in seen.brokers} | dict.fromkeys(seen.absent_brokers, 0)
    for broker_id, is_registered in sorted(registered.items()):
        name = "tidelog_controller_broker_registered"
        families.gauge(name, doc, is_registered, broker_id=str(broker_id))
    for topic, count in sorted(seen.partition_counts.items()):
        families.gauge("kafka_topic_partitions", "Partitions of a topic", count, topic=topic)


def _add_work(families: Families, seen: Overview) -> None:
    doc = "Requests and changes that wait in the controller's queue"
    families.gauge("kafka_controller_controllereventmanager_eventqueuesize", doc, seen.queued_items)
    prefix, doc = "kafka_controller_controllerchannelmanager", "Commands that wait to be sent to brokers"
    families.gauge(f"{prefix}_totalqueuesize", doc, sum(seen.queued_commands.values()))
    for broker in seen.brokers:
        broker_id = broker.broker_id
        queued = seen.queued_commands.get(broker_id, 0)
        doc = "Commands that wait to be sent to one broker"
        families.gauge(f"{prefix}_queuesize", doc, queued, broker_id=str(broker_id))
        failed, doc = seen.failed_replicas.get(broker_id, 0), "Replicas that a broker cannot open or write"
        families.gauge("tidelog_controller_failed_replicas", doc, failed, broker_id=str(broker_id))
    doc = "Controller epoch; each change of the controller increments it"
    families.gauge("tidelog_controller_epoch", doc, seen.controller_epoch)
    doc, moving = "Partitions whose replicas are being reassigned", seen.reassigning_partition_count
    families.gauge("tidelog_controller_reassigning_partitions", doc, moving)
