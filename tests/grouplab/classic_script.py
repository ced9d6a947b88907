#!/usr/bin/env python3
"""Prints a broker's responses to a script of the classic protocol's requests, in every version.

    tests/grouplab/classic_script.py HOST:PORT > tests/grouplab/classic_answers_of_kafka.txt

records the responses of Apache Kafka 4.4 (with group.initial.rebalance.delay.ms=0). A test compares the
core's responses with them.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol  # Any: generated messages have no common base

from tidelog.client.address import parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.wire.codec import record_codec, response_class
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.offset_commit import OffsetCommitRequest
from tidelog.wire.messages.records.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

CLIENT_ID: Final = "script"
ANSWERS_OF_KAFKA: Final = Path(__file__).with_name("classic_answers_of_kafka.txt")
SESSION_MS: Final = 10_000
REBALANCE_MS: Final = 4_000
SUBSCRIPTION: Final = record_codec(ConsumerProtocolSubscription).encode(
    ConsumerProtocolSubscription(topics=["t"])
)
ASSIGNMENT: Final = bytes(10)
COORDINATOR_ERRORS: Final = (14, 15, 16)


class Broker(Protocol):
    def send(self, request: Any, version: int) -> Callable[[], Any]:
        """Sends a request and returns a function that waits for the response."""
        ...

    def wait(self, milliseconds: int) -> None: ...


class TcpBroker:
    """The coordinator of a running broker."""

    def __init__(self, bootstrap: str) -> None:
        self._address = parse_bootstrap(bootstrap)[0]
        self._await_coordinator()

    def _await_coordinator(self) -> None:
        while True:
            with BrokerConnection.open(self._address) as connection:
                asked = FindCoordinatorRequest(coordinator_keys=["any"])
                found = connection.call(asked, FindCoordinatorResponse, at_least=4).coordinators[0]
                beat = connection.call(HeartbeatRequest("any", 1, "nobody"), HeartbeatResponse)
            if not found.error_code and beat.error_code not in COORDINATOR_ERRORS:
                return
            time.sleep(0.3)

    def send(self, request: Any, version: int) -> Callable[[], Any]:
        """Sends the request on its own connection, because a connection serves one request at a time."""
        connection = BrokerConnection.open(self._address, client_id=CLIENT_ID, timeout_s=60)
        pending = connection.send(request, at_least=version, at_most=version)

        def receive() -> Any:
            with connection:
                return connection.receive(pending, response_class(request.API_KEY))

        return receive

    def wait(self, milliseconds: int) -> None:
        time.sleep(milliseconds / 1000)


class Script:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.lines: list[str] = []
        self.run = uuid.uuid4().hex[:8]
        self._ids: dict[str, str] = {}

    # -- lines

    def show(self, label: str, answer: Any) -> Any:
        self.lines.append(f"{label}: {self._text(answer)}")
        return answer

    def _text(self, value: Any) -> str:
        """Returns the text of a response, with generated ids numbered and lists sorted by their texts."""
        if dataclasses.is_dataclass(value):
            fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
            given = ", ".join(
                f"{name}={self._text(one)}" for name, one in fields if name != "throttle_time_ms"
            )
            return f"{type(value).__name__}({given})"
        if isinstance(value, list):
            return "[" + ", ".join(sorted(self._text(one) for one in value)) + "]"
        if isinstance(value, str):
            return repr(
                re.sub(r"(?:script|instance\w)-[\w-]{20,}", self._numbered, value).replace(self.run, "RUN")
            )
        if isinstance(value, (bytes, memoryview)):
            return repr(bytes(value))
        return repr(int(value) if isinstance(value, int) and not isinstance(value, bool) else value)

    def _numbered(self, found: re.Match[str]) -> str:
        return self._ids.setdefault(found.group(0), f"<member {len(self._ids)}>")

    def ask(self, label: str, version: int, request: Any) -> Any:
        return self.show(label, self.broker.send(request, version)())

    # -- requests

    def join(
        self,
        group: str,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: Iterable[str] = ("range",),
        kind: str = "consumer",
        session_ms: int = SESSION_MS,
    ) -> JoinGroupRequest:
        known = [JoinGroupRequestProtocol(name, SUBSCRIPTION) for name in protocols]
        group_id = self.id_of(group) if group else ""
        return JoinGroupRequest(group_id, session_ms, REBALANCE_MS, member_id, instance, kind, known)

    def sync(
        self,
        group: str,
        generation: int,
        member_id: str,
        given: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol: str | None = "range",
    ) -> SyncGroupRequest:
        assignments = [SyncGroupRequestAssignment(name, data) for name, data in (given or {}).items()]
        kind = None if protocol is None else "consumer"
        return SyncGroupRequest(
            self.id_of(group), generation, member_id, instance, kind, protocol, assignments
        )

    def id_of(self, group: str) -> str:
        return f"{group}-{self.run}"

    def describe(self, label: str, group: str, version: int = 5) -> None:
        self.ask(label, version, DescribeGroupsRequest([self.id_of(group)]))

    def beat(
        self, label: str, group: str, generation: int, member_id: str, instance: str | None = None
    ) -> None:
        self.ask(label, 4, HeartbeatRequest(self.id_of(group), generation, member_id, instance))

    def leave(self, label: str, group: str, version: int, *members: MemberIdentity) -> None:
        first = members[0].member_id if version < 3 else ""
        named = list(members) if version >= 3 else []
        self.ask(label, version, LeaveGroupRequest(self.id_of(group), first, named))

    def commit(
        self, label: str, group: str, generation: int, member_id: str, instance: str | None = None
    ) -> None:
        request = OffsetCommitRequest(
            group_id=self.id_of(group),
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        self.ask(label, 8, request)


# -- scenes


def refusals(script: Script) -> None:
    for version in range(2, 10):
        label = f"join v{version}"
        script.ask(f"{label}, short session", version, script.join("a", session_ms=1))
        script.ask(f"{label}, unknown member", version, script.join("a", "nobody"))
        script.ask(f"{label}, no group", version, script.join(""))
        script.ask(f"{label}, no protocol", version, script.join(f"b{version}", protocols=()))
        script.ask(f"{label}, no protocol type", version, script.join(f"c{version}", kind=""))
    for group_id in (script.id_of("none"), ""):
        for version in range(6):
            request = SyncGroupRequest(group_id, 1, "nobody", None, "consumer", "range")
            script.ask(f"sync v{version}", version, request)
            script.ask(f"sync v{version} bare", version, SyncGroupRequest(group_id, 1, "nobody"))
            leaving = [MemberIdentity("nobody")] if version >= 3 else []
            script.ask(f"leave v{version}", version, LeaveGroupRequest(group_id, "nobody", leaving))
        for version in range(5):
            script.ask(f"heartbeat v{version}", version, HeartbeatRequest(group_id, 1, "nobody"))
        for version in range(7):
            script.ask(f"describe v{version}", version, DescribeGroupsRequest([group_id]))
        for version in range(4):
            script.ask(f"delete v{version}", version, DeleteGroupsRequest([group_id]))


def life(script: Script, version: int) -> None:
    """A group of one member, then of two, then of none. `version` is the version of JoinGroup."""
    group, sync_version = f"life{version}", min(version, 5)
    first = _first_member(script, group, version)
    script.describe("completing", group)
    script.ask("join again", version, script.join(group, first))
    script.commit("commit too early", group, 1, first)
    script.ask("sync of another generation", sync_version, script.sync(group, 7, first))
    script.ask("sync of another protocol", 5, script.sync(group, 1, first, protocol="other"))
    script.ask("sync", sync_version, script.sync(group, 1, first, {first: ASSIGNMENT, "strange": b"x"}))
    script.describe("stable", group)
    listed = script.broker.send(ListGroupsRequest(["STABLE"], ["Classic"]), 5)().groups
    script.show("listed", [one for one in listed if one.group_id == script.id_of(group)])
    script.beat("heartbeat", group, 1, first)
    script.beat("heartbeat of another generation", group, 2, first)
    script.beat("heartbeat of an instance", group, 1, first, "instance")
    script.commit("commit", group, 1, first)
    script.commit("commit of another generation", group, 0, first)
    script.commit("commit without a member", group, -1, "")
    script.ask("delete", 2, DeleteGroupsRequest([script.id_of(group)]))
    script.ask("join with another protocol", version, script.join(group, protocols=("other",)))
    script.ask("join with another type", version, script.join(group, kind="connect"))
    second = _second_member(script, group, version, first)
    leave_version = min(version, 5)
    leaving = [MemberIdentity(second), MemberIdentity("nobody"), MemberIdentity("", "no-instance")]
    script.leave("leave", group, leave_version, *leaving)
    script.beat("heartbeat after one left", group, 2, first)
    script.ask("join alone", version, script.join(group, first))
    script.leave("last leaves", group, leave_version, MemberIdentity(first))
    script.describe("empty", group)
    script.ask("sync of nobody", sync_version, script.sync(group, 4, first))
    script.ask("join of one who left", version, script.join(group, first))
    script.commit("commit of one who left", group, 4, first)
    script.commit("commit of a tool", group, -1, "")
    script.ask("delete", 2, DeleteGroupsRequest([script.id_of(group)]))
    script.describe("gone", group, version=6)


def _first_member(script: Script, group: str, version: int) -> str:
    member_id = ""
    if version >= 4:
        member_id = script.ask(f"{group}: id", version, script.join(group)).member_id
    joined = script.broker.send(script.join(group, member_id), version)
    first: str = script.show("joined", joined()).member_id
    return first


def _second_member(script: Script, group: str, version: int, first: str) -> str:
    member_id, sync_version = "", min(version, 5)
    if version >= 4:
        member_id = script.ask("second id", version, script.join(group)).member_id
    joined = script.broker.send(script.join(group, member_id), version)
    script.broker.wait(300)
    script.describe("preparing", group)
    script.beat("heartbeat while all join", group, 1, first)
    script.ask("sync while all join", sync_version, script.sync(group, 1, first))
    rejoined = script.broker.send(script.join(group, first), version)
    script.show("joined as leader", rejoined())
    second: str = script.show("joined as follower", joined()).member_id
    waiting = script.broker.send(script.sync(group, 2, second), sync_version)
    script.broker.wait(300)
    script.ask("sync as leader", sync_version, script.sync(group, 2, first, {second: b"2"}))
    script.show("sync as follower", waiting())
    script.ask("follower joins again", version, script.join(group, second))
    return second


def static_members(script: Script, version: int) -> None:
    """Two static members: each rejoins without its member id, then one misses a rebalance."""
    group = f"static{version}"
    a, b = {"instance": "instanceA"}, {"instance": "instanceB"}
    leader = script.broker.send(script.join(group, **a), version)().member_id
    joined = script.broker.send(script.join(group, **b), version)
    script.broker.wait(300)
    rejoined = script.broker.send(script.join(group, leader, **a), version)
    script.show(f"{group}: leader joined", rejoined())
    follower = script.show("follower joined", joined()).member_id
    given = {leader: b"A", follower: b"B"}
    script.ask("leader's sync", 5, script.sync(group, 2, leader, given, **a))
    script.ask("follower's sync", 5, script.sync(group, 2, follower, **b))
    back = script.ask("follower is back", version, script.join(group, **b)).member_id
    script.beat("heartbeat of the old id", group, 2, follower, "instanceB")
    script.ask("join of the old id", version, script.join(group, follower, **b))
    script.commit("commit of the old id", group, 2, follower, "instanceB")
    script.ask("sync of the new id", 5, script.sync(group, 2, back, **b))
    script.leave("leave of the old id", group, 5, MemberIdentity(follower, "instanceB"))
    leader = script.ask("leader is back", version, script.join(group, **a)).member_id
    script.describe("as before", group)
    script.ask("leader wants a rebalance", version, script.join(group, leader, **a))
    script.ask("leader assigns", 5, script.sync(group, 3, leader, {back: b"more"}, **a))
    script.describe("the follower stayed away", group)
    script.ask("it is back", version, script.join(group, **b))
    tool = [MemberIdentity("", "instanceA"), MemberIdentity("", "instanceB")]
    script.leave("a tool removes both", group, 5, *tool)
    script.describe("nobody is left", group)


def answers(broker: Broker) -> list[str]:
    script = Script(broker)
    refusals(script)
    for version in range(2, 10):
        life(script, version)
    for version in range(5, 10):
        static_members(script, version)
    return script.lines


if __name__ == "__main__":
    print("\n".join(answers(TcpBroker(sys.argv[1]))))
