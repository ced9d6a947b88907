"""What all tools share: the broker's address, and errors as one line with the next step and exit code 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

import click
from tidelog.client.cluster import Cluster
from tidelog.client.errors import AdvertisedUnreachableError, BadAddressError, ClientError, UnreachableError
from tidelog.model.errors import ErrorCode, KafkaError

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE: Final = "TIDELOG_BOOTSTRAP_SERVER"
DEFAULT_TIMEOUT_MS: Final = 30_000

_NEXT_STEPS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "'tidelog topic list' shows those there are",
    ErrorCode.TOPIC_ALREADY_EXISTS: "'tidelog topic describe' shows it, --if-not-exists accepts it",
    ErrorCode.INVALID_REPLICATION_FACTOR: "'tidelog cluster describe' shows the brokers there are",
    ErrorCode.INVALID_CONFIG: "'tidelog config describe --all' shows names and values",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller batches (--batch-size) or raise the topic's max.message.bytes",
    ErrorCode.OFFSET_OUT_OF_RANGE: "'tidelog offsets' shows the offsets there are",
    ErrorCode.BROKER_NOT_AVAILABLE: "'tidelog cluster describe' shows the brokers there are",
    ErrorCode.NOT_ENOUGH_REPLICAS: "'tidelog topic describe' shows which replicas are in sync",
}
_REACH_STEP: Final = "is a broker running there? 'tidelog dev' starts one, --bootstrap-server names another"
_ADVERTISED_STEP: Final = "set the broker's advertised.listeners to an address that works from here"

F = TypeVar("F", bound=Callable[..., Any])


class ToolError(Exception):
    """What a tool can't do as asked; one sentence with the next step."""


class ToolCommand(click.Command):
    """A subcommand whose expected failures become one line on standard error and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ToolError, ClientError, KafkaError) as error:
            fail(sentence_of(error))


def sentence_of(error: ToolError | ClientError | KafkaError) -> str:
    """One line: what happened, and what to do next where that is known."""
    text = " ".join(str(error).split()).rstrip(".")
    step: str | None = None
    if isinstance(error, KafkaError):
        step = _NEXT_STEPS.get(error.code)
    elif isinstance(error, AdvertisedUnreachableError):
        step = _ADVERTISED_STEP
    elif isinstance(error, UnreachableError):
        step = _REACH_STEP
    elif isinstance(error, BadAddressError):
        text = f"--bootstrap-server: {text}"
    return f"{text}; {step}" if step else text


def fail(reason: str) -> NoReturn:
    click.echo(f"tidelog: {reason}", err=True)
    raise click.exceptions.Exit(1)


def cluster_options(command: F) -> F:
    """--bootstrap-server and --request-timeout-ms."""
    command = click.option(
        "--request-timeout-ms",
        type=click.IntRange(min=1),
        default=DEFAULT_TIMEOUT_MS,
        show_default=True,
        help="How long to wait for a broker.",
    )(command)
    return click.option(
        "--bootstrap-server",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        envvar=BOOTSTRAP_VARIABLE,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="A broker, or several to try.",
    )(command)


def connect(bootstrap_server: str, request_timeout_ms: int) -> Cluster:
    return Cluster(bootstrap_server, client_id="tidelog-cli", timeout_s=request_timeout_ms / 1000)


def topic_option(command: F) -> F:
    """The topic as argument, or by --topic as in Kafka's tools; gives `topic_name` and `topic_option`."""
    command = click.option(
        "--topic", "topic_option", metavar="TOPIC", help="The topic, if not given before."
    )(command)
    return click.argument("topic_name", metavar="[TOPIC]", required=False)(command)


def chosen_topic(topic_name: str | None, topic_option: str | None) -> str:
    """The one of the two that was given. Raises click.UsageError."""
    if topic_name and topic_option and topic_name != topic_option:
        raise click.UsageError(f"one topic, please: '{topic_name}' or '{topic_option}'?")
    chosen = topic_name or topic_option
    if not chosen:
        raise click.UsageError("which topic? Give its name, or --topic TOPIC.")
    return chosen


def parse_assignments(option: str, assignments: tuple[str, ...]) -> dict[str, str]:
    """`name=value` pairs. Raises ToolError that names the one that is none."""
    pairs: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise ToolError(f"{option} {assignment}: NAME=VALUE expected")
        pairs[name.strip()] = value.strip()
    return pairs
