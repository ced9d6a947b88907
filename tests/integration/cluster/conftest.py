"""Clusters of real processes for these tests.

`new_cluster` starts a cluster for one test. The tests of a module share `cluster`, which has the default
settings. With TIDELOG_TEST_CLUSTER=kafka, `cluster` is three brokers of Apache Kafka, so that load, checker
and limits can be verified against them. Measurements are printed (`pytest -rP`) and appended to the file that
TIDELOG_FIGURES names.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from brokerlab.clients import create_topic
from brokerlab.kafka_jars import KafkaUnavailableError, find_jars
from clusterlab.kafka_cluster import KafkaCluster
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import await_view

WHICH_CLUSTER = "TIDELOG_TEST_CLUSTER"
FIGURES_FILE = "TIDELOG_FIGURES"
AS_PEER = {"default.replication.factor": "3"}
"""A setting that shared/peer uses, too: automatically created topics have three replicas."""
Cluster = TidelogCluster | KafkaCluster
_running: list[Cluster] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the logs of the running clusters to the report of a failed test."""
    report = yield
    if report.failed:
        for cluster in _running:
            report.sections.append((f"logs of the cluster on {cluster.bootstrap}", cluster.log_tails()))
    return report


def _ended(cluster: Cluster) -> None:
    cluster.destroy()
    _running.remove(cluster)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    one: Cluster
    if os.environ.get(WHICH_CLUSTER) == "kafka":
        try:
            find_jars()
        except KafkaUnavailableError as reason:
            pytest.skip(str(reason))
        one = KafkaCluster(directory)
    else:
        one = TidelogCluster(directory / "data", settings=AS_PEER)
    _running.append(one)
    try:
        yield one.up()
    finally:
        _ended(one)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def tidelog_cluster(cluster: Cluster) -> TidelogCluster:
    """Returns the module's cluster, for tests of features that Kafka does not have."""
    if not isinstance(cluster, TidelogCluster):
        pytest.skip("Apache Kafka has no etcd and no separate controllers")
    return cluster


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[..., TidelogCluster]]:
    """Returns new_cluster(brokers=3, controllers=1, settings={...}, start=True), which starts a cluster."""
    if os.environ.get(WHICH_CLUSTER):
        pytest.skip(f"the test starts its own cluster, but {WHICH_CLUSTER} names another kind")
    own: list[TidelogCluster] = []

    def start_one(*, start: bool = True, **arguments: object) -> TidelogCluster:
        one = TidelogCluster(tmp_path / f"cluster-{len(own) + 1}", **arguments)  # type: ignore[arg-type]
        own.append(one)
        _running.append(one)
        return one.up() if start else one

    try:
        yield start_one
    finally:
        for one in own:
            _ended(one)


@pytest.fixture
def new_replicated_topic() -> Callable[..., str]:
    """Returns new_replicated_topic(cluster, partitions, **configs): three replicas, min ISR 2,
    all in sync.
    """

    def create(cluster: Cluster, partitions: int, **configs: object) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        settings = {"min.insync.replicas": "2", **{k.replace("_", "."): str(v) for k, v in configs.items()}}
        create_topic(cluster.bootstrap, name, partitions, settings, replication_factor=3)
        await_view(
            cluster.addresses.values(),
            name,
            lambda view: (
                len(view) == partitions and all(p.leader >= 0 and len(p.isr) == 3 for p in view.values())
            ),
            30,
        )
        return name

    return create


@pytest.fixture
def tell(
    record_property: Callable[[str, object], None], request: pytest.FixtureRequest
) -> Callable[..., None]:
    """Returns tell(name, value, unit), which records a measurement."""

    def say(name: str, value: float, unit: str = "s") -> None:
        record_property(name, value)
        line = f"{name}: {value:.2f} {unit}"
        print(line)
        if path := os.environ.get(FIGURES_FILE):
            with Path(path).open("a") as file:
                file.write(f"{request.node.name}: {line}\n")

    return say
