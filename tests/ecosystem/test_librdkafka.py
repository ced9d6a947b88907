"""librdkafka's own tests of its admin client, producers, consumers and transactions, on three brokers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterlab.librdkafka import PASSED, LibrdkafkaUnavailableError, find_test_runner, run_tests
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(2400)]
SETTINGS = {
    "allow.everyone.if.no.acl.found": "true",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "default.replication.factor": "3",
    "num.partitions": "4",
}
"""The settings that librdkafka's authors give Kafka for these tests."""
TESTS = (
    "0005_order",
    "0008_reqacks",
    "0011_produce_batch",
    "0017_compression",
    "0030_offset_commit",
    "0031_get_offsets",
    "0034_offset_reset",
    "0081_admin",
    "0084_destroy_flags",
    "0086_purge_remote",
    "0090_idempotence",
    "0099_commit_metadata",
    "0103_transactions",
    "0113_cooperative_rebalance",
    "0118_commit_rebalance",
    "0129_fetch_aborted_msgs",
    "0130_store_offsets",
    "0137_barrier_batch_consume",
    "0140_commit_metadata",
)
"""The tests that need a broker, no program of Kafka's distribution, and have parts in the quick form."""
AT_ONCE = 4
TIMEOUT_S = 900


@pytest.fixture(scope="module")
def runner() -> Path:
    try:
        return find_test_runner()
    except (LibrdkafkaUnavailableError, subprocess.TimeoutExpired) as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster = TidelogCluster(tmp_path_factory.mktemp("cluster"), controllers=1, settings=SETTINGS)
    try:
        yield cluster.up().bootstrap
    finally:
        cluster.destroy()


def test_librdkafkas_own_tests_pass(runner: Path, bootstrap: str, tmp_path: Path) -> None:
    """A test that fails beside others is run once more, alone: many clients may be too much for two cores."""
    states = run_tests(runner, bootstrap, tmp_path, TESTS, at_once=AT_ONCE, timeout_s=TIMEOUT_S)
    for name in [name for name, state in states.items() if state != PASSED]:
        states |= run_tests(runner, bootstrap, tmp_path, [name], at_once=1, timeout_s=TIMEOUT_S)
    log = (tmp_path / "runner.log").read_text(errors="replace")
    assert states == dict.fromkeys(TESTS, PASSED), log[-8000:]
