"""The driver gets SIGKILL in the middle of a batch, or a task fails, and the table still has each record
once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import produce_values
from tidelog.client.admin.groups import committed_offsets
from tidelog.client.cluster import Cluster
from tidelog.pipeline.tables.archive_table import ledger_of, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

# Each kill costs another start of Java.
KILLS: Final = int(os.environ.get("TIDELOG_TEST_KILLS", "1"))
DRIVER: Final = Path(__file__).with_name("driver_with_a_bad_task.py")
RECORDS: Final = 2000
BATCHES: Final = 4
PARTITIONS: Final = 2
START_TIMEOUT_S: Final = 300.0


class Driver:
    """One run of the job in a process of its own."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.begins_at = output.tell()
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )

    def text(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self.begins_at)
            return file.read().decode(errors="replace")

    def kill_in_a_batch(self, dice: random.Random) -> None:
        """Kills the driver after its first batch, at any moment of the following ones. The driver may have
        finished by then.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while "\nbatch " not in self.text() and self.process.poll() is None:
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)
        time.sleep(dice.uniform(0, 2))
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Ends the driver with its Java process, which may live for a moment longer."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


@pytest.mark.timeout(900)
def test_a_killed_driver_causes_no_loss_and_no_duplicates(
    spark: SparkSession, broker: BrokerProcess, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce_values(broker.bootstrap, topic, (b"%d" % n for n in range(RECORDS // PARTITIONS)), partition)
    arguments = [
        str(tmp_path / "failed-once"),
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--table", str(tmp_path / "table")),
        *("--name", topic, "--max-offsets", str(RECORDS // BATCHES), "--master", "local[2,4]"),
        *("--set", "spark.driver.memory=1g", "--set", "spark.sql.shuffle.partitions=2"),
    ]
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    log = tmp_path / "driver.log"
    drivers: list[Driver] = []
    try:
        for _ in range(KILLS):
            drivers.append(Driver(arguments, log))
            # Java must detect the end of the driver itself, as on a busy machine.
            drivers[-1].kill_in_a_batch(dice)
        drivers.append(Driver(arguments, log))
        assert drivers[-1].process.wait(START_TIMEOUT_S) == 0, drivers[-1].text()
    finally:
        for driver in drivers:
            driver.end()
    assert (tmp_path / "failed-once").exists(), "no task failed"

    rows = read_table(spark, str(tmp_path / "table")).select("kafka_partition", "kafka_offset", "kafka_value")
    found = sorted((row[0], row[1], int(row[2])) for row in rows.collect())
    expected = [(p, n, n) for p in range(PARTITIONS) for n in range(RECORDS // PARTITIONS)]
    assert found == expected, f"seed {seed}"
    ledger = ledger_of(spark, str(tmp_path / "table"))
    assert [entry.batch_id for entry in ledger] == list(range(len(ledger)))
    assert sum(each.count for entry in ledger for each in entry.ranges) == RECORDS
    with Cluster(broker.bootstrap) as cluster:
        assert set(committed_offsets(cluster, topic).values()) == {RECORDS // PARTITIONS}
