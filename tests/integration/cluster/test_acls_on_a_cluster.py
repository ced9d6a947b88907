"""ACLs of users who log in, on three brokers with etcd.

A change during traffic is in force on every broker when the request that made it is answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from brokerlab.raw_client import RawClient
from clusterlab.tidelog_cluster import TidelogCluster
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import decode_response_header, encode_request_header
from tidelog.wire.messages import produce

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN = (
    f"{PLAIN_MODULE} required "
    'username="broker" password="b" user_broker="b" user_admin="secret" user_alice="a" user_bob="b";'
)
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": LOGIN,
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:broker;User:admin",
}
TOPIC = "shared"
CHANGES = 15
WAIT_S = 30.0


class Producer:
    """A client that sends one record after the other to the leader of one partition."""

    def __init__(self, address: str, partition: int, user: str, password: str) -> None:
        self._client = RawClient(address)
        self._partition = partition
        assert self._client.call("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
        token = f"\0{user}\0{password}".encode()
        assert self._client.call("sasl_authenticate", 2, auth_bytes=token).error_code == 0

    def produce(self) -> int:
        """Returns the error code."""
        batch = build_batch([Record(0, round(time.time() * 1000), None, b"x", [])])
        part = produce.PartitionProduceData(self._partition, memoryview(bytes(batch)))
        request = produce.ProduceRequest(
            None, -1, 10_000, [produce.TopicProduceData(TOPIC, partition_data=[part])]
        )
        key = ApiKey.PRODUCE
        body = b"".join(map(bytes, codec.request_encoder(key, 9)(request)))
        payload = bytes(encode_request_header(key, 9, 1, "acls")) + body
        self._client.send_bytes(len(payload).to_bytes(4, "big") + payload)
        answer = self._client.read_frame()
        _, position = decode_response_header(answer, 0, key, 9)
        response = codec.response_decoder(key, 9)(answer, position)[0]
        code: int = response.responses[0].partition_responses[0].error_code
        return code


class Traffic:
    """A producer of bob at each leader, in a thread of its own. `codes` has each error code that one got."""

    def __init__(self, producers: list[Producer]) -> None:
        self.codes: set[int] = set()
        self.count = 0
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(each,)) for each in producers]
        for thread in self._threads:
            thread.start()

    def _send(self, producer: Producer) -> None:
        while not self._ends.is_set():
            self.codes.add(producer.produce())
            self.count += 1

    def end(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(WAIT_S)


def rule(user: str, permission: AclPermissionType = AclPermissionType.ALLOW) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        TOPIC,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation.WRITE,
        permission,
    )


def the_filter(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


def done(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(WAIT_S)


def test_a_change_is_in_force_on_every_broker_when_it_is_answered(
    new_cluster: Callable[..., TidelogCluster],
    tell: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command_config = tmp_path / "admin.properties"
    command_config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN_MODULE} required username="admin" password="secret";\n'
    )
    monkeypatch.setenv("TIDELOG_COMMAND_CONFIG", str(command_config))
    cluster = new_cluster(settings=SETTINGS)
    admin = AdminClient(
        {
            "bootstrap.servers": ",".join(cluster.addresses.values()),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": "secret",
        }
    )
    done(admin.create_topics([NewTopic(TOPIC, 3, 3)]))
    done(admin.create_acls([rule("bob"), rule("alice")]))
    leaders: dict[int, str] = {}
    deadline = time.monotonic() + WAIT_S
    while len(leaders) < 3 and time.monotonic() < deadline:
        found = admin.list_topics(TOPIC, WAIT_S)
        leaders = {
            index: f"{found.brokers[part.leader].host}:{found.brokers[part.leader].port}"
            for index, part in found.topics[TOPIC].partitions.items()
            if part.leader in found.brokers
        }
    assert len(set(leaders.values())) == 3
    alice, bob = (
        [Producer(address, index, user, password) for index, address in leaders.items()]
        for user, password in (("alice", "a"), ("bob", "b"))
    )
    traffic = Traffic(bob)
    took_s: list[float] = []
    try:
        for _ in range(CHANGES):
            assert [each.produce() for each in alice] == [ErrorCode.NONE] * 3
            denial = rule("alice", AclPermissionType.DENY)
            began_s = time.monotonic()
            done(admin.create_acls([denial]))
            took_s.append(time.monotonic() - began_s)
            denied = [each.produce() for each in alice]
            assert denied == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 3
            done(admin.delete_acls([the_filter(denial)]))
    finally:
        traffic.end()
    assert traffic.codes == {ErrorCode.NONE}, "a change about alice concerns bob"
    assert traffic.count > CHANGES
    tell("slowest change of an ACL on three brokers, s", max(took_s))
