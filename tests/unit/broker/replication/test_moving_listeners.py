"""Brokers replicate while a cluster moves from one inter-broker listener to another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerlab.in_memory_broker import make_context
from tidelog.broker.cluster.view import CurrentSettings
from tidelog.broker.handlers.fetch import FetchHandler
from tidelog.broker.replication.replica_fetchers import ReplicaFetchers
from tidelog.model.brokers import BrokerRegistration, Endpoint
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.messages.fetch import FetchRequest, FetchResponse, ReplicaState

OLD, NEW = Endpoint("REPLICATION", "h", 1), Endpoint("PEERS", "h", 2)
BOTH = {
    "listeners": "CLIENTS://h:3,REPLICATION://h:1,PEERS://h:2",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,REPLICATION:PLAINTEXT,PEERS:PLAINTEXT",
    "inter.broker.listener.name": "PEERS",
    "tidelog.inter.broker.other.listener.names": "REPLICATION",
}


@pytest.mark.parametrize(
    ("leaders_endpoints", "wanted"),
    [((OLD, NEW), NEW), ((OLD,), OLD), ((NEW,), NEW), ((), None)],
)
def test_a_follower_prefers_the_new_listener_and_takes_what_its_leader_has(
    leaders_endpoints: tuple[Endpoint, ...], wanted: Endpoint | None
) -> None:
    context = SimpleNamespace(
        metadata=SimpleNamespace(brokers={1: BrokerRegistration(1, 5, leaders_endpoints)}),
        settings=CurrentSettings(BrokerSettings.parse(BOTH)),
    )
    none = cast(Any, None)
    fetchers = ReplicaFetchers(cast(Any, context), none, none)
    assert fetchers.endpoint_of(1) == wanted
    assert fetchers.endpoint_of(2) is None


@pytest.mark.parametrize(
    ("listener", "is_accepted"), [("PEERS", True), ("REPLICATION", True), ("CLIENTS", False)]
)
def test_a_leader_accepts_followers_on_both_listeners_and_no_others(listener: str, is_accepted: bool) -> None:
    settings = SimpleNamespace(broker=BrokerSettings.parse(BOTH))
    used = ("authorizer", "hosted", "metadata", "fetch_sessions", "waiting", "telemetry", "clock")
    parts = SimpleNamespace(**dict.fromkeys(used), current_settings=settings)
    followers = SimpleNamespace(handle=lambda request, context: "handled")
    handler = FetchHandler(cast(Any, parts), cast(Any, followers))
    request = FetchRequest(replica_state=ReplicaState(2, 7), topics=[])
    context = make_context(17, listener_name=listener)
    answer = handler.handle(request, context)
    if is_accepted:
        assert cast(Any, answer) == "handled"
    else:
        assert isinstance(answer, FetchResponse)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
