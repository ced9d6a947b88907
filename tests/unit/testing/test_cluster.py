"""A cluster in the process of a test, without a client: topics, records, its life, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker.log.log_directory import LogDirectory
from tidelog.client.admin.access import create_acls, describe_users, list_acls, set_password
from tidelog.client.admin.topics import ConfigChange, ConfigResource, alter_configs
from tidelog.client.cluster import Cluster as BrokerCluster
from tidelog.client.partitioners import partition_for_key
from tidelog.kernel.instants import WallMs
from tidelog.model.acl import AclBinding, AclFilter, AclOperation, PatternType, PermissionType, Principal
from tidelog.model.acl import ResourceType as AclResourceType
from tidelog.model.protocol_values import ConfigOperation, ConfigResourceType
from tidelog.sasl.scram import MECHANISM_BY_NUMBER
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.testing import Cluster, ErrorCode, Rebalance, RequestFailedError, TidelogMixin
from tidelog.testing.requests import MAX_BATCH_BYTES, Requests
from tidelog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    OpData,
    RequestEntryData,
)
from tidelog.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tidelog.wire.messages.metadata import MetadataResponseTopic

DEADLINE_S = 60.0
ALL_ACLS = AclFilter(
    AclResourceType.ANY, PatternType.ANY, None, None, None, AclOperation.ANY, PermissionType.ANY
)


def is_open(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port)), 5):
            return True
    except ConnectionRefusedError:
        return False


def test_a_context_manager_starts_and_stops_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Cluster(brokers=2) as cluster:
        addresses = cluster.bootstrap.split(",")
        assert cluster.brokers == (1, 2)
        assert all(is_open(address) for address in addresses)
        assert list(tmp_path.iterdir())
    assert not any(is_open(address) for address in addresses)
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError, match="not running"):
        cluster.create_topic("flights")
    cluster.close()  # a second time


def test_records_are_those_that_were_produced(tidelog: Cluster) -> None:
    tidelog.create_topic("flights", partitions=3)
    produced = tidelog.produce("flights", "a", b"b", None, ("key", "c"), (None, "d"), key="default")
    by_place = sorted(produced, key=lambda record: (record.partition, record.offset))
    assert tidelog.records("flights") == by_place
    assert [record.value for record in produced if record.key == b"key"] == [b"c"]
    assert {record.partition for record in produced if record.key == b"default"} == {
        partition_for_key(b"default", 3)
    }


def test_records_without_a_key_go_to_the_partitions_in_turn(tidelog: Cluster) -> None:
    tidelog.create_topic("flights", partitions=2)
    tidelog.produce("flights", *"abcd")
    assert [(record.partition, record.value) for record in tidelog.records("flights")] == [
        (0, b"a"),
        (0, b"c"),
        (1, b"b"),
        (1, b"d"),
    ]
    (record,) = tidelog.produce("flights", "e", partition=1)
    assert (record.partition, record.offset) == (1, 2)


def test_many_and_large_records_are_read_back(tidelog: Cluster) -> None:
    values = [bytes([number]) * (MAX_BATCH_BYTES // 3) for number in range(40)]
    tidelog.produce("flights", *values)
    assert [record.value for record in tidelog.records("flights")] == values


def test_a_topic_that_is_produced_to_is_created_and_gone_in_the_next_test(tidelog: Cluster) -> None:
    tidelog.produce("flights", "a")
    assert tidelog.leader("flights") == 1
    tidelog.clean()
    with pytest.raises(RequestFailedError, match="topic flights: UNKNOWN_TOPIC_OR_PARTITION") as refused:
        tidelog.records("flights")
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_a_client_creates_meanwhile_is_no_failure(
    tidelog: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def topic(requests: Requests, name: str) -> MetadataResponseTopic:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RequestFailedError("too early", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return await found(requests, name)

    found = Requests.topic
    tidelog.create_topic("flights")
    monkeypatch.setattr(Requests, "topic", topic)
    tidelog.produce("flights", "a")
    assert [record.value for record in tidelog.records("flights")] == [b"a"]


def test_a_reset_empties_a_cluster_and_keeps_its_address(tidelog: Cluster) -> None:
    address = tidelog.bootstrap
    tidelog.produce("flights", "a")
    tidelog.advance(10)
    tidelog.fail("Produce", "NOT_ENOUGH_REPLICAS", times=None)
    tidelog.reset()
    assert tidelog.bootstrap == address
    (record,) = tidelog.produce("flights", "b")  # the fault has ended
    assert record.offset == 0
    assert abs(record.timestamp_ms - time.time() * 1000) < 5_000, "the clock is the machine's again"


def test_a_reset_waits_for_files_that_are_being_removed(
    tidelog: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end, removed = threading.Event(), threading.Event(), list[bool]()

    def remove(log_directory: LogDirectory, now_ms: WallMs) -> int:
        began.set()
        may_end.wait(DEADLINE_S)
        removed.append(log_directory.path.exists())
        return 0

    monkeypatch.setattr(LogDirectory, "remove_deleted_partitions", remove)
    tidelog.advance(1)
    assert began.wait(DEADLINE_S)
    threading.Timer(1.0, may_end.set).start()
    tidelog.reset()
    assert removed == [True]
    tidelog.produce("flights", "a")


def test_changed_settings_of_brokers_are_gone_in_the_next_test(tidelog: Cluster) -> None:
    with BrokerCluster(tidelog.bootstrap, client_id="test") as client:
        change = ConfigChange("message.max.bytes", ConfigOperation.SET, "100")
        alter_configs(client, ConfigResource(ConfigResourceType.BROKER, ""), [change])
    tidelog.clean()
    tidelog.produce("flights", "x" * 500)


def test_users_acls_and_quotas_are_gone_in_the_next_test(tidelog_cluster: Callable[..., Cluster]) -> None:
    cluster = tidelog_cluster(
        brokers=2, settings={"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    )
    started = cluster._cluster
    binding = AclBinding(
        AclResourceType.TOPIC,
        PatternType.LITERAL,
        "flights",
        Principal("User:ada"),
        "*",
        AclOperation.READ,
        PermissionType.ALLOW,
    )
    quota = RequestEntryData([EntityData("user", "ada")], [OpData("producer_byte_rate", 1.0)])
    with BrokerCluster(cluster.bootstrap, client_id="test") as client:
        set_password(client, "ada", "secret", [MECHANISM_BY_NUMBER[1]], 4096)
        create_acls(client, [binding])
        client.controller().call(AlterClientQuotasRequest([quota]), AlterClientQuotasResponse)

        def left() -> tuple[int, int, int]:
            quotas = client.any_broker().call(DescribeClientQuotasRequest(), DescribeClientQuotasResponse)
            return (
                len(describe_users(client)),
                len(list_acls(client, ALL_ACLS)),
                len(quotas.entries or ()),
            )

        until_s = time.monotonic() + DEADLINE_S
        while left() != (1, 1, 1):
            assert time.monotonic() < until_s, left()
        cluster.clean()
        assert left() == (0, 0, 0)
    assert cluster._cluster is started, "the cluster was not reset"


def test_settings_are_those_of_brokers(tidelog_cluster: Callable[..., Cluster]) -> None:
    cluster = tidelog_cluster(
        brokers=1, settings={"auto.create.topics.enable": "false", "num.partitions": "7"}
    )
    cluster.produce("flights", "a")
    with pytest.raises(RequestFailedError, match="flights has 7 partitions"):
        cluster.leader("flights", 7)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda cluster: cluster.create_topic("no/name"), "INVALID_TOPIC_EXCEPTION"),
        (lambda cluster: cluster.create_topic("flights", 0), "INVALID_PARTITIONS"),
        (lambda cluster: cluster.create_topic("flights", configs={"retention.ms": 5}), "write '5'"),
        (lambda cluster: cluster.fail("Prodce", "NOT_ENOUGH_REPLICAS"), "Prodce is no API .* mean Produce?"),
        (lambda cluster: cluster.fail("ProduceRequest", "NOT_ENOUGH_REPLICAS"), "did you mean Produce?"),
        (lambda cluster: cluster.delay("Poll", 1.0), "Poll is no API that tidelog serves; names are Kafka's"),
        (lambda cluster: cluster.delay(0, 1.0), "0 is no API that tidelog serves; names are Kafka's"),
        (lambda cluster: cluster.fail("Produce", "NOT_LEADER"), "did you mean NOT_LEADER_OR_FOLLOWER?"),
        (lambda cluster: cluster.fail("Produce", 9999), "9999 is no error of Kafka; names are Kafka's"),
        (lambda cluster: cluster.fail("Produce", ErrorCode.NONE), "0 is no error of Kafka"),
        (lambda cluster: cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", times=0), "times is 0"),
        (lambda cluster: cluster.delay("Produce", -1.0), "is negative"),
        (lambda cluster: cluster.kill_broker(2), "the cluster has no broker 2; its brokers are 1"),
        (lambda cluster: cluster.start_broker(1), "broker 1 runs already"),
        (lambda cluster: cluster.start_broker(2), "the cluster has no broker 2"),
        (lambda cluster: cluster.pause(7), "the cluster has no broker 7"),
        (lambda cluster: cluster.resume(7), "the cluster has no broker 7"),
        (lambda cluster: cluster.records("flights"), "it does not exist; create_topic or produce creates it"),
        (lambda cluster: cluster.rebalance("nobody"), "wait until the program has joined it"),
        (lambda cluster: cluster.advance(-1), "time does not go back"),
        (lambda cluster: cluster.produce("flights", "a", partition=3), "there is no 3"),
        (lambda cluster: cluster.expire(cluster.create_topic("flights"), [7]), "there is no 7"),
        (lambda cluster: cluster.produce("flights", 5), "a value is a text, bytes or None, not 5; encode it"),
        (lambda cluster: cluster.produce("flights", ["a"]), "pass each value as an argument of its own"),
        (lambda cluster: cluster.produce("flights", ("a", "b", "c")), "a value is a text"),
        (lambda cluster: cluster.produce("flights", "a", key=5), "a key is a text, bytes or None, not 5"),
        (lambda cluster: Cluster(brokers=0), "1 to 16 brokers, not 0"),
        (lambda cluster: Cluster(settings={"node.id": "5"}), "the cluster chooses node.id itself"),
        (lambda cluster: Cluster(settings={"listeners": "PLAINTEXT://:0"}), "chooses listeners itself"),
        (lambda cluster: Cluster(settings=dict[str, Any]({"num.partitions": 4})), "is 4.* write '4'"),
        (lambda cluster: Cluster(settings=dict[str, Any]({"unclean": False})), "write 'false'"),
        (lambda cluster: Cluster().bootstrap, "use it with `with`, or call start"),
        (lambda cluster: Cluster().pause(1), "use it with `with`, or call start"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(
    call: Callable[[Cluster], object], reason: str, tidelog: Cluster
) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError, RequestFailedError), match=reason):
        call(tidelog)


def test_a_broker_that_was_killed_is_named_with_the_next_step(tidelog: Cluster) -> None:
    tidelog.kill_broker(1)
    for call in (tidelog.kill_broker, tidelog.pause):
        with pytest.raises(ValueError, match=r"broker 1 was killed; start_broker\(1\) starts it again"):
            call(1)
    with pytest.raises(RequestFailedError, match="it was killed or is paused; start_broker or resume"):
        tidelog.records("flights")


def test_what_waits_in_vain_names_what_is_left_and_the_next_step(tidelog: Cluster) -> None:
    tidelog.produce("flights", "a")

    def errors() -> list[str]:
        with pytest.raises(TimeoutError, match=r"all records .* \(partitions left: 0\)") as fetched:
            tidelog.wait_until_fetched("flights", timeout_s=0.01)
        with pytest.raises(TimeoutError, match="0 instead of 1 requests of EndTxn") as hit:
            tidelog.delay("EndTxn", 0.0).wait(timeout_s=0.01)
        with pytest.raises(TimeoutError, match="the members take part when they poll") as rebalanced:
            Rebalance(Future()).wait(timeout_s=0.01)
        return [str(each.value) for each in (fetched, hit, rebalanced)]

    async def coroutine() -> list[str]:
        return errors()

    advice = "call it with await asyncio.to_thread"
    assert not any(advice in error for error in errors())
    assert all(advice in error for error in asyncio.run(coroutine()))


def test_a_rebalance_ends_with_its_cluster() -> None:
    with Cluster() as cluster:
        waiting = asyncio.run_coroutine_threadsafe(_rebalance_that_waits(cluster), cluster._loop).result(10)
    with pytest.raises(RuntimeError, match="the cluster was closed"):
        waiting.result(10)


async def _rebalance_that_waits(cluster: Cluster) -> Future[None]:
    async def never(requests: object, group: str) -> asyncio.Task[None]:
        return asyncio.create_task(asyncio.sleep(3600))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tidelog.testing.cluster.begin_rebalance", never)
        return await cluster._rebalance("readers")


def test_a_paused_broker_refuses_the_requests_of_the_test_at_once(tidelog: Cluster) -> None:
    tidelog.pause(1)
    with pytest.raises(RequestFailedError, match="is paused"):
        tidelog.records("flights")
    tidelog.heal()
    tidelog.produce("flights", "a")


class WithMixin(TidelogMixin):
    """Runs inside `test_the_mixin_gives_each_test_an_empty_broker`."""

    __test__ = False  # pytest must not collect it

    def test_first(self) -> None:
        self.tidelog.produce("flights", "a")

    def test_second(self) -> None:
        with self.assertRaises(RequestFailedError):
            self.tidelog.records("flights")


class WithOwnSetUps(TidelogMixin):
    """Runs inside `test_the_mixin_works_if_its_setups_are_not_called`."""

    __test__ = False  # pytest must not collect it

    @classmethod
    def setUpClass(cls) -> None:
        pass

    def setUp(self) -> None:
        self.tidelog.create_topic("flights")

    def test_first(self) -> None:
        self.tidelog.produce("flights", "a")

    def test_second(self) -> None:
        self.assertEqual(self.tidelog.records("flights"), [])


def test_the_mixin_works_if_its_setups_are_not_called() -> None:
    suite = unittest.TestSuite([WithOwnSetUps("test_first"), WithOwnSetUps("test_second")])
    result = unittest.TextTestRunner(verbosity=0).run(suite)
    assert repr(WithOwnSetUps.tidelog) == "<Cluster of 1 brokers: not running>"
    assert result.testsRun == 2
    assert result.wasSuccessful(), result.errors


def test_the_mixin_gives_each_test_an_empty_broker() -> None:
    suite = unittest.TestSuite([WithMixin("test_first"), WithMixin("test_second")])
    result = unittest.TextTestRunner(verbosity=0).run(suite)
    assert repr(WithMixin.tidelog) == "<Cluster of 1 brokers: not running>"
    assert result.testsRun == 2
    assert result.wasSuccessful()


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_other_users_of_structlog_see_no_difference() -> None:
    code = """
