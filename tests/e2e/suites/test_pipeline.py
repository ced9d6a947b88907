"""Spark on this cluster archives a topic while its driver, its executors and a broker are killed. The table
must contain every acknowledged record once, in order and unchanged.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from brokerlab.clients import create_topic, end_offset
from clusterlab.history import Read, judge, read_of
from clusterlab.load import Load, LoadPlan
from e2e.kubectl import KubectlError, await_none
from e2e.outcome import Outcome
from e2e.release import Release
from e2e.settings import TAG
from tidelog.client.admin.groups import committed_offsets
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition

TOPIC: Final = "archived"
ARCHIVE: Final = "kills"
SCHEDULED: Final = "yearly"
PARTITIONS: Final = 4
TABLES: Final = "/var/lib/tidelog-tables/tables"
PLANNED: Final = f"/var/lib/tidelog-tables/checkpoints/{SCHEDULED}/offsets/0"
SEGMENTS: Final = "/var/lib/tidelog-segments/broker-0"
BROKER: Final = 1
CHANGE_TIMEOUT_S: Final = 300.0
STARTS_S: Final = 180.0
ARCHIVED_S: Final = 180.0
WHOLE_S: Final = 90.0
CALM_S: Final = 3.0
ASK_TIMEOUT_S: Final = 30.0
VERIFIED_S: Final = 240.0
READ_TIMEOUT_S: Final = 120.0
VALUES: Final = {
    "pipeline.enabled": "true",
    "pipeline.archives[0].name": ARCHIVE,
    "pipeline.archives[0].topics[0]": TOPIC,
    "pipeline.archives[0].every": "1s",
    "pipeline.archives[1].name": SCHEDULED,
    "pipeline.archives[1].topics[0]": TOPIC,
    "pipeline.archives[1].schedule": "0 0 1 1 *",
    "pipeline.segments.brokers[0]": "0",
}

# The result is read without Spark, from the files that the table's log names, independently of its writer.
READ_TABLE: Final = """
import json, pathlib, sys
import pyarrow.parquet
table = pathlib.Path(sys.argv[1])
files = {}
for commit in sorted((table / "_delta_log").glob("*.json")):
    for line in commit.read_text().splitlines():
        action = json.loads(line)
        if "add" in action:
            files[action["add"]["path"]] = True
        if "remove" in action:
            files.pop(action["remove"]["path"], None)
names = ["kafka_partition", "kafka_offset", "kafka_key", "kafka_value"]
for file in files:
    rows = pyarrow.parquet.ParquetFile(table / file).read(names)
    for partition, offset, key, value in zip(*(rows[name].to_pylist() for name in names)):
        print(json.dumps([partition, offset, key.decode(), value.hex()]))
"""


@pytest.fixture(scope="module")
def archive(release: Release, slowness: float) -> Iterator[Release]:
    """The release with an archive of the topic, which an upgrade switches on and later off again."""
    create_topic(release.bootstrap, TOPIC, PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=3)
    release.change({**VALUES, "pipeline.image.tag": os.environ[TAG]}, CHANGE_TIMEOUT_S * slowness)
    yield release
    release.change({"pipeline.enabled": "false"}, CHANGE_TIMEOUT_S * slowness)


def archived_ends(release: Release) -> dict[int, int]:
    """Returns the committed offset of the archive's consumer group by partition, -1 if there is none.

    librdkafka's AdminClient would end this process if the killed broker came back as a broker that does not
    coordinate the group (docs/adr/0080).
    """
    with Cluster(release.bootstrap, timeout_s=ASK_TIMEOUT_S) as cluster:
        found = committed_offsets(cluster, ARCHIVE)
    return {partition: found.get(TopicPartition(TOPIC, partition), -1) for partition in range(PARTITIONS)}


def await_archived(release: Release, ends: Mapping[int, int], timeout_s: float) -> None:
    def lacking() -> list[str]:
        try:
            now = archived_ends(release)
        except (ClientError, KafkaError) as error:  # a broker was killed
            return [str(error)]
        return [f"{p}: {now[p]} of {end}" for p, end in ends.items() if now[p] < end]

    await_none(lacking, timeout_s, "not archived")


def driver(release: Release) -> str:
    """Returns the driver of the continuous archive. The drivers of a scheduled one are pods of a job."""
    found = release.kubectl.pods("pipeline-driver", release.name)
    (name,) = (pod for pod in found if pod.endswith(f"-{ARCHIVE}-0"))
    return name


def executors(release: Release) -> list[str]:
    return release.kubectl.pods("pipeline-executor", release.name)


def await_executors(release: Release, count: int, timeout_s: float) -> None:
    def lacking() -> list[str]:
        labels = f"app.kubernetes.io/instance={release.name},app.kubernetes.io/component=pipeline-executor"
        running = release.kubectl.get("pods", "-l", labels, "--field-selector=status.phase=Running")
        return [] if len(running) >= count else [f"{len(running)} of {count}"]

    await_none(lacking, timeout_s, "executors")


def rows_of_table(release: Release) -> list[Read]:
    table = f"{TABLES}/{ARCHIVE}"
    read = ["exec", driver(release), "-c", "driver", "--", "python3", "-c", READ_TABLE, table]
    lines = release.kubectl.run(*read, timeout_s=READ_TIMEOUT_S).splitlines()
    rows = sorted(json.loads(line) for line in lines)
    return [read_of(p, offset, key.encode(), bytes.fromhex(value)) for p, offset, key, value in rows]


def verify(release: Release, archive: str, timeout_s: float, *arguments: str) -> str:
    """Runs `tidelog pipeline verify` of an archive in a pod with the driver's volumes and returns its
    output.
    """
    labels = f"app.kubernetes.io/instance={release.name},app.kubernetes.io/component=pipeline-driver"
    (found,) = release.kubectl.get("statefulsets", "-l", labels)
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    table = f"{TABLES}/{archive}"
    container["args"] = ["tidelog", "pipeline", "verify", table, "--master=local[2]", *arguments]
    spec["restartPolicy"] = "Never"
    try:
        said = release.kubectl.run_pod_to_end("verify", spec, timeout_s=timeout_s)
    except KubectlError as error:
        pytest.fail(str(error))
    print(said)
    return said


def await_planned(release: Release, timeout_s: float) -> None:
    """Waits until the scheduled archive's first batch has been planned."""

    def lacking() -> list[str]:
        try:
            release.kubectl.run("exec", driver(release), "-c", "driver", "--", "test", "-e", PLANNED)
        except KubectlError as error:
            return [str(error)]
        return []

    await_none(lacking, timeout_s, "no batch")


