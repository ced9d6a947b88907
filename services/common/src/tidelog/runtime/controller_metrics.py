"""A controller as Prometheus samples: whether it is in office; of the one that is, the cluster in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tidelog.runtime.sample_families import Families
    from tidelog.runtime.telemetry import ControllerCounts


class BrokerInfo(NamedTuple):
    """A live broker; `address` is its first ("host:port")."""

    broker_id: int
    address: str
    rack: str


class Overview(NamedTuple):
    """The cluster as the active controller knows it, at one moment. `queued_commands`: those that each broker
    has yet to be told; `failed_replicas`: by broker, those it can't open or write.
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


class ControllerView(Protocol):
    """What is shown of a controller."""

    def overview(self) -> Overview:
        """From any thread."""
        ...


def add_controller(families: Families, counts: ControllerCounts, view: ControllerView | None) -> None:
    prefix = "kafka_controller_kafkacontroller"
    is_active = int(counts.is_active)
    families.gauge(f"{prefix}_activecontrollercount", "1 if it is the controller", is_active)
    if view is None or not is_active:
        return
    seen = view.overview()
    partition_count = sum(seen.partition_counts.values())
    families.gauge(f"{prefix}_globaltopiccount", "Topics of the cluster", len(seen.partition_counts))
    families.gauge(f"{prefix}_globalpartitioncount", "Partitions of the cluster", partition_count)
    offline = seen.offline_partition_count
    families.gauge(f"{prefix}_offlinepartitionscount", "Partitions without a leader", offline)
    imbalanced = seen.preferred_replica_imbalance_count
    families.gauge(f"{prefix}_preferredreplicaimbalancecount", "Not led as preferred", imbalanced)
    families.gauge(f"{prefix}_activebrokercount", "Live brokers", len(seen.brokers))
    prefix = "kafka_controller_controllerstats"
    unclean = counts.unclean_leader_elections
    families.counter(f"{prefix}_leaderelections", "Leaders elected", counts.leader_elections)
    families.counter(f"{prefix}_uncleanleaderelections", "Of them outside the ISR", unclean)
    _add_work(families, seen)
    families.gauge("kafka_brokers", "Live brokers", len(seen.brokers))
    for broker in seen.brokers:
        labels = {"id": str(broker.broker_id), "address": broker.address, "rack": broker.rack}
        families.gauge("kafka_broker_info", "A live broker and its first address", 1, **labels)
    for topic, count in sorted(seen.partition_counts.items()):
        families.gauge("kafka_topic_partitions", "Partitions of a topic", count, topic=topic)


def _add_work(families: Families, seen: Overview) -> None:
    doc = "Requests and changes that the controller has yet to take up"
    families.gauge("kafka_controller_controllereventmanager_eventqueuesize", doc, seen.queued_items)
    prefix, doc = "kafka_controller_controllerchannelmanager", "Commands that brokers have yet to be told"
    families.gauge(f"{prefix}_totalqueuesize", doc, sum(seen.queued_commands.values()))
    for broker in seen.brokers:
        broker_id = broker.broker_id
        queued = seen.queued_commands.get(broker_id, 0)
        doc = "Commands that a broker has yet to be told"
        families.gauge(f"{prefix}_queuesize", doc, queued, broker_id=str(broker_id))
        failed, doc = seen.failed_replicas.get(broker_id, 0), "Replicas that a broker can't open or write"
        families.gauge("tidelog_controller_failed_replicas", doc, failed, broker_id=str(broker_id))
    doc = "Raised by each change of the controller"
    families.gauge("tidelog_controller_epoch", doc, seen.controller_epoch)
    moving = seen.reassigning_partition_count
    families.gauge("tidelog_controller_reassigning_partitions", "Partitions on their way", moving)
