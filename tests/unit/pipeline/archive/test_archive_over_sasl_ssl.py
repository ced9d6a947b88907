"""The archive and its verification read from a broker that requires TLS, a login and ACLs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from brokerlab.secured_broker import ALICE, PASSWORD, TOPIC, WAIT_S, Case, Mechanism, SecuredBroker
from tidelog.pipeline.archive.job import run_archive
from tidelog.pipeline.archive.spec import ArchiveSpec
from tidelog.pipeline.verify.job import verify
from tidelog.pipeline.verify.logs import BrokerLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]
ROWS = 1_000


def test_an_archive_over_sasl_ssl_is_complete(spark: SparkSession, tmp_path: Path) -> None:
    secured = SecuredBroker(tmp_path)
    try:
        producer = Producer(
            {
                "bootstrap.servers": secured.bootstrap("SASL_SSL"),
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": ALICE,
                "sasl.password": PASSWORD,
                "ssl.ca.location": str(secured.ca),
            }
        )
        for number in range(ROWS):
            producer.produce(TOPIC, b"%d" % number, partition=0)
        assert producer.flush(WAIT_S) == 0
        settings = secured.java_properties(Case(Mechanism.SCRAM_512, "SASL_SSL", True))
        bootstrap = settings.pop("bootstrap.servers")
        spec = ArchiveSpec(
            name="secured",
            bootstrap=bootstrap,
            table=str(tmp_path / "table"),
            checkpoint=str(tmp_path / "checkpoint"),
            topics=(TOPIC,),
            table_format="parquet",
            client_settings=settings,
        )
        assert run_archive(spark, spec).rows == ROWS
        verdict = verify(spark, spec.table, BrokerLog(bootstrap, client_settings=settings))
        assert verdict.is_complete, verdict
        assert verdict.rows == ROWS
    finally:
        secured.close()
