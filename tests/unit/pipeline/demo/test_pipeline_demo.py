"""A small `make pipeline` with generated flights, so that nothing has to be downloaded."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from rich.progress import Progress

from brokerlab.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEMO = Path(__file__).parents[4] / "tests" / "demo"
FLIGHTS = 400
WEATHER = """\
origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour
EWR,2013,1,1,5,39.0,26,59,270,10.0,NA,0.3,NA,10,2013-01-01T10:00:00Z
EWR,2013,1,1,5,41.0,26,59,270,20.0,NA,0.3,NA,10,2013-01-01T10:00:00Z
JFK,2013,1,1,6,NA,26,59,270,8.0,NA,0,1012,10,2013-01-01T11:00:00Z
"""


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """The modules pipeline and delays of tests/demo, which are scripts."""
    monkeypatch.syspath_prepend(DEMO)
    import delays
    import pipeline

    yield pipeline, delays
    for name in ("delays", "pipeline", "flights"):
        sys.modules.pop(name, None)


def flight(number: int) -> bytes:
    """Returns a flight. Every tenth is cancelled. Flights of EWR are 30 minutes late, flights of JFK are on
    time.
    """
    is_first = number % 2 == 0
    origin, hour, utc = ("EWR", 5, 10) if is_first else ("JFK", 6, 11)
    gone = "NA,500,NA" if number % 10 == 0 else f"517,500,{30 if is_first else 0}"
    times = f"{gone},830,819,11"
    carrier = "UA" if is_first else "AA"
    line = f"2013,1,1,{times},{carrier},{number},N1,{origin},IAH,NA,1400,{hour},0,2013-01-01T{utc}:00:00Z"
    return line.encode()


def test_a_flight_as_json(demo: tuple[Any, Any]) -> None:
    _, delays = demo
    found = json.loads(delays.json_of(flight(10)))
    assert found["flight"] == 10
    assert found["origin"] == "EWR"
    assert found["dep_time"] is None
    assert found["time_hour"] == "2013-01-01T10:00:00Z"
    with pytest.raises(Exception, match="3 columns"):
        delays.json_of(b"2013,1,1")


@pytest.mark.spark
def test_flights_become_a_complete_table_of_delays(
    spark: SparkSession, broker: BrokerProcess, demo: tuple[Any, Any], tmp_path: Path
) -> None:
    from flights import create_topic

    pipeline, delays = demo
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    create_topic(broker.bootstrap, topic)
    (tmp_path / "weather.csv").write_text(WEATHER)
    flights = [("UA", delays.json_of(flight(n))) for n in range(FLIGHTS)]
    with Progress(disable=True) as progress:
        pipeline.produce(broker.bootstrap, topic, flights, progress)
        pipeline.archive(spark, broker.bootstrap, topic, tmp_path, progress)
        found = pipeline.join_weather(spark, tmp_path / "weather.csv", tmp_path, progress)
        verdict = pipeline.verified(spark, broker.bootstrap, tmp_path, progress)

    assert verdict.is_complete, verdict.problems
    assert (verdict.rows, verdict.lost, verdict.duplicated) == (FLIGHTS, 0, 0)
    # The holes are an aborted transaction of all flights, and the markers of both transactions.
    assert verdict.holes["abort"] == FLIGHTS
    assert verdict.holes["marker"] == 2
    rows = {row.carrier: row for row in found.collect()}
    assert rows.keys() == {"UA", "AA"}
    # The hour that the weather contains twice duplicates no flight.
    assert [rows[c].flights for c in ("UA", "AA")] == [200, 200]
    assert [rows[c].cancelled for c in ("UA", "AA")] == [40, 0]
    assert [rows[c].dep_delay_min for c in ("UA", "AA")] == [30.0, 0.0]
    assert (rows["UA"].temp, rows["UA"].precip, rows["AA"].temp) == (40.0, 0.3, None)
    assert (tmp_path / pipeline.PICTURE).stat().st_size > 10_000
    assert pipeline.carriers(found).row_count == 2


def test_the_broker_stays_after_a_success(
    demo: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table could not be verified again, because the topic and the broker were gone."""
    pipeline, _ = demo
    started: list[str] = []
    stopped: list[int] = []

    class Process:
        pid = 4711

        def __init__(self, command: list[str], **_: object) -> None:
            started.extend(command)

        def poll(self) -> None:
            return None

        def terminate(self) -> None:
            stopped.append(self.pid)

        def wait(self, _: float | None = None) -> int:
            return 0

    monkeypatch.setattr(pipeline.subprocess, "Popen", Process)
    monkeypatch.setattr(pipeline, "answers", lambda *_: bool(started))
    console = Console(quiet=True)
    with pipeline.broker_at("127.0.0.1:9092", tmp_path, console, keeps=True):
        assert started[1:4] == ["dev", "--listen", "127.0.0.1:9092"]
    assert stopped == []
    verify, stop = pipeline.next_commands("127.0.0.1:9092", tmp_path)
    assert verify.endswith(f"tidelog pipeline verify {tmp_path}/flights --bootstrap-server 127.0.0.1:9092")
    assert stop == "stop its broker: kill 4711"

    pipeline.prepare(tmp_path)  # the next run uses the same broker
    assert (tmp_path / "broker.log").exists()

    started.clear()
    with pipeline.broker_at("127.0.0.1:9092", tmp_path, console, keeps=False):
        pass
    started.clear()
    with (
        pytest.raises(RuntimeError),
        pipeline.broker_at("127.0.0.1:9092", tmp_path, console, keeps=True),
    ):
        raise RuntimeError
    assert stopped == [4711, 4711]
    assert len(pipeline.next_commands("127.0.0.1:9092", tmp_path)) == 1
