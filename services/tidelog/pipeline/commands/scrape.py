"""`tidelog pipeline scrape`."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from typing import Final

import click

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.security import environment_security
from tidelog.model.errors import KafkaError
from tidelog.pipeline.commands.spans import parse_span
from tidelog.process.command_help import DescribedCommand
from tidelog.process.output_format import OutputFormat, output_format, with_format

DEFAULT_TOPIC: Final = "tidelog-metrics"


@click.command("scrape", cls=DescribedCommand, examples=("tidelog pipeline scrape --target 127.0.0.1:9404",))
@click.option(
    "--target",
    "targets",
    multiple=True,
    required=True,
    metavar="HOST:PORT|URL[,NAME=VALUE...]",
    help="A service's metrics address, with labels for its samples after commas; repeatable.",
)
@click.option(
    "--topic", default=DEFAULT_TOPIC, show_default=True, help="The topic; it is created if it does not exist."
)
@click.option(
    "--bootstrap-server",
    "-b",
    default="127.0.0.1:9092",
    show_default=True,
    envvar="TIDELOG_BOOTSTRAP_SERVER",
    metavar="HOST:PORT[,...]",
    help="The cluster that stores the topic.",
)
@click.option("--interval", default="15s", show_default=True, metavar="SPAN", help="How often.")
@click.option(
    "--count", type=click.IntRange(min=1), help="End after this many scrapes; without it, run until stopped."
)
@click.option(
    "--everything", is_flag=True, help="Keep whole pages, not only the metrics that the analytics use."
)
@with_format
def command(
    targets: tuple[str, ...],
    topic: str,
    bootstrap_server: str,
    interval: str,
    count: int | None,
    everything: bool,
) -> None:
    """Keep /metrics of these targets in a topic, for 'tidelog pipeline analytics --topic'.

    This is for clusters without Prometheus. At each interval, one compressed record is written for each
    target.
    """
    from tidelog.pipeline.analytics.scrape import (
        failure_of,
        parse_target,
        scrape,
        send_snapshots,
        snapshot_producer,
    )

    chosen = [parse_target(text) for text in targets]
    interval_s = parse_span("--interval", interval) / 1000
    with (
        Cluster(bootstrap_server, client_id="tidelog-scrape", security=environment_security()) as cluster,
        snapshot_producer(cluster, topic) as producer,
    ):
        click.echo(f"{len(chosen)} targets, each {interval_s:g} s, to {topic}; Ctrl-C ends.", err=True)
        began_s = time.monotonic()
        silent: dict[bytes, str] = {}
        done = 0
        with contextlib.suppress(KeyboardInterrupt):
            for turn in itertools.count() if count is None else range(count):
                # The time of a turn is computed from the first turn, so that turns do not drift. Missed turns
                # are skipped.
                wait_s = began_s + turn * interval_s - time.monotonic()
                if wait_s < -interval_s:
                    continue
                time.sleep(max(0.0, wait_s))
                records = scrape(chosen, time.time_ns() // 1_000_000, interval_s, keeps_all=everything)
                for record in records:
                    _tell(record.key or b"", failure_of(record), silent)
                try:
                    send_snapshots(producer, topic, records)
                except (ClientError, KafkaError) as error:
                    if count is not None:
                        raise
                    click.echo(f"a snapshot was lost: {error}", err=True)
                    continue
                done += 1
    if output_format() is OutputFormat.JSON:
        click.echo(json.dumps({"topic": topic, "targets": len(chosen), "snapshots": done}))
        return
    click.echo(f"{done} snapshots of {len(chosen)} targets in {topic}.")


def _tell(target: bytes, failure: str | None, silent: dict[bytes, str]) -> None:
    """Prints a line when a target stops answering and when it answers again."""
    if failure is not None and target not in silent:
        click.echo(f"{target.decode()} does not answer: {failure}", err=True)
        silent[target] = failure
    elif failure is None and silent.pop(target, None) is not None:
        click.echo(f"{target.decode()} answers again", err=True)
