"""The rules that consumer, share and streams groups have in common, each for all kinds that have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple  # Any: the labs, members and answers of each kind

import pytest

from grouplab.consumer_lab import ConsumerLab, ModelConsumer
from grouplab.shard_lab import GROUP, REBALANCE_MS
from grouplab.share_lab import SHARERS, ModelSharer, ShareLab
from grouplab.streams_lab import APPLICATION, SOURCE, ModelThread, StreamsLab, stateful
from tidelog.group_coordinator.groups.consumer import consumer_groups
from tidelog.group_coordinator.groups.share import share_groups
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidelog.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.wire.messages.share_group_describe import ShareGroupDescribeRequest
from tidelog.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidelog.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from tidelog.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest

PARTITIONS = 4
SILENCE_MS = 50_000
"""A time that is longer than a session."""
EAGER = {f"group.{name}.assignment.interval.ms": "0" for name in ("consumer", "share")}


class Kind(NamedTuple):
    """One kind of group: its requests, the fields of a first heartbeat, and a lab with models of members."""

    name: str
    group_id: str
    heartbeat: Callable[..., Any]
    describe: Callable[..., Any]
    first: dict[str, Any]
    make_lab: Callable[[dict[str, str]], Any]
    new_member: Callable[[Any, str], Any]
    step: Callable[[Any], int]
    """Sends a heartbeat of a member, and returns its error."""
    owned: Callable[[Any], int]

    def lab(self, **settings: str) -> Any:
        """Returns a lab with a topic. `settings` are those of this kind of group."""
        lab = self.make_lab(
            {f"group.{self.name}.{name.replace('_', '.')}": settings[name] for name in settings}
        )
        lab.set_topic(SOURCE, PARTITIONS)
        return lab

    def beat(self, lab: Any, **fields: Any) -> Any:
        request = self.heartbeat(**{"group_id": self.group_id, "member_id": "a"} | fields)
        version = self.heartbeat.VERSIONS[1] if self.name == "share" else 0  # type: ignore[attr-defined]
        return lab.ask(ApiKey[f"{self.name.upper()}_GROUP_HEARTBEAT"], version, request)

    def described(self, lab: Any, group_id: str) -> Any:
        api_key = ApiKey[f"{self.name.upper()}_GROUP_DESCRIBE"]
        request = self.describe(group_ids=[group_id])
        return lab.ask(api_key, 1 if self.name == "share" else 0, request).groups[0]

    def beat_all(self, lab: Any, members: list[Any], rounds: int = 8, pause_ms: int = 0) -> None:
        for _ in range(rounds):
            for member in members:
                self.step(member)
            lab.pass_time(pause_ms)

    def member(self, lab: Any, name: str = "a") -> Any:
        """Returns a member that has joined and has what it gets at once."""
        member = self.new_member(lab, name)
        assert self.step(member) == ErrorCode.NONE
        self.beat_all(lab, [member], 3)
        return member

    def group(self, lab: Any) -> Any:
        return lab.core.groups.by_id[self.group_id]


def step_sharer(member: ModelSharer) -> int:
    error = member.beat().error_code
    member.lab.settle()
    return error


CONSUMER = Kind(
    "consumer",
    GROUP,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupDescribeRequest,
    {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": [SOURCE], "topic_partitions": []},
    lambda settings: ConsumerLab(BrokerSettings.parse(EAGER | settings)),
    lambda lab, name: ModelConsumer(lab, name, [SOURCE]),
    lambda member: int(member.step()),
    lambda member: len(member.owned),
)
SHARE = Kind(
    "share",
    SHARERS,
    ShareGroupHeartbeatRequest,
    ShareGroupDescribeRequest,
    {"subscribed_topic_names": [SOURCE]},
    lambda settings: ShareLab(settings=BrokerSettings.parse(EAGER | settings)),
    lambda lab, name: ModelSharer(lab, name, [SOURCE]),
    step_sharer,
    lambda member: len(member.partitions),
)
STREAMS = Kind(
    "streams",
    APPLICATION,
    StreamsGroupHeartbeatRequest,
    StreamsGroupDescribeRequest,
    {
        "rebalance_timeout_ms": REBALANCE_MS,
        "topology": stateful(),
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": "p",
    },
    lambda settings: StreamsLab(**settings),
    lambda lab, name: ModelThread(lab, name, name),
    lambda member: int(member.step()),
    lambda member: len(member.partitions()),
)
every_kind = pytest.mark.parametrize("kind", [CONSUMER, SHARE, STREAMS], ids=lambda kind: kind.name)


@every_kind
def test_a_group_has_a_limited_size(kind: Kind) -> None:
    lab = kind.lab(max_size="1")
    member = kind.member(lab)
    assert kind.step(kind.new_member(lab, "b")) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert kind.step(member) == ErrorCode.NONE


@pytest.mark.parametrize("kind", [CONSUMER, STREAMS], ids=lambda kind: kind.name)
def test_a_protocol_can_be_switched_off(kind: Kind) -> None:
    lab = kind.make_lab({"group.coordinator.rebalance.protocols": "classic"})
    assert kind.beat(lab, **kind.first).error_code == ErrorCode.UNSUPPORTED_VERSION


@every_kind
def test_unknown_groups_members_and_epochs_are_refused(kind: Kind) -> None:
    lab = kind.lab()
    assert kind.beat(lab, member_epoch=-1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    refused = kind.beat(lab, member_epoch=3)
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert refused.error_message == f"{kind.name.capitalize()} group {kind.group_id} not found."
    epoch = kind.member(lab).epoch
    assert kind.beat(lab, member_epoch=epoch + 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    for wrong in (epoch, -1):
        refused = kind.beat(lab, member_id="x", member_epoch=wrong)
        assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@every_kind
def test_absent_groups_and_those_of_other_kinds_are_described_by_an_error(kind: Kind) -> None:
    lab = kind.lab()
    assert kind.described(lab, "none").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert kind.described(lab, "").error_code == ErrorCode.INVALID_GROUP_ID
    lab.stable_group(1)
    assert kind.described(lab, GROUP).error_code == ErrorCode.GROUP_ID_NOT_FOUND


@every_kind
def test_a_silent_member_is_removed(kind: Kind) -> None:
    lab = kind.lab()
    silent, member = kind.member(lab), kind.member(lab, "b")
    kind.beat_all(lab, [silent, member])
    assert kind.owned(member) <= PARTITIONS
    kind.beat_all(lab, [member], SILENCE_MS // 5_000 + 2, pause_ms=5_000)
    assert kind.group(lab).members.keys() == {"b"}
    assert kind.owned(member) == PARTITIONS
    assert kind.step(silent) == ErrorCode.UNKNOWN_MEMBER_ID
    kind.beat_all(lab, [silent, member])
    assert kind.owned(silent) == kind.owned(member) == PARTITIONS // 2


@pytest.mark.parametrize("fails_over", [False, True])
@every_kind
def test_assignments_keep_their_interval(kind: Kind, fails_over: bool) -> None:
    lab = kind.lab(assignment_interval_ms="5000")
    one = kind.member(lab)
    if kind is not CONSUMER:  # states or internal topics came after the first assignment
        lab.pass_time(5_000)
        kind.beat_all(lab, [one], 3)
    assert kind.owned(one) == PARTITIONS, "the first assignment is not delayed"
    two = kind.new_member(lab, "b")
    for _ in range(2):
        kind.beat_all(lab, [two, one], 2, pause_ms=1_000)
        assert not kind.group(lab).targets.get("b"), "it is too early for another assignment"
        assert kind.group(lab).epoch > kind.group(lab).assignment_epoch
        if fails_over:
            lab.fail_over()
    kind.beat_all(lab, [one, two], pause_ms=1_000)
    assert kind.owned(one) == kind.owned(two) == PARTITIONS // 2


@pytest.mark.parametrize(
    ("kind", "module"), [(CONSUMER, consumer_groups), (SHARE, share_groups)], ids=["consumer", "share"]
)
def test_a_member_with_too_large_a_subscription_is_refused(
    kind: Kind, module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, names = kind.lab(), [f"{number:02}" + "x" * 32_000 for number in range(33)]
    with monkeypatch.context() as patch:
        patch.setattr(module, "_with_request", None)  # the names are not hashed or encoded
        refused = kind.beat(lab, **kind.first | {"subscribed_topic_names": names})
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert kind.group_id not in lab.core.groups.by_id
    epoch = kind.member(lab).epoch
    refused = kind.beat(lab, member_epoch=epoch, subscribed_topic_names=names)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert kind.group(lab).members["a"].topic_names == {SOURCE}


@pytest.mark.parametrize("kind", [CONSUMER, SHARE], ids=lambda kind: kind.name)
def test_a_member_may_subscribe_to_as_many_topics_as_a_request_names(kind: Kind) -> None:
    names = [f"{number:04}" + "x" * 245 for number in range(3_990)]
    answer = kind.beat(kind.lab(), **kind.first | {"subscribed_topic_names": names})
    assert answer.error_code == ErrorCode.NONE
