"""Batches are decoded on Spark, and their bad records go to a quarantine topic."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import fastavro
import pytest

from brokerlab.broker_process import BrokerProcess
from tidelog.client.cluster import Cluster
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.decoder import Decoder
from tidelog.pipeline.formats.value_format import NamedSchema, ValueFormat, ValueKind
from tidelog.pipeline.quarantine.replay import Origin, Quarantined, open_survey, quarantined_of, records_of
from tidelog.pipeline.quarantine.writer import ensure_quarantine_topic, send_to_quarantine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]
CONNECTOR_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key:string,value:binary>>"
)
JSON = ValueFormat(ValueKind.JSON)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def records(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [
        (b"k%d" % n, value, "flights", 3, n, AT, 0, [("own", b"%d" % n), ("tidelog.error.reason", b"old")])
        for n, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, CONNECTOR_COLUMNS).coalesce(2)


def test_json_by_a_schema_and_new_fields(spark: SparkSession) -> None:
    columns = "delay INT, at STRUCT<day: DATE>, t TIMESTAMP, m MAP<STRING, INT>"
    given = ValueFormat(ValueKind.JSON, json_schema=columns)
    whole = b'{"delay": 1, "at": {"day": "2026-01-02", "dst-": true}, "gate": "A4", "t": "%s", "m": {"x": 1}}'
    values = (whole % b"2026-01-02T03:00Z", None, b'{"delay": "1"}')
    decoded = Decoder(spark, given).decode(records(spark, *values))
    nested = "at:struct<day:date,dst-:boolean>"
    assert decoded.schema.simpleString() == (
        f"struct<delay:int,{nested},t:timestamp,m:map<string,int>,gate:string>"
    )
    assert (decoded.good_count, decoded.bad_count) == (2, 1)
    first, tombstone = decoded.good.sort("kafka_offset").collect()
    assert (first.delay, first.gate, first["at"]["dst-"], str(first["at"].day)) == (
        1,
        "A4",
        True,
        "2026-01-02",
    )
    assert first.t.timestamp() == datetime(2026, 1, 2, 3, tzinfo=UTC).timestamp()
    assert first.m == {"x": 1}
    assert (first.kafka_topic, first.kafka_partition, first.kafka_offset) == ("flights", 3, 0)
    assert (tombstone.kafka_offset, tombstone.delay, tombstone.kafka_key) == (1, None, b"k1")
    (bad,) = decoded.bad.collect()
    assert (bad.offset, bad.error_reason) == (2, "field delay is text, but the table has int")
    # The next batch knows the table and has no new fields, so it is decoded in one job.
    again = Decoder(spark, given).decode(records(spark, b'{"gate": "A5"}'), decoded.good.schema)
    assert again.good.columns == decoded.good.columns
    decoded.close()
    again.close()
    with pytest.raises(PipelineError, match="the JSON schema is neither"):
        Decoder(spark, ValueFormat(ValueKind.JSON, json_schema="delay NOTHING"))
    with pytest.raises(PipelineError, match="a type that JSON values cannot fill"):
        Decoder(spark, ValueFormat(ValueKind.JSON, json_schema="d INTERVAL DAY TO SECOND"))
    with pytest.raises(PipelineError, match="field kafka_x has a name reserved"):
        Decoder(spark, ValueFormat(ValueKind.JSON, json_schema="kafka_x INT"))


def test_avro_values_into_a_table_that_has_more(spark: SparkSession) -> None:
    plain = {"type": "record", "name": "F", "fields": [{"name": "carrier", "type": "string"}]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), {"carrier": "AA"})
    value_format = ValueFormat(ValueKind.AVRO, avro_schemas=(NamedSchema("f.avsc", json.dumps(plain)),))
    known = spark.createDataFrame([], "kafka_offset bigint, delay double, event_date date").schema
    decoded = Decoder(spark, value_format).decode(records(spark, out.getvalue(), b"\x20"), known)
    assert decoded.schema.simpleString() == "struct<delay:double,carrier:string>"
    (good,) = decoded.good.collect()
    assert (good.carrier, good.delay) == ("AA", None)
    assert decoded.bad.first().error_reason.startswith("the value is not Avro of schema f.avsc")  # type: ignore[union-attr]
    decoded.close()


def test_bad_records_are_quarantined_unchanged_with_reason_and_origin(
    spark: SparkSession, broker: BrokerProcess, new_topic: Callable[..., str]
) -> None:
    topic = f"{new_topic()}-quarantine"
    large = b"x" * 20_000
    decoded = Decoder(spark, JSON).decode(records(spark, b'{"a": 1}', b"no", large))
    with Cluster(broker.bootstrap) as cluster:
        assert ensure_quarantine_topic(cluster, topic) == 32 << 20
        for _ in range(2):  # as a repeated batch does
            send_to_quarantine(
                decoded.bad,
                bootstrap=broker.bootstrap,
                topic=topic,
                max_message_bytes=20_000,
                archive="nightly",
                client_settings={"linger.ms": "5"},
            )
        found = open_survey(cluster, topic)
        sent = [
            quarantined_of(record) for _, record in records_of(cluster, topic, found, lambda _count: None)
        ]
    decoded.close()
    small, left_out = (
        Quarantined(
            Origin("flights", 3, n),
            int(AT.timestamp() * 1000),
            "the value is not JSON: Expecting value at character 0",
            "nightly",
            b"k%d" % n,
            value,
            (("own", b"%d" % n),),
            left_out_bytes,
        )
        for n, value, left_out_bytes in ((1, b"no", None), (2, None, 20_000))
    )
    assert sorted(map(str, sent)) == sorted(map(str, [small, small, left_out, left_out]))
