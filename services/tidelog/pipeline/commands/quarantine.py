"""`tidelog pipeline quarantine list|replay`."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from tidelog.client.cluster import Cluster
from tidelog.client.security import environment_security
from tidelog.pipeline.commands.options import F, Options, counted_progress, with_bootstrap
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.quarantine.replay import (
    Choice,
    QuarantineSurvey,
    ReasonCount,
    ReplaySummary,
    open_survey,
    replay,
    survey_quarantine,
)
from tidelog.process.command_help import (
    DescribedCommand,
    OutputFormat,
    SuggestingGroup,
    output_format,
    with_format,
)

_DEFAULT_TIMEOUT_MS: Final = 30_000
_EXAMPLES: Final = 3


@click.group("quarantine", cls=SuggestingGroup)
def command() -> None:
    """List or put back records that an archive could not read."""


def _options(function: F) -> F:
    for option in (
        click.option(
            "--request-timeout-ms",
            type=click.IntRange(min=1),
            default=_DEFAULT_TIMEOUT_MS,
            show_default=True,
            help="How long to wait for a broker.",
        ),
        with_bootstrap,
        click.option("--archive", metavar="NAME", help="Only records that this archive sent."),
        click.option("--from-topic", metavar="TOPIC", help="Only records that came from this topic."),
        click.option("--reason", metavar="REGEX", help="Only records whose reason contains this text."),
    ):
        function = option(function)
    return click.argument("topic")(function)


@command.command(
    "list", cls=DescribedCommand, examples=("tidelog pipeline quarantine list flights-quarantine",)
)
@_options
@with_format
def list_them(**options: Any) -> None:  # see Options
    """List the records in the quarantine TOPIC by origin and reason."""
    topic, choice = options["topic"], _choice(options)
    with _connect(options) as cluster, _progress() as progress:
        task = progress.add_task("reading", total=_record_count(cluster, topic))
        found = survey_quarantine(cluster, topic, choice, lambda count: progress.advance(task, count))
    if output_format() is OutputFormat.JSON:
        click.echo(json.dumps(_as_json(topic, found)))
        return
    _print_reasons(found)
    click.echo(_sentence(topic, found))


@command.command(
    "replay",
    cls=DescribedCommand,
    examples=("tidelog pipeline quarantine replay flights-quarantine --execute",),
)
@_options
@click.option("--to", metavar="TOPIC", help="Put the records into this topic instead of their origin.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="COUNT", help="Put back at most this many records."
)
@click.option(
    "--execute",
    is_flag=True,
    help="Put the records back; without it, the command only shows what it would do.",
)
@with_format
def replay_them(**options: Any) -> None:  # see Options
    """Put records of the quarantine TOPIC back into the topics they came from, each once.

    A record goes to the end of its partition with its key, value, headers and timestamp, and with a header
    that names its origin. TOPIC notes in the same transaction which records were put back, so that a second
    run only handles newer records.
    """
    topic, choice = options["topic"], _choice(options)
    to, limit, execute = options["to"], options["limit"], options["execute"]
    if to == topic:
        raise PipelineError(f"--to {to} is the quarantine topic itself; name another topic")
    with _connect(options) as cluster, _progress() as progress:
        total = _record_count(cluster, topic)
        task = progress.add_task("reading", total=total)

        def on_survey(count: int) -> None:
            progress.advance(task, count)

        if not execute:
            found = survey_quarantine(cluster, topic, choice, on_survey)
        else:
            second = progress.add_task("putting back", total=total)
            summary = replay(
                cluster,
                topic,
                choice,
                now_ms=lambda: int(time.time() * 1000),
                to=to,
                limit=limit,
                on_survey=on_survey,
                on_records=lambda count: progress.advance(second, count),
            )
    if execute:
        _print_replayed(summary)
        return
    count = min(len(found.waiting), limit or len(found.waiting))
    if output_format() is OutputFormat.JSON:
        click.echo(json.dumps({**_as_json(topic, found), "would_be_put_back": count}))
        return
    _print_reasons(found)
    click.echo(f"{_plural(count)} would be put back; --execute does it.")


def _choice(options: Options) -> Choice:
    reason: str | None = options["reason"]
    try:
        pattern = None if reason is None else re.compile(reason)
    except re.error as error:
        raise PipelineError(f"--reason {reason} is not a regular expression: {error}") from error
    return Choice(pattern, options["from_topic"], options["archive"])


def _connect(options: Options) -> Cluster:
    return Cluster(
        options["bootstrap_server"],
        client_id="tidelog-quarantine",
        timeout_s=options["request_timeout_ms"] / 1000,
        security=environment_security(),
    )


def _record_count(cluster: Cluster, topic: str) -> int:
    return open_survey(cluster, topic).record_count


def _progress() -> Progress:
    return counted_progress(Console(stderr=True), transient=True)


def _as_json(topic: str, found: QuarantineSurvey) -> dict[str, object]:
    return {
        "topic": topic,
        "waiting": len(found.waiting),
        "replayed": found.replayed,
        "repeated": found.repeated,
        "strange": found.strange,
        "reasons": [
            {
                "topic": origin_topic,
                "reason": reason,
                "count": group.count,
                "first_timestamp": group.first_ms,
                "last_timestamp": group.last_ms,
                "example": str(group.example),
            }
            for (origin_topic, reason), group in _by_count(found)
        ],
    }


def _by_count(found: QuarantineSurvey) -> list[tuple[tuple[str, str], ReasonCount]]:
    return sorted(found.reasons.items(), key=lambda pair: (-pair[1].count, pair[0]))


def _print_reasons(found: QuarantineSurvey) -> None:
    console = Console(highlight=False)
    columns = ("records", "from", "reason", "first", "last", "for example")
    rows = [
        (str(group.count), topic, reason, _time(group.first_ms), _time(group.last_ms), str(group.example))
        for (topic, reason), group in _by_count(found)
    ]
    if output_format() is OutputFormat.PLAIN:
        for row in (columns, *rows):
            click.echo("\t".join(row))
        return
    table = Table(*columns, box=None, header_style="bold cyan")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _sentence(topic: str, found: QuarantineSurvey) -> str:
    more = [
        f"{count} {what}"
        for count, what in (
            (found.replayed, "put back before"),
            (found.repeated, "sent again by repeated batches"),
            (found.strange, "that did not come from an archive"),
        )
        if count
    ]
    return f"{topic}: {_plural(len(found.waiting))} waiting{''.join(f', {each}' for each in more)}"


def _print_replayed(summary: ReplaySummary) -> None:
    if output_format() is OutputFormat.JSON:
        left_out = [str(each) for each in summary.left_out]
        click.echo(
            json.dumps({"put_back": summary.put_back, "gone": dict(summary.gone), "left_out": left_out})
        )
        return
    click.echo(f"{_plural(summary.put_back)} put back.")
    for name, count in summary.gone.items():
        click.echo(
            f"{_plural(count)} stay: topic {name} does not exist; name another one with --to.", err=True
        )
    if summary.left_out:
        examples = ", ".join(map(str, summary.left_out[:_EXAMPLES]))
        click.echo(
            f"{_plural(len(summary.left_out))} stay: they are too large for the quarantine topic, so their "
            "values exist "
            f"only where they came from ({examples}).",
            err=True,
        )


def _plural(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _time(timestamp: int) -> str:
    if timestamp < 0:
        return ""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        return str(timestamp)
