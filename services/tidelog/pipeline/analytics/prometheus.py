"""Reads a metrics history from Prometheus or a compatible server (Thanos, Mimir, VictoriaMetrics), by range
queries of its HTTP API or by remote read, which returns the samples as scraped.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import cramjam

from tidelog.pipeline.analytics.facts import Sample
from tidelog.pipeline.analytics.remote_messages import ReadRequest, ReadResponse
from tidelog.pipeline.analytics.series import interval_ms
from tidelog.pipeline.errors import PipelineError
from tidelog.process.direct_requests import open_directly

MAX_POINTS: Final = 10_000
"""The number of points to request for a series at once. Prometheus rejects more than 11,000."""
TIMEOUT_S: Final = 60.0
_MATCHER: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_OPERATORS: Final = ("=", "!=", "=~", "!~")
"""The operators, in the order of LabelMatcher's types."""


class Matcher(NamedTuple):
    """A label matcher such as `name=~"value"`."""

    name: str
    operator: str
    value: str

    def __str__(self) -> str:
        value = self.value.replace("\\", "\\\\").replace('"', '\\"')
        return f'{self.name}{self.operator}"{value}"'


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a metric's history, which one Spark task fetches."""

    metric: str
    start_ms: int
    end_ms: int
    step_ms: int


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A Prometheus server. `url` is its address in a browser. `token` is for the Authorization header."""

    url: str
    reads_remotely: bool = False
    matchers: tuple[Matcher, ...] = ()
    token: str | None = None
    timeout_s: float = TIMEOUT_S

    def samples(self, part: Slice) -> Iterator[Sample]:
        """Returns the samples of a slice, including both ends. Raises PipelineError."""
        matchers = (Matcher("__name__", "=", part.metric), *self.matchers)
        if self.reads_remotely:
            body = self._ask("api/v1/read", remote_request(matchers, part), _REMOTE_HEADERS)
            return remote_samples(body)
        # A plain selector would extend a series that ended by five minutes. A step and a half includes
        # scrapes that are slightly late.
        series = "{" + ",".join(map(str, matchers)) + "}"
        query = {
            "query": f"last_over_time({series}[{part.step_ms * 3 // 2}ms])",
            "start": f"{part.start_ms / 1000:.3f}",
            "end": f"{part.end_ms / 1000:.3f}",
            "step": f"{part.step_ms / 1000:.3f}",
        }
        body = self._ask("api/v1/query_range", urllib.parse.urlencode(query).encode(), {})
        return range_samples(body, part.metric)

    def scrape_interval_ms(self, metric: str, at_ms: int) -> int | None:
        """Returns the scrape interval that the samples of the previous ten minutes show. Raises
        PipelineError.
        """
        series = "{" + ",".join(map(str, (Matcher("__name__", "=", metric), *self.matchers))) + "}"
        query = {"query": f"{series}[10m]", "time": f"{at_ms / 1000:.3f}"}
        body = self._ask("api/v1/query", urllib.parse.urlencode(query).encode(), {})
        times: dict[str, list[int]] = {}
        for sample in range_samples(body, metric):
            times.setdefault(sample.labels.get("instance", ""), []).append(sample.at_ms)
        found = [interval_ms(sorted(told), 0) for told in times.values() if len(told) > 2]
        # The interval is rounded to whole seconds, because scrapes are a few milliseconds early or late.
        return max(1000, round(max(found) / 1000) * 1000) if found else None

    def _ask(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        url = f"{self.url.rstrip('/')}/{path}"
        if not url.startswith(("http://", "https://")):
            raise PipelineError(f"--prometheus {self.url} does not have the form http://HOST:PORT")
        request = urllib.request.Request(url, body, dict(headers), method="POST")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with open_directly(request, self.timeout_s) as answer:
                found: bytes = answer.read()
        except urllib.error.HTTPError as error:
            said = " ".join(error.read(2000).decode(errors="replace").split())[:300]
            raise PipelineError(
                f"Prometheus at {self.url} rejected the query ({error.code}): {said}"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise PipelineError(f"Prometheus at {self.url} does not answer: {reason}") from error
        return found


_REMOTE_HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Read-Version": "0.1.0",
}


def parse_matchers(text: str) -> tuple[Matcher, ...]:
    """Parses matchers such as `namespace="kafka",release=~"a|b"`. Raises PipelineError."""
    found = []
    at = 0
    while at < len(text):
        match = _MATCHER.match(text, at)
        if match is None:
            raise PipelineError(f'--match {text}: NAME="VALUE",... expected (=, !=, =~ or !~)')
        found.append(Matcher(match[1], match[2], re.sub(r"\\(.)", r"\1", match[3])))
        at = match.end()
    return tuple(found)


def slices_of(
    metrics: Sequence[str], start_ms: int, end_ms: int, step_ms: int, longest_ms: int
) -> list[Slice]:
    """Divides each metric's history into parts that do not overlap and that fit into one answer."""
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


def remote_request(matchers: Sequence[Matcher], part: Slice) -> bytes:
    """Returns a compressed ReadRequest."""
    request = ReadRequest()
    query = request.queries.add(start_timestamp_ms=part.start_ms, end_timestamp_ms=part.end_ms)
    for matcher in matchers:
        query.matchers.add(type=_OPERATORS.index(matcher.operator), name=matcher.name, value=matcher.value)
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


def remote_samples(body: bytes) -> Iterator[Sample]:
    """Parses a ReadResponse with samples. Prometheus' stale marks (not a number) are left out. Raises
    PipelineError.
    """
    try:
        # `Any`: remote_messages builds the class at run time.
        answer: Any = ReadResponse.FromString(bytes(cramjam.snappy.decompress_raw(body)))
    except Exception as error:
        raise PipelineError("the server at --prometheus does not support remote read") from error
    for result in answer.results:
        for series in result.timeseries:
            labels = {label.name: label.value for label in series.labels}
            for sample in series.samples:
                if not math.isnan(sample.value):
                    yield Sample(labels.get("__name__", ""), labels, sample.timestamp, sample.value)
