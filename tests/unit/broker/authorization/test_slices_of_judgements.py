"""Judgements about all topics let other clients have their turns."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerlab.in_memory_broker import Asked, InMemoryBroker, until
from brokerlab.scripted_coordinator import ScriptedCoordinator, shard_partitions
from tidelog.broker.security.acl_index import AclIndex, Address
from tidelog.broker.security.judging import Judgement
from tidelog.broker.security.rules import _shown_topics
from tidelog.kernel import slices
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import AclEntry
from tidelog.model.acl import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    Principal,
    ResourceType,
    user_principal,
)
from tidelog.model.errors import ErrorCode
from tidelog.rpc.broker_commands import SecurityUpdate
from tidelog.rpc.coordinator_session import ForwardedToShard
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.wire.messages import describe_topic_partitions, metadata, offset_commit, offset_fetch

ALICE = user_principal("alice")
TOPICS = 60
OPERATIONS_OF_TOPIC = 8
MAX_TOPICS_OF_TURN = 2 * slices.STEPS_BETWEEN_READINGS
"""Two, because the last slice of the judgement and the first one of the edit may be in one turn."""


class Lab:
    """A broker with topics of which Alice may read all but one, and the decisions of each turn."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = InMemoryBroker(directory, {"authorizer.class.name": STANDARD_AUTHORIZER})
        self.most_in_turn = self._in_turn = 0
        for number in range(TOPICS):
            self.broker.add_topic(f"shown-{number:03}")
        self.broker.add_topic("hidden")
        binding = AclBinding(
            ResourceType.TOPIC,
            PatternType.PREFIXED,
            "shown",
            ALICE,
            "*",
            AclOperation.READ,
            PermissionType.ALLOW,
        )
        self.broker.update_metadata(security=SecurityUpdate(1, (AclEntry(binding),)))
        decide, run = AclIndex.decide, self.broker.runner.run

        def counted(
            index: AclIndex, principal: Principal, address: Address, operation: int, kind: int, name: str
        ) -> bool | None:
            self._in_turn += 1
            self.most_in_turn = max(self.most_in_turn, self._in_turn)
            return decide(index, principal, address, operation, kind, name)

        async def in_turns(work: Coroutine[object, None, Any]) -> Any:
            task = asyncio.create_task(work)
            while not task.done():
                self.begin_turn()
                await asyncio.sleep(0)
            return task.result()

        monkeypatch.setattr(slices, "SLICE_MS", 1e-6)  # a slice ends at the first reading of the clock
        monkeypatch.setattr(AclIndex, "decide", counted)
        monkeypatch.setattr(self.broker.runner, "run", lambda work: run(in_turns(work)))

    def begin_turn(self) -> None:
        self._in_turn = 0

    def call(self, request: Any, version: int) -> Any:
        self.begin_turn()
        return self.broker.call(request, version, principal=ALICE)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    lab = Lab(tmp_path, monkeypatch)
    yield lab
    lab.broker.close()


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (metadata.MetadataRequest(topics=[]), 0),
        (metadata.MetadataRequest(topics=None), 12),
        (metadata.MetadataRequest(topics=None, include_topic_authorized_operations=True), 12),
        (
            metadata.MetadataRequest(
                topics=[metadata.MetadataRequestTopic(name=f"shown-{n:03}") for n in range(TOPICS)],
                include_topic_authorized_operations=True,
            ),
            12,
        ),
        (describe_topic_partitions.DescribeTopicPartitionsRequest(), 0),
    ],
    ids=["first version", "without operations", "with operations", "named topics", "partitions"],
)
def test_no_turn_judges_all_topics(lab: Lab, request_: Any, version: int) -> None:
    response = lab.call(request_, version)
    assert sorted(topic.name for topic in response.topics) == [f"shown-{n:03}" for n in range(TOPICS)]
    has_operations = getattr(request_, "include_topic_authorized_operations", True)
    assert lab.most_in_turn <= MAX_TOPICS_OF_TURN * (OPERATIONS_OF_TOPIC if has_operations else 1)
    if has_operations:
        bits = 1 << AclOperation.READ | 1 << AclOperation.DESCRIBE
        assert {topic.topic_authorized_operations for topic in response.topics} == {bits}


