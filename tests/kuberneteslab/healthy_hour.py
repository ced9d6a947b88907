"""An hour of a healthy cluster under light load, in which no alert may fire.

`python -m kuberneteslab.healthy_hour` starts a cluster, lets clients use it, and writes RECORDED: each
line is a series that a rule selects, and its values at two scrapes APART_S apart. `healthy_series` continues
their change for an hour. `HAND_WRITTEN` has what a cluster of processes does not show.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from clusterlab.tidelog_cluster import TidelogCluster
from kuberneteslab.chart_files import metric_of, rules, selectors
from kuberneteslab.foreign import RECORDED as RECORDED_EXPORTERS
from kuberneteslab.foreign import SECONDS_APART as EXPORTERS_APART_S
from kuberneteslab.watched_cluster import SETTINGS, targets_of

_HERE = Path(__file__).parents[1] / "observability"
RECORDED = _HERE / "healthy_hour.txt"
HAND_WRITTEN = _HERE / "healthy_hour.yaml"
WARM_UP_S, APART_S = 60.0, 60.0
MINUTES = 60
TOPICS = {
    "flights": {},
    "hour": {"retention.ms": "3600000"},
    "minutes": {"retention.ms": "120000", "segment.ms": "10000"},
}
TURN_S, RECORDS_PER_TURN = 0.5, 5
ADMIN_TIMEOUT_S, CLOSE_TIMEOUT_S = 30.0, 20.0
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')
_SERIES = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)(?: \S+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_GROWS = re.compile(r".*(_total|_bucket|_sum|_count|_current_offset)")


def healthy_series() -> Iterator[tuple[str, str]]:
    """Yields each series of the hour and its values by minute, in the notation of promtool."""
    for path, apart_s in [(RECORDED, APART_S)] + [
        (path, EXPORTERS_APART_S) for path in sorted(RECORDED_EXPORTERS.glob("*.txt"))
    ]:
        for line in path.read_text().splitlines():
            if line and not line.startswith("#"):
                series, first, second = line.rsplit(" ", 2)
                yield series, _values(metric_of(series), float(first), float(second), 60 / apart_s)
    yield from yaml.safe_load(HAND_WRITTEN.read_text()).items()


def _values(metric: str, first: float, second: float, steps_a_minute: float) -> str:
    """Continues a counter's growth. Other values come and go, because an hour of their change would leave
    what is healthy.
    """
    if _GROWS.fullmatch(metric):
        return f"{first!r}+{max(0.0, second - first) * steps_a_minute!r}x{MINUTES}"
    return " ".join(repr(second if minute % 2 else first) for minute in range(MINUTES + 1))


def record(path: Path) -> None:
    """Records a cluster that it starts."""
    wanted = sorted({selector for rule in rules() for selector in selectors(rule.expression)})
    options = ["--coordinators", "2"]
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        cluster = TidelogCluster(Path(directory) / "cluster", settings=SETTINGS, options=options)
        stack.callback(cluster.destroy)
        cluster.up()
        stack.enter_context(clients(cluster.bootstrap))
        time.sleep(WARM_UP_S)
        first = _scraped(cluster, wanted)
        time.sleep(APART_S)
        second = _scraped(cluster, wanted)
    lines = [
        f"{series} {first[series]!r} {second[series]!r}" for series in sorted(first.keys() & second.keys())
    ]
    head = f"# Written by `python -m kuberneteslab.healthy_hour`: two scrapes, {APART_S:.0f} s apart.\n"
    path.write_text(head + "\n".join(lines) + "\n")


def _scraped(cluster: TidelogCluster, wanted: list[str]) -> dict[str, float]:
    """Returns the samples that a rule selects, with the labels that the chart's monitors add, and `up`."""
    found: dict[str, float] = {}
    for target in targets_of(cluster):
        with urllib.request.urlopen(
            f"http://{target.address}{target.path}", timeout=ADMIN_TIMEOUT_S
        ) as answer:
            text = f"up 1\n{answer.read().decode()}"
        for line in text.splitlines():
            sample = None if line.startswith("#") else _SERIES.fullmatch(line)
            if sample is None:
                continue
            labels = dict(_LABEL.findall(sample[2] or "")) | target.labels
            if any(is_selected(selector, sample[1], labels) for selector in wanted):
                shown = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
                found[f"{sample[1]}{{{shown}}}"] = float(sample[3])
    return found


def is_selected(selector: str, metric: str, labels: dict[str, str]) -> bool:
    """Returns whether a selector of PromQL selects a series."""
    if metric_of(selector) != metric:
        return False
    for name, operator, value in _MATCHER.findall(selector):
        label = labels.get(name, "")
        is_equal = re.fullmatch(value, label) is not None if "~" in operator else value == label
        if is_equal == operator.startswith("!"):
            return False
    return True


@contextlib.contextmanager
def clients(bootstrap: str) -> Iterator[None]:
    """Runs producers, and members of a group of each type, for topics of different retention."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [NewTopic(name, 2, 3, config=config) for name, config in TOPICS.items()]
    for done in admin.create_topics(topics, operation_timeout=ADMIN_TIMEOUT_S).values():
        done.result(ADMIN_TIMEOUT_S)
    is_over = threading.Event()
    settings = {"bootstrap.servers": bootstrap, "log_level": 0}
    steps: list[Callable[[], None]] = [
        lambda: _produce(is_over, Producer({**settings, "enable.idempotence": True}), is_transactional=False),
        lambda: _produce(
            is_over, Producer({**settings, "transactional.id": "transactions"}), is_transactional=True
        ),
        lambda: _consume(is_over, Consumer({**settings, "group.id": "classic", **_FROM_BEGIN})),
        lambda: _consume(
            is_over,
            Consumer({**settings, "group.id": "consumer", "group.protocol": "consumer", **_FROM_BEGIN}),
        ),
        lambda: _share(
            is_over,
            ShareConsumer({**settings, "group.id": "share", "share.acknowledgement.mode": "explicit"}),
        ),
    ]
    threads = [threading.Thread(target=step) for step in steps]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(CLOSE_TIMEOUT_S)


_FROM_BEGIN = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 1000}


def _produce(is_over: threading.Event, producer: Producer, *, is_transactional: bool) -> None:
    if is_transactional:
        producer.init_transactions(ADMIN_TIMEOUT_S)
    number = 0
    while not is_over.wait(TURN_S):
        if is_transactional:
            producer.begin_transaction()
        for topic in TOPICS:
            for _ in range(RECORDS_PER_TURN):
                number += 1
                producer.produce(topic, f"record {number}".encode(), key=str(number % 97))
        if is_transactional:
            producer.commit_transaction(CLOSE_TIMEOUT_S)
        producer.poll(0)
    producer.flush(CLOSE_TIMEOUT_S)


def _consume(is_over: threading.Event, consumer: Consumer) -> None:
    consumer.subscribe(list(TOPICS))
    while not is_over.is_set():
        consumer.consume(500, TURN_S)
    consumer.close()


def _share(is_over: threading.Event, consumer: ShareConsumer) -> None:
    with consumer:
        consumer.subscribe(["flights"])
        while not is_over.is_set():
            for message in consumer.poll(TURN_S):
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED)
