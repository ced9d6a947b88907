"""Readiness of brokers, by the controller's metadata and, before that, by the store."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, cast

from brokerlab.replicating_brokers import until
from tidelog.broker.cluster.view import BrokerIdentity, MetadataView
from tidelog.broker.hosting.readiness import BrokerReadiness
from tidelog.metadata.entries import PartitionStateEntry
from tidelog.metadata.store import KeyValue, MetadataStore, StoreUnavailableError
from tidelog.model.brokers import BrokerRegistration
from tidelog.rpc.broker_commands import PartitionState, TopicState, UpdateMetadata

TOPIC_ID = uuid.UUID(int=7)
US = 1


class Store:
    """A reader of partition states. The store is unavailable while `isrs` is None."""

    def __init__(self) -> None:
        self.isrs: dict[str, tuple[int, ...]] | None = None

    async def get(self, key: str) -> KeyValue | None:
        if self.isrs is None:
            raise StoreUnavailableError("away")
        partition = key.split("/")[-2]
        entry = PartitionStateEntry("t", int(partition), 2, 0, self.isrs[partition], 1)
        return KeyValue(key, entry.encode(), 1, 1, 0)


class Lab:
    def __init__(self) -> None:
        self.metadata = MetadataView("cluster")
        self.identity = BrokerIdentity(US)
        self.identity.broker_epoch = 10
        self.store = Store()
        self.readiness = BrokerReadiness(self.identity, self.metadata, cast(MetadataStore, self.store))

    def tell(self, *partitions: dict[str, Any], epoch: int = 10, live: tuple[int, ...] = (US, 2)) -> None:
        """Applies metadata of the controller with partitions that broker 2 leads."""
        states = tuple(
            PartitionState(
                "t",
                TOPIC_ID,
                number,
                **{"leader": 2, "leader_epoch": 0, "replicas": (US, 2), **given},
                controller_epoch=1,
            )
            for number, given in enumerate(partitions)
        )
        brokers = tuple(BrokerRegistration(number, epoch if number == US else 5, ()) for number in live)
        topics = (TopicState("t", TOPIC_ID, states, {}),)
        self.metadata.apply(UpdateMetadata(1, 1, brokers, topics, is_full=True))

    def is_ready(self) -> bool:
        return self.readiness.why_not() is None


IN_SYNC, BEHIND = {"isr": (US, 2)}, {"isr": (2,)}


def test_a_broker_must_be_known_in_its_current_epoch() -> None:
    async def scenario() -> None:
        lab = Lab()
        assert not lab.is_ready()
        lab.tell(IN_SYNC, epoch=9)
        assert not lab.is_ready()
        lab.tell(IN_SYNC)
        assert lab.is_ready()
        lab.identity.broker_epoch = 11  # It lost its lease and registered again.
        assert not lab.is_ready()

    asyncio.run(scenario())


def test_partitions_that_do_not_prevent_readiness() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.tell(
            {"isr": (2,), "leader": -1},
            {"isr": (3,), "leader": 3},  # It died, and the controller has not reported this yet.
            {"isr": (2,), "adding_replicas": (US,)},
            {"isr": (2,), "replicas": (2, 3)},
        )
        assert lab.is_ready()
        lab.tell(IN_SYNC)
        lab.tell(BEHIND)
        assert lab.is_ready(), "a broker that has caught up stays ready in this epoch"

    asyncio.run(scenario())


def test_a_broker_is_ready_as_soon_as_the_store_says_so() -> None:
    async def scenario() -> None:
        lab = Lab()
        lab.tell(IN_SYNC, BEHIND, BEHIND)
        try:
            assert lab.readiness.why_not() == "2 partitions are not in sync yet: t-1, t-2"
            await asyncio.sleep(0.3)
            assert not lab.is_ready(), "the store is unavailable"
            lab.store.isrs = {"1": (2, US), "2": (2,)}
            await until(lambda: "1 partitions are not in sync yet: t-2" in (lab.readiness.why_not() or ""))
            lab.store.isrs["2"] = (2, US)
            await until(lab.is_ready)
        finally:
            await lab.readiness.stop()

    asyncio.run(asyncio.wait_for(scenario(), 10))