async def answered_offsets(lab: Lab, coordinator: ScriptedCoordinator, *, is_lost: bool = False) -> Any:
    """Returns the answer to a request for all offsets of a group, in a version before batches."""
    asked = Asked(lab.broker.broker, offset_fetch.OffsetFetchRequest("g", None), 7, principal=ALICE)
    await until(lambda: bool(coordinator.sent))
    forwarded = coordinator.take_one(ForwardedToShard)
    names = [f"shown-{number:03}" for number in range(TOPICS)]
    topics = [offset_fetch.OffsetFetchResponseTopic(name) for name in [*names, "hidden"]]
    if is_lost:
        coordinator.end.closed()
    else:
        coordinator.answer(forwarded, offset_fetch.OffsetFetchResponse(topics=topics))
    while asked.answer is None:
        lab.begin_turn()
        await asyncio.sleep(0)
    return asked.answer


def coordinator_of_group(lab: Lab) -> ScriptedCoordinator:
    """Returns the coordinator of all groups, of which Alice may use one."""
    binding = AclBinding(
        ResourceType.GROUP, PatternType.LITERAL, "g", ALICE, "*", AclOperation.READ, PermissionType.ALLOW
    )
    lab.broker.update_metadata(security=SecurityUpdate(2, (AclEntry(binding),)))
    coordinator = ScriptedCoordinator(lab.broker)
    coordinator.own(*shard_partitions(lab.broker))
    return coordinator


async def committed(lab: Lab, coordinator: ScriptedCoordinator) -> Any:
    """Returns the answer to a commit for all topics. Its handler parks it after slices of judging."""
    names = [*(f"shown-{number:03}" for number in range(TOPICS)), "hidden"]
    partitions = [offset_commit.OffsetCommitRequestPartition()]
    topics = [offset_commit.OffsetCommitRequestTopic(name=name, partitions=partitions) for name in names]
    commit = offset_commit.OffsetCommitRequest("g", topics=topics)
    asked = Asked(lab.broker.broker, commit, 8, principal=ALICE)
    assert not coordinator.sent
    await until(lambda: bool(coordinator.sent))
    forwarded = coordinator.take_one(ForwardedToShard)
    assert b"hidden" not in forwarded.body
    assert asked.answer is None
    results = [offset_commit.OffsetCommitResponseTopic(name=name) for name in names[:-1]]
    coordinator.answer(forwarded, offset_commit.OffsetCommitResponse(topics=results))
    return asked.answer


def test_a_request_is_parked_after_its_judgement(lab: Lab) -> None:
    response = lab.broker.runner.run(committed(lab, coordinator_of_group(lab)))
    errors = {topic.name: [part.error_code for part in topic.partitions] for topic in response.topics}
    assert errors.pop("hidden") == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert errors == {f"shown-{number:03}": [] for number in range(TOPICS)}


def test_no_turn_judges_all_offsets_of_a_group(lab: Lab) -> None:
    coordinator = coordinator_of_group(lab)
    response = lab.broker.runner.run(answered_offsets(lab, coordinator))
    assert [topic.name for topic in response.topics] == [f"shown-{n:03}" for n in range(TOPICS)]
    assert lab.most_in_turn <= MAX_TOPICS_OF_TURN
    lost = lab.broker.runner.run(answered_offsets(lab, coordinator, is_lost=True))
    assert (lost.error_code, lost.topics) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])


names = st.sets(st.sampled_from("abcdefgh"))


@given(names, names, names, st.integers(0, 8))
def test_topics_that_were_created_meanwhile_are_not_shown(
    allowed: set[str], before: set[str], after: set[str], steps_before: int
) -> None:
    view = SimpleNamespace(topics=dict.fromkeys(sorted(before)))
    judgement = SimpleNamespace(metadata=view, may=lambda _, __, name, is_asked_for: name in allowed)
    steps = _shown_topics(cast(Judgement, judgement))
    steps_before = min(steps_before, len(before))
    for _ in range(steps_before):
        next(steps)
    view.topics = dict.fromkeys(after)
    shown = all_at_once(steps)
    if steps_before == 0:  # the judgement began after the change
        before = after
    if shown is None:
        assert after <= before & allowed
    else:
        assert set(shown) == before & after & allowed