import logging, structlog
from tidelog.testing.quiet_log import log_quietly
logging.basicConfig(format="%(name)s %(levelname)s %(message)s", level=logging.DEBUG)
log_quietly()
structlog.get_logger().info("mine", number=1)
structlog.get_logger("tidelog.broker").info("not shown")
structlog.get_logger("tidelog.broker").warning("shown")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mine" in ran.stdout
    assert "number" in ran.stdout
    assert ran.stderr == "tidelog.broker WARNING shown\n"


def test_a_cluster_that_was_not_closed_is_named_and_leaves_no_files(tmp_path: Path) -> None:
    code = "from tidelog.testing import Cluster; cluster = Cluster().start(); cluster.produce('flights', 'a')"
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", code]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "a cluster of tidelog.testing was not closed; use it with `with`" in ran.stderr
    assert "unclosed <socket" not in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_pytest_does_not_rewrite_the_assertions_of_tidelog(tmp_path: Path) -> None:
    loader = "type(sys.modules['tidelog.testing.cluster'].__loader__).__name__"
    test = f"import sys\ndef test(tidelog):\n    assert {loader} == 'SourceFileLoader'\n"
    (tmp_path / "test_loader.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-p", "tidelog.testing.plugin", "-p", "no:cacheprovider", "-q"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


INTERRUPTED = """
import os, signal, threading

def test(tidelog):
    tidelog.produce("flights", "a")
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    tidelog.wait_until_fetched("flights", 100)
"""


def test_nothing_is_left_after_ctrl_c(tmp_path: Path) -> None:
    tests, temporary = tmp_path / "tests", tmp_path / "temporary"
    tests.mkdir()
    temporary.mkdir()
    (tests / "test_interrupted.py").write_text(INTERRUPTED)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-p", "tidelog.testing.plugin", "-q"],
        cwd=tests,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert ran.returncode == 2, ran.stdout
    assert "KeyboardInterrupt" in ran.stdout
    assert ran.stderr == ""
    assert list(temporary.iterdir()) == []


def test_the_plugin_loads_nothing_but_pytest() -> None:
    added = modules_after("import tidelog.testing.plugin") - modules_after("import pytest")
    assert {name for name in added if not name.startswith("tidelog")} == set()
    assert added == {"tidelog", "tidelog.testing", "tidelog.testing.plugin"}


def test_the_context_manager_needs_neither_pytest_nor_the_command_line() -> None:
    loaded = modules_after("from tidelog.testing import Cluster")
    assert not loaded & {"pytest", "click", "grpc", "uvloop", "confluent_kafka"}
