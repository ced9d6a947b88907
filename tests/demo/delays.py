"""Joins archived flights with the hourly weather into a table of delays for each carrier and hour, and draws
a picture.
"""

from __future__ import annotations

import csv
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("agg")
from flights import PACKAGE, PACKAGE_VERSION, DemoError
from matplotlib import pyplot as plt
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

FLIGHT_COLUMNS: Final = (
    ("year", "INT"),
    ("month", "INT"),
    ("day", "INT"),
    ("dep_time", "INT"),
    ("sched_dep_time", "INT"),
    ("dep_delay", "INT"),
    ("arr_time", "INT"),
    ("sched_arr_time", "INT"),
    ("arr_delay", "INT"),
    ("carrier", "STRING"),
    ("flight", "INT"),
    ("tailnum", "STRING"),
    ("origin", "STRING"),
    ("dest", "STRING"),
    ("air_time", "INT"),
    ("distance", "INT"),
    ("hour", "INT"),
    ("minute", "INT"),
    ("time_hour", "TIMESTAMP"),
)
"""The columns of flights.csv, in order."""
FLIGHT_SCHEMA: Final = ", ".join(f"{name} {type_}" for name, type_ in FLIGHT_COLUMNS)
NOT_AVAILABLE: Final = "NA"
WEATHER_MEMBER: Final = f"{PACKAGE}-{PACKAGE_VERSION}/{PACKAGE}/data/weather.csv"
WEATHER: Final = ("temp", "wind_speed", "precip", "visib")
RAIN_INCHES: Final = (0.0, 0.001, 0.02, 0.05, 0.1, 0.2)
"""The inches of rain in an hour at which the picture's bars begin."""
RAIN_NAMES: Final = ("dry", "< 0.02", "< 0.05", "< 0.1", "< 0.2", "0.2 and more")
SIZE: Final = (13, 6)
DOTS_PER_INCH: Final = 100


def json_of(line: bytes) -> bytes:
    """Returns a flight's line of flights.csv as the JSON object that goes into the topic."""
    values = next(csv.reader([line.decode()]))
    if len(values) != len(FLIGHT_COLUMNS):
        raise DemoError(f"a flight has {len(values)} columns, not {len(FLIGHT_COLUMNS)}: {line!r}")
    return json.dumps(
        {
            name: None if value == NOT_AVAILABLE else int(value) if type_ == "INT" else value
            for (name, type_), value in zip(FLIGHT_COLUMNS, values, strict=True)
        },
        separators=(",", ":"),
    ).encode()


def extract_weather(sdist: Path, target: Path) -> None:
    with tarfile.open(sdist) as archive:
        member = archive.extractfile(WEATHER_MEMBER)
        if member is None:
            raise DemoError(f"{sdist.name} holds no {WEATHER_MEMBER}")
        target.write_bytes(member.read())


def hourly_weather(spark: SparkSession, path: Path) -> DataFrame:
    """Returns one row for each airport and hour. At the end of daylight saving time, the file has an hour
    twice.
    """
    rows = spark.read.csv(str(path), header=True, nullValue=NOT_AVAILABLE)
    return rows.groupBy("origin", fn.to_timestamp("time_hour").alias("time_hour")).agg(
        *(fn.avg(fn.col(name).cast("double")).alias(name) for name in WEATHER)
    )


def delays_of(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Returns, for each carrier, airport and hour: flights, cancelled flights, mean delays in minutes, and
    the weather there.
    """
    return (
        flights.groupBy("carrier", "origin", "time_hour", "hour")
        .agg(
            fn.count("*").alias("flights"),
            fn.count_if(fn.col("dep_time").isNull()).alias("cancelled"),
            fn.avg("dep_delay").alias("dep_delay_min"),
            fn.avg("arr_delay").alias("arr_delay_min"),
        )
        .join(weather, ["origin", "time_hour"], "left")
    )


def draw(delays: DataFrame, path: Path) -> None:
    """Draws the delay by carrier and hour of the day, and the delay and cancelled flights by the hour's
    rain.
    """
    flown = fn.col("flights") - fn.col("cancelled")
    mean = fn.try_divide(fn.sum(fn.col("dep_delay_min") * flown), fn.sum(flown)).alias("delay")
    by_hour = delays.groupBy("carrier", "hour").agg(mean).collect()
    by_rain = (
        delays.filter(fn.col("precip").isNotNull())
        .groupBy(_step("precip").alias("step"))
        .agg(mean, (fn.sum("cancelled") / fn.sum("flights") * 100).alias("cancelled"))
        .orderBy("step")
        .collect()
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=SIZE, width_ratios=(3, 2))
    _heat(left, by_hour)
    _rain(right, by_rain)
    figure.suptitle("Flights from New York, 2013: how late they left")
    figure.tight_layout()
    figure.savefig(path, dpi=DOTS_PER_INCH)
    plt.close(figure)


def _step(name: str) -> Column:
    """Returns the largest of RAIN_INCHES that is not above the value."""
    chosen = fn.lit(0)
    for index, inches in enumerate(RAIN_INCHES):
        chosen = fn.when(fn.col(name) >= inches, fn.lit(index)).otherwise(chosen)
    return chosen


def _heat(axes: Any, rows: Sequence[Any]) -> None:
    carriers = sorted({row.carrier for row in rows})
    hours = list(range(min(row.hour for row in rows), max(row.hour for row in rows) + 1))
    values = [[float("nan")] * len(hours) for _ in carriers]
    for row in rows:
        if row.delay is not None:
            values[carriers.index(row.carrier)][row.hour - hours[0]] = row.delay
    image = axes.imshow(values, aspect="auto", cmap="RdYlGn_r", vmin=-10, vmax=45)
    axes.set_xticks(range(len(hours)), [str(hour) for hour in hours])
    axes.set_yticks(range(len(carriers)), carriers)
    axes.set_xlabel("hour of the day")
    axes.set_title("minutes late, by carrier and hour")
    axes.figure.colorbar(image, ax=axes)


def _rain(axes: Any, rows: Sequence[Any]) -> None:
    names = [RAIN_NAMES[row.step] for row in rows]
    places = list(range(len(rows)))
    axes.bar([place - 0.2 for place in places], [row.delay or 0 for row in rows], 0.4, color="#2980b9")
    axes.set_ylabel("minutes late", color="#2980b9")
    axes.set_xticks(places, names)
    axes.set_xlabel("rain in that hour, inches")
    other = axes.twinx()
    other.bar([place + 0.2 for place in places], [row.cancelled for row in rows], 0.4, color="#c0392b")
    other.set_ylabel("cancelled, %", color="#c0392b")
    axes.set_title("in the rain")
