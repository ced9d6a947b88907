"""Writes pages of /metrics to a topic, as Prometheus would scrape them, for clusters without Prometheus."""

from __future__ import annotations

import contextlib
import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.admin import create_topic
from tidelog.client.cluster import Cluster
from tidelog.client.threads.cluster_clients import batch_producer_of
from tidelog.client.threads.producer import Producer
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.pipeline.analytics.snapshots import kept_lines, snapshot_record
from tidelog.pipeline.errors import PipelineError
from tidelog.records.record import Record

MAX_PAGE_BYTES: Final = 64 * 1024 * 1024
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of snapshots that are compressed together."""
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Target:
    """A scrape target. `labels` are added to all of its samples."""

    url: str
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def instance(self) -> str:
        return urllib.parse.urlsplit(self.url).netloc


Fetch = Callable[[str, float], str]
"""A function from (URL, timeout in seconds) to a page. It raises OSError, http.client.HTTPException."""


def parse_target(text: str) -> Target:
    """Parses `http://HOST:PORT/metrics` or HOST:PORT, followed by `,NAME=VALUE` for each label. Raises
    PipelineError.
    """
    url, *pairs = text.split(",")
    if "://" not in url:
        url = f"http://{url}/metrics"
    parts = urllib.parse.urlsplit(url)
    labels = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if parts.scheme not in ("http", "https") or not parts.netloc or len(labels) != len(pairs):
        raise PipelineError(f"--target {text} does not have the form HOST:PORT or URL, then ,NAME=VALUE")
    return Target(url, labels)


def fetch_page(url: str, timeout_s: float) -> str:
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        page: bytes = answer.read(MAX_PAGE_BYTES)
    return page.decode(errors="replace")


def scrape(
    targets: Sequence[Target],
    at_ms: int,
    timeout_s: float,
    *,
    keeps_all: bool = False,
    fetch: Fetch = fetch_page,
) -> list[Record]:
    """Scrapes all targets and returns a record for each, all with the same time."""

    def one(target: Target) -> Record:
        page: str | None = None
        failure: str | None = None
        try:
            page = fetch(target.url, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            failure = str(getattr(error, "reason", error)) or type(error).__name__
        if page is not None and not keeps_all:
            page = kept_lines(page)
        return snapshot_record(target.instance, target.labels, at_ms, page, failure)

    with ThreadPoolExecutor(min(_AT_ONCE, len(targets))) as pool:
        return list(pool.map(one, targets))


def failure_of(record: Record) -> str | None:
    """Returns the reason why a target's page could not be fetched."""
    if record.value is not None:
        return None
    return next((value or b"" for _, value in record.headers[-1:]), b"").decode(errors="replace")


@contextlib.contextmanager
def snapshot_producer(cluster: Cluster, topic: str) -> Iterator[Producer[bytes, bytes]]:
    """Yields a producer for the topic, which is created with the broker's defaults if it does not exist.
    Raises KafkaError, ClientError.
    """
    if topic not in cluster.topics([topic]):
        try:
            create_topic(cluster, topic)
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:  # another process created the topic first
                raise
    # A snapshot that is stored twice does no harm, but an abandoned one must not make the broker reject the
    # next ones.
    with batch_producer_of(
        cluster, compression="zstd", batch_bytes=MAX_BATCH_BYTES, is_idempotent=False
    ) as producer:
        yield producer


def send_snapshots(producer: Producer[bytes, bytes], topic: str, records: Sequence[Record]) -> None:
    """Sends snapshots, which all have the same time. Those of one target stay in order, in the partition of
    its key. Raises KafkaError, ClientError.
    """
    if records:
        producer.send_batch(
            topic,
            [record.value for record in records],
            keys=[record.key for record in records],
            headers=[record.headers for record in records],
            timestamp=records[0].timestamp,
        ).result()