def test_killed_driver_and_executors_cause_no_loss_and_no_duplicates(
    archive: Release, outcome: Outcome, slowness: float
) -> None:
    plan = LoadPlan(TOPIC, PARTITIONS, producers=2, keys=8, records_per_s=300, value_bytes=100)
    kills = 0
    began_s = time.monotonic()
    with Load(archive.bootstrap, plan) as load:
        load.await_acknowledged(range(PARTITIONS), STARTS_S * slowness)
        await_archived(archive, load.ends(), STARTS_S * slowness)
        print(f"the first records are archived after {time.monotonic() - began_s:.1f} s")
        for what in ("an executor", "the driver", "the driver, its executors and a broker"):
            await_executors(archive, 2, STARTS_S * slowness)
            victims = {
                "an executor": executors(archive)[:1],
                "the driver": [driver(archive)],
                "the driver, its executors and a broker": [
                    driver(archive),
                    *executors(archive),
                    archive.pod_of(BROKER),
                ],
            }[what]
            killed_s = time.monotonic()
            archive.kubectl.kill(*victims)
            kills += len(victims)
            archive.await_whole(TOPIC, 3, WHOLE_S * slowness)
            archive.kubectl.await_ready(archive.name, WHOLE_S * slowness)
            await_archived(archive, load.ends(), ARCHIVED_S * slowness)
            again_s = time.monotonic() - killed_s
            print(f"killed {what}: all records until then are archived after {again_s:.1f} s")
            time.sleep(CALM_S)
    await_archived(archive, load.ends(), ARCHIVED_S * slowness)
    load.history.final = rows_of_table(archive)
    verdict = judge(load.history)
    print(f"table: {verdict}")
    outcome.add(kills=kills, anomalies=len(verdict.anomalies), longest_gap_s=0.0)
    assert verdict.is_sound, str(verdict)
    assert verdict.acknowledged > 0
    for log in (f"--bootstrap-server={archive.inside_bootstrap}", f"--segments={SEGMENTS}"):
        verify(archive, ARCHIVE, VERIFIED_S * slowness, log)


def test_a_scheduled_archive_takes_all_records_and_ends(
    archive: Release, outcome: Outcome, slowness: float
) -> None:
    """The test starts the job by hand, because its schedule is New Year, and kills its driver in the middle
    of the batch.
    """
    kubectl = archive.kubectl
    kubectl.run("create", "job", "now", f"--from=cronjob/{archive.name}-tidelog-pipeline-{SCHEDULED}")
    timeout_s = STARTS_S * slowness
    await_planned(archive, timeout_s)
    (killed,) = (pod["metadata"]["name"] for pod in kubectl.get("pods", "-l", "job-name=now"))
    kubectl.kill(killed)
    outcome.add(kills=1, anomalies=0, longest_gap_s=0.0)
    began_s = time.monotonic()
    kubectl.run(
        *("wait", "job/now", "--for=condition=complete", f"--timeout={timeout_s:.0f}s"),
        timeout_s=timeout_s + ASK_TIMEOUT_S,
    )
    print(f"killed {killed}: another one ended after {time.monotonic() - began_s:.1f} s")
    print(kubectl.run("logs", "job/now"))
    records = sum(end_offset(archive.bootstrap, TOPIC, partition) for partition in range(PARTITIONS))
    assert records > 0
    said = verify(archive, SCHEDULED, VERIFIED_S * slowness, f"--bootstrap-server={archive.inside_bootstrap}")
    assert f"complete: rows {records:,}, lost 0, duplicated 0" in said
