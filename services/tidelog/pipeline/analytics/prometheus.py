"""The metrics history as a DataFrame of facts, from Prometheus or a compatible server (Thanos, Mimir,
VictoriaMetrics), by queries of its HTTP API. A Spark task fetches each part.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from tidelog.pipeline.analytics.facts import (
    ALL,
    BUILD_INFO,
    IN_SYNC,
    Fact,
    Sample,
    fact_of,
    interval_ms,
    node_ids,
)
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.session import is_remote
from tidelog.process.direct_requests import open_directly

FACT_SCHEMA: Final = (
    "metric string, broker int, topic string, partition int, consumer_group string, detail string, "
    "at_ms bigint, value double"
)
MAX_POINTS: Final = 10_000
"""The number of points to request for a series at once. Prometheus rejects more than 11,000."""
LONGEST_SLICE_MS: Final = 3 * 3_600_000
DEFAULT_INTERVAL_MS: Final = 15_000
_TIMEOUT_S: Final = 60.0
_PARTS_A_TASK: Final = 20
_UNKNOWN_PARALLELISM: Final = 4


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a metric's history, which one Spark task fetches. A `step_ms` of None means each sample."""

    metric: str
    start_ms: int
    end_ms: int
    step_ms: int | None


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A Prometheus server. `url` is its address in a browser. `matchers` has the form `name="value",...`.
    `token` is for the Authorization header.
    """

    url: str
    matchers: str = ""
    token: str | None = None

    def samples(self, part: Slice) -> Iterator[Sample]:
        """Returns the samples of a slice, including both ends. Raises PipelineError."""
        if part.step_ms is None:
            length_ms = part.end_ms - part.start_ms + 1
            query = {
                "query": f"{self._series(part.metric)}[{length_ms}ms]",
                "time": f"{part.end_ms / 1000:.3f}",
            }
            found = range_samples(self._ask("api/v1/query", query), part.metric)
            # Whether a range includes its beginning depends on Prometheus' version.
            return (sample for sample in found if sample.at_ms >= part.start_ms)
        # A plain selector would extend a series that ended by five minutes. A step and a half includes
        # scrapes that are slightly late.
        query = {
            "query": f"last_over_time({self._series(part.metric)}[{part.step_ms * 3 // 2}ms])",
            "start": f"{part.start_ms / 1000:.3f}",
            "end": f"{part.end_ms / 1000:.3f}",
            "step": f"{part.step_ms / 1000:.3f}",
        }
        return range_samples(self._ask("api/v1/query_range", query), part.metric)

    def scrape_interval_ms(self, metric: str, at_ms: int) -> int | None:
        """Returns the scrape interval that the samples of the previous ten minutes show. Raises
        PipelineError.
        """
        query = {"query": f"{self._series(metric)}[10m]", "time": f"{at_ms / 1000:.3f}"}
        times: dict[str, list[int]] = {}
        for sample in range_samples(self._ask("api/v1/query", query), metric):
            times.setdefault(sample.labels.get("instance", ""), []).append(sample.at_ms)
        found = [interval_ms(sorted(told), 0) for told in times.values() if len(told) > 2]
        # The interval is rounded to whole seconds, because scrapes are a few milliseconds early or late.
        return max(1000, round(max(found) / 1000) * 1000) if found else None

    def _series(self, metric: str) -> str:
        return f'{{__name__="{metric}",{self.matchers}}}'

    def _ask(self, path: str, query: Mapping[str, str]) -> bytes:
        url = f"{self.url.rstrip('/')}/{path}"
        if not url.startswith(("http://", "https://")):
            raise PipelineError(f"--prometheus {self.url} does not have the form http://HOST:PORT")
        request = urllib.request.Request(url, urllib.parse.urlencode(query).encode(), method="POST")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with open_directly(request, _TIMEOUT_S) as answer:
                found: bytes = answer.read()
        except urllib.error.HTTPError as error:
            said = " ".join(error.read(2000).decode(errors="replace").split())[:300]
            hint = f"; is --match {self.matchers} right?" if self.matchers and error.code == 400 else ""
            raise PipelineError(
                f"Prometheus at {self.url} rejected the query ({error.code}): {said}{hint}"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise PipelineError(f"Prometheus at {self.url} does not answer: {reason}") from error
        return found


def slices_of(
    metrics: Sequence[str], start_ms: int, end_ms: int, step_ms: int | None, longest_ms: int
) -> list[Slice]:
    """Divides each metric's history into parts that do not overlap and that fit into one answer."""
    length_ms = longest_ms
    if step_ms is not None:
        length_ms = max(step_ms, min(longest_ms, step_ms * MAX_POINTS) // step_ms * step_ms)
    return [
        Slice(metric, begin_ms, min(begin_ms + length_ms - 1, end_ms), step_ms)
        for metric in metrics
        for begin_ms in range(start_ms, end_ms + 1, length_ms)
    ]


def range_samples(body: bytes, metric: str) -> Iterator[Sample]:
    """Parses an answer of /api/v1/query_range. Functions remove the metric's name, so the caller gives it.
    Raises PipelineError.
    """
    try:
        series = json.loads(body)["data"]["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(
            "the server at --prometheus is not Prometheus: it does not answer queries"
        ) from error
    return (
        Sample(metric, one["metric"], round(float(at_s) * 1000), float(value))
        for one in series
        for at_s, value in one["values"]
    )


@dataclass(frozen=True, slots=True)
class PrometheusHistory:
    """A history in Prometheus, which has answered. `interval_ms` is the time between two samples of a series.
    `nodes` maps instances of brokers to their ids.
    """

    prometheus: Prometheus
    start_ms: int
    end_ms: int
    step_ms: int | None
    interval_ms: int
    nodes: Mapping[str, int]


def find_history(
    prometheus: Prometheus, start_ms: int, end_ms: int, step_ms: int | None = None
) -> PrometheusHistory:
    """Asks Prometheus for the brokers, without Spark. Raises PipelineError."""
    scraped_ms = step_ms or DEFAULT_INTERVAL_MS
    for metric in (BUILD_INFO, IN_SYNC):  # an exporter reports only the second
        if interval := prometheus.scrape_interval_ms(metric, end_ms):
            scraped_ms = interval
            break
    every_ms = max(step_ms or 0, scraped_ms)
    # The instances of the brokers are few series that hardly change, so coarse steps suffice, and they also
    # show short-lived instances.
    parts = slices_of((BUILD_INFO,), start_ms, end_ms, every_ms, end_ms - start_ms + every_ms)
    nodes = node_ids(sample for part in parts for sample in prometheus.samples(part))
    return PrometheusHistory(prometheus, start_ms, end_ms, step_ms, every_ms, nodes)


def from_prometheus(spark: SparkSession, found: PrometheusHistory) -> DataFrame:
    """Reads a history from Prometheus."""
    prometheus, nodes = found.prometheus, found.nodes
    parts = slices_of(ALL, found.start_ms, found.end_ms, found.step_ms, LONGEST_SLICE_MS)
    # A session of Spark Connect does not report its parallelism.
    parallelism = _UNKNOWN_PARALLELISM if is_remote(spark) else int(spark.sparkContext.defaultParallelism)
    tasks = min(len(parts), max(parallelism, len(parts) // _PARTS_A_TASK))

    def fetch(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            for number in frame["id"]:
                told = (fact_of(sample, nodes) for sample in prometheus.samples(parts[number]))
                facts = pd.DataFrame.from_records([f for f in told if f is not None], columns=Fact._fields)
                yield facts.astype({"broker": "Int32", "partition": "Int32"})

    return spark.range(0, len(parts), 1, tasks).mapInPandas(fetch, FACT_SCHEMA)
