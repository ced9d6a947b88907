"""A coordinator learns which topics a client may describe, because regular expressions match no others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerlab.in_memory_broker import Asked, InMemoryBroker
from brokerlab.scripted_coordinator import ScriptedCoordinator, shard_partitions
from tidelog.broker.coordination import coordination
from tidelog.kernel import slices
from tidelog.metadata.entries import AclEntry
from tidelog.model.acl import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    user_principal,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.fair_budget import FairBudget
from tidelog.model.topics import DescribableTopics
from tidelog.rpc.broker_commands import SecurityUpdate
from tidelog.rpc.coordinator_session import TOPICS_NEEDED, AnswerRequest, ForwardedToShard
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

ALICE = user_principal("alice")
HEARTBEAT = ConsumerGroupHeartbeatRequest("g", "m", subscribed_topic_regex=".*")


def grant(operation: AclOperation, kind: ResourceType, name: str) -> AclEntry:
    return AclEntry(AclBinding(kind, PatternType.LITERAL, name, ALICE, "*", operation, PermissionType.ALLOW))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[InMemoryBroker]:
    broker = InMemoryBroker(tmp_path, {"authorizer.class.name": STANDARD_AUTHORIZER})
    broker.add_topic("open")
    broker.add_topic("closed")
    grants = (
        grant(AclOperation.READ, ResourceType.GROUP, "g"),
        grant(AclOperation.READ, ResourceType.TOPIC, "open"),
    )
    broker.update_metadata(security=SecurityUpdate(1, grants))
    yield broker
    broker.close()


@pytest.fixture
def coordinator(lab: InMemoryBroker) -> ScriptedCoordinator:
    owner = ScriptedCoordinator(lab)
    owner.own(*shard_partitions(lab))
    return owner


def test_a_coordinator_gets_the_topics_when_it_asks_for_them(
    lab: InMemoryBroker, coordinator: ScriptedCoordinator
) -> None:
    asked = Asked(lab.broker, HEARTBEAT, 1, principal=ALICE)
    untold = coordinator.take_one(ForwardedToShard)
    assert untold.describable == DescribableTopics(None)
    coordinator.say(AnswerRequest(untold.request_id, None, TOPICS_NEEDED))
    told = coordinator.take_one(ForwardedToShard)
    assert told == untold._replace(
        request_id=told.request_id, describable=DescribableTopics(frozenset({"open"}), 3)
    )
    assert asked.answer is None
    coordinator.answer(told, ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=5))
    assert asked.answer.member_epoch == 5


def test_a_lost_coordinator_is_no_reason_to_wait(
    lab: InMemoryBroker, coordinator: ScriptedCoordinator
) -> None:
    asked = Asked(lab.broker, HEARTBEAT, 1, principal=ALICE)
    untold = coordinator.take_one(ForwardedToShard)
    coordinator.say(AnswerRequest(untold.request_id, None, TOPICS_NEEDED))
    coordinator.end.closed()
    assert asked.answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def ask_to_be_told(
    lab: InMemoryBroker, coordinator: ScriptedCoordinator
) -> tuple[Asked, list[ForwardedToShard]]:
    """Sends a heartbeat whose coordinator asks for the topics. Returns what the coordinator then receives."""
    asked = Asked(lab.broker, HEARTBEAT, 1, principal=ALICE)
    untold = coordinator.take_one(ForwardedToShard)
    coordinator.say(AnswerRequest(untold.request_id, None, TOPICS_NEEDED))
    return asked, coordinator.take(ForwardedToShard)


def test_the_names_in_unanswered_requests_are_bounded(
    lab: InMemoryBroker, coordinator: ScriptedCoordinator
) -> None:
    """Otherwise, many members could fill the memory, or the session, which ends when it is full. Members
    above the limit try again, and all other requests pass.
    """
    coordinator.end.names_budget = FairBudget(3)
    first, (told,) = ask_to_be_told(lab, coordinator)
    ask_to_be_told(lab, coordinator)
    late, nothing = ask_to_be_told(lab, coordinator)
    assert (late.answer.error_code, nothing) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
    other = Asked(lab.broker, HEARTBEAT, 1, principal=ALICE)
    coordinator.answer(coordinator.take_one(ForwardedToShard), ConsumerGroupHeartbeatResponse(member_epoch=4))
    assert other.answer.member_epoch == 4
    coordinator.answer(told, ConsumerGroupHeartbeatResponse(member_epoch=5))
    assert first.answer.member_epoch == 5
    _, (retried,) = ask_to_be_told(lab, coordinator)
    assert retried.describable == told.describable


def test_one_request_may_always_have_its_names(
    lab: InMemoryBroker, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, such a member would wait forever in a cluster with more topics than the limit."""
    monkeypatch.setattr(coordination, "MAX_TOLD_NAMES", 1)
    coordinator.end.names_budget = FairBudget(1)
    _, (told,) = ask_to_be_told(lab, coordinator)
    late, _ = ask_to_be_told(lab, coordinator)
    assert late.answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    coordinator.answer(told, ConsumerGroupHeartbeatResponse(member_epoch=5))
    _, (retried,) = ask_to_be_told(lab, coordinator)
    assert retried.describable == told.describable


def test_topics_are_found_in_slices(
    lab: InMemoryBroker, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_MS", 1e-6)
    for number in range(2 * slices.STEPS_BETWEEN_READINGS):
        lab.add_topic(f"more-{number}")
    told: list[ForwardedToShard] = []

    async def ask() -> None:
        for _ in range(2):
            _, at_once = ask_to_be_told(lab, coordinator)
            assert not at_once
        async with asyncio.timeout(10):
            while len(told) < 2:
                await asyncio.sleep(0)
                told.extend(coordinator.take(ForwardedToShard))

    lab.runner.run(ask())
    topics = DescribableTopics(frozenset({"open"}), 3 + 2 * slices.STEPS_BETWEEN_READINGS)
    assert [item.describable for item in told] == [topics, topics]
